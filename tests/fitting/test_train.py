from __future__ import annotations

import io
import os
import signal
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from sbert_flow import build_model
from sbert_flow.data import sample_sentences
from sbert_flow.fitting import fit_flow
from sbert_flow.fitting.checkpoint import Checkpoint
from sbert_flow.fitting.progress import Progress
from sbert_flow.fitting.train import train_flow
from sbert_flow.modules import FlowLayer
from sbert_flow.modules.pipeline import split_at_flow
from sbert_flow.modules.recipes import RECIPES
from tests.fitting.quick_encoder import quick_model, quick_sentences

EMBEDDINGS = torch.randn(300, 8, generator=torch.Generator().manual_seed(0)) * 2 + 1
SENTENCES = quick_sentences(300)


def layer(seed: int = 0) -> FlowLayer:
    torch.manual_seed(seed)
    return FlowLayer(8, levels=2, steps_per_level=2, hidden_width=4)


class SignalAt(io.StringIO):
    """A stream for JSON lines that sends a signal to this process when the given step is reported."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__()
        self.number, self.step = number, step

    def write(self, text: str) -> int:
        if f'"done": {self.step},' in text:
            os.kill(os.getpid(), self.number)
        return super().write(text)


@pytest.fixture(autouse=True)
def every_report_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbert_flow.fitting.progress.SECONDS_BETWEEN_LINES", 0.0)


@pytest.mark.parametrize("recipe", ["noise", "paper"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_and_continued_equals_uninterrupted(tmp_path: Path, recipe: str, number: int) -> None:
    whole, parts = layer(), layer(seed=1)
    history = train_flow(whole, EMBEDDINGS, RECIPES[recipe], epochs=3)
    before = {name: tensor.clone() for name, tensor in parts.state_dict().items()}
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    with pytest.raises(KeyboardInterrupt):
        train_flow(
            parts, EMBEDDINGS, RECIPES[recipe], epochs=3, checkpoint=checkpoint,
            progress=Progress("json", SignalAt(number, 80)),
        )  # fmt: skip
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert all(torch.equal(before[name], tensor) for name, tensor in parts.state_dict().items())
    said = io.StringIO()
    resumed = train_flow(
        parts, EMBEDDINGS, RECIPES[recipe], epochs=3, checkpoint=checkpoint, progress=Progress("json", said)
    )
    assert '"step": 80, "steps": 200' in said.getvalue()  # it went on, and did not begin again
    assert resumed == history
    assert all(
        torch.equal(a, b) for a, b in zip(whole.state_dict().values(), parts.state_dict().values(), strict=True)
    )


def test_interrupted_encoding_and_training_of_a_store(tmp_path: Path) -> None:
    whole, parts = quick_model(), quick_model()
    fit_flow(whole, SENTENCES, recipe="noise", show_progress_bar=False)
    for done in (80, 160):
        with pytest.raises(KeyboardInterrupt, match=r"store .* keeps what was done; the same command continues it"):
            fit_flow(
                parts, SENTENCES, recipe="noise", store=tmp_path / "s",
                progress=Progress("json", SignalAt(signal.SIGTERM, done)),
            )  # fmt: skip
    said = io.StringIO()
    fit_flow(parts, iter(SENTENCES), recipe="noise", store=tmp_path / "s", progress=Progress("json", said))
    assert '"step": 160, "steps": 200' in said.getvalue()
    assert "Encoding" not in said.getvalue()
    first, second = (split_at_flow(model)[1].state_dict() for model in (whole, parts))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not list((tmp_path / "s").rglob("training-*"))


def test_interrupted_behind_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after the training may be interrupted too: nothing of it is done again."""
    parts, whole = quick_model(), quick_model()
    before = {name: value.clone() for name, value in split_at_flow(parts)[1].state_dict().items()}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match="keeps what was done"):
        patch.setattr("sbert_flow.fitting.train.note_fit", lambda *args: os.kill(os.getpid(), signal.SIGTERM))
        fit_flow(parts, SENTENCES, recipe="noise", store=tmp_path / "s", show_progress_bar=False)
    assert all(torch.equal(value, before[name]) for name, value in split_at_flow(parts)[1].state_dict().items())
    said = io.StringIO()
    fit_flow(parts, SENTENCES, recipe="noise", store=tmp_path / "s", progress=Progress("json", said))
    assert '"step": 200, "steps": 200' in said.getvalue()
    fit_flow(whole, SENTENCES, recipe="noise", show_progress_bar=False)
    first, second = (split_at_flow(model)[1].state_dict() for model in (whole, parts))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_kept_advice_is_not_asked_for_again(minilm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = sample_sentences()[:60]
    first = fit_flow(build_model(minilm, "layer:3"), text, store=tmp_path, show_progress_bar=False)
    module = import_module("sbert_flow.fitting.advise")  # in the package the name is the function's
    monkeypatch.setattr(module, "advise_sample", lambda *args, **kwargs: pytest.fail("asked again"))
    again = fit_flow(build_model(minilm, "layer:3"), text, store=tmp_path, show_progress_bar=False)
    assert again.advice == first.advice and again.recipe == "surface"


def test_several_machines_need_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbert_flow.fitting.distributed.world_size", lambda: 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="several machines need a store"):
        fit_flow(quick_model(), SENTENCES, recipe="noise", show_progress_bar=False)


def test_other_settings_have_another_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit_flow(
            quick_model(), SENTENCES, recipe="noise", store=tmp_path, seed=0,
            progress=Progress("json", SignalAt(signal.SIGTERM, 80)),
        )  # fmt: skip
    said = io.StringIO()
    fit_flow(quick_model(), SENTENCES, recipe="noise", store=tmp_path, progress=Progress("json", said), seed=1)
    assert "Continuing" not in said.getvalue()


def test_damaged_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"half of it")
    with pytest.raises(OSError, match=r"damaged.*Delete it"):
        train_flow(layer(), EMBEDDINGS, RECIPES["noise"], checkpoint=Checkpoint(tmp_path / "c"))


def test_a_finished_fit_leaves_no_file_of_a_kill(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "c")
    checkpoint.write({"step": torch.zeros(1)})
    (tmp_path / "c.123.tmp").write_bytes(b"half of it")
    (tmp_path / "other.123.tmp").write_bytes(b"of another fit that is running")
    checkpoint.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["other.123.tmp"]


def test_store_and_memory_and_float16_give_the_same_flow(tmp_path: Path) -> None:
    model = quick_model()
    in_store = fit_flow(model, SENTENCES, recipe="noise", store=tmp_path, show_progress_bar=False)
    array = np.load(next(tmp_path.rglob("embeddings-*.npy")))
    in_memory = fit_flow(split_at_flow(quick_model())[1], embeddings=array, show_progress_bar=False)
    assert in_store.history == in_memory.history
    half = fit_flow(quick_model(), SENTENCES, recipe="noise", store=tmp_path, dtype="float16", show_progress_bar=False)
    assert half.history[-1]["bits_per_dimension"] == pytest.approx(
        in_store.history[-1]["bits_per_dimension"], abs=0.02
    )
    assert half.history != in_store.history


def test_the_mode_of_the_layer_is_kept() -> None:
    evaluated = layer().eval()
    train_flow(evaluated, EMBEDDINGS, RECIPES["noise"])
    assert not evaluated.training
    with torch.no_grad():
        folded = evaluated.flow(EMBEDDINGS)[0]
    torch.testing.assert_close(folded, evaluated.flow(EMBEDDINGS)[0].detach(), atol=1e-5, rtol=1e-5)


def test_a_saved_layer_gives_the_same_bits(tmp_path: Path) -> None:
    fitted = layer()
    train_flow(fitted, EMBEDDINGS, RECIPES["noise"])
    before = fitted.latents(EMBEDDINGS)
    fitted.save(str(tmp_path))
    assert torch.equal(FlowLayer.load(str(tmp_path)).latents(EMBEDDINGS), before)
    with_gradients = fitted.flow(EMBEDDINGS)[0].detach()
    torch.testing.assert_close(before, with_gradients, atol=1e-5, rtol=0)
