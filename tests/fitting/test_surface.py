"""The surface map, fitted through fit_flow, against its formula."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from scipy.linalg import fractional_matrix_power

from sbert_flow import FlowLayer, build_model, fit_flow
from sbert_flow.fitting import estimate_nuisance, nuisance_moment
from sbert_flow.fitting.sampling import held_out
from sbert_flow.modules.pipeline import encoder_before_flow
from sbert_flow.views import editable, make_views, surface_edits


def surface_map(x: np.ndarray, nuisance: np.ndarray, c: float) -> np.ndarray:
    """The formula of docs/surface-map.md, in numpy: the shrunk covariance is mapped to a mean variance of 1."""
    kept = x[~held_out(torch.arange(len(x))).numpy()] if len(x) >= 200 else x
    total = np.cov(kept.T, bias=True)
    share = len(total) / (len(total) + len(kept))
    total = (1 - share) * total + share * np.trace(total) / len(total) * np.eye(len(total))
    matrix = total + c * nuisance + 0.1 * np.trace(total) / len(total) * np.eye(len(total))
    root = np.real(fractional_matrix_power(matrix, -0.5))
    return (x - kept.mean(axis=0)) @ root / np.sqrt(np.trace(root @ total @ root) / len(total))


def test_recipe_surface_is_the_formula(tiny_encoder: str, sentences: list[str]) -> None:
    model = build_model(tiny_encoder, recipe="surface")
    fit_flow(model, sentences, recipe="surface", seed=5, show_progress_bar=False)
    encoder = encoder_before_flow(model)
    chosen = editable(sentences, 3000)
    before = encoder.encode(chosen).astype(np.float64)
    nuisance = np.zeros((32, 32))
    for texts in make_views(chosen, surface_edits(sentences), seed=5).values():
        moved = encoder.encode(texts).astype(np.float64) - before
        nuisance += moved.T @ moved / len(moved)
    expected = surface_map(encoder.encode(sentences).astype(np.float64), nuisance, 10)
    np.testing.assert_allclose(model.encode(sentences), expected, atol=2e-4)


def test_nuisance_moment_is_not_centred() -> None:
    generator = torch.Generator().manual_seed(0)
    x, moved = torch.randn(50, 3, generator=generator), torch.randn(2, 50, 3, generator=generator) + 4
    got = nuisance_moment(x, {"a": x + moved[0], "b": x + moved[1]})
    expected = sum(torch.outer(row, row) for row in moved.flatten(0, 1).double()) / 50
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_same_seed_same_map_and_sentences_encoded_before(tiny_encoder: str, sentences: list[str]) -> None:
    model = build_model(tiny_encoder, recipe="surface-flow")
    fit_flow(model, sentences, recipe="surface-flow", show_progress_bar=False)
    first = model.encode(sentences[:20])
    encoder = encoder_before_flow(model)
    fit_flow(
        model, embeddings=encoder.encode(sentences), nuisance=estimate_nuisance(encoder, sentences),
        recipe="surface-flow", show_progress_bar=False,
    )  # fmt: skip
    np.testing.assert_allclose(model.encode(sentences[:20]), first, atol=1e-3)


def test_flow_behind_the_front_learns(tiny_encoder: str, sentences: list[str]) -> None:
    model = build_model(tiny_encoder, recipe="surface-flow")
    result = fit_flow(model, sentences, recipe="surface-flow", show_progress_bar=False)
    assert result.history[-1]["bits_per_dimension"] < result.history[0]["bits_per_dimension"] - 0.01
    linear = build_model(tiny_encoder, recipe="surface")
    fit_flow(linear, sentences, recipe="surface", show_progress_bar=False)
    assert not np.allclose(model.encode(sentences[:5]), linear.encode(sentences[:5]), atol=1e-2)


def test_own_edits_replace_ours(tiny_encoder: str, sentences: list[str]) -> None:
    seen: list[str] = []

    def shout(sentence: str, rng: random.Random) -> str:
        seen.append(sentence)
        return sentence + " boat"

    model = build_model(tiny_encoder, recipe="surface")
    fit_flow(model, sentences, recipe="surface", edits={"shout": shout}, show_progress_bar=False)
    assert seen == editable(sentences, 3000)


def failing(sentence: str, rng: random.Random) -> str:
    raise RuntimeError("no idea")


def test_a_failing_edit_loses_nothing(tiny_encoder: str, sentences: list[str]) -> None:
    model = build_model(tiny_encoder, recipe="surface")
    fit_flow(model, sentences, recipe="surface", show_progress_bar=False)
    before = model.encode(sentences[:5])
    with pytest.raises(ValueError, match=r"'mine' failed on .*no idea"):
        fit_flow(model, sentences, recipe="surface", edits={"mine": failing}, show_progress_bar=False)
    np.testing.assert_array_equal(model.encode(sentences[:5]), before)


@pytest.mark.parametrize(
    "text",
    [[f"只有{i}个字的句子。" for i in range(40)], [f"one two {i}" for i in range(40)]],
    ids=["no spaces", "short"],
)
def test_text_without_words(tiny_encoder: str, text: list[str]) -> None:
    model = build_model(tiny_encoder, recipe="surface")
    with pytest.raises(ValueError, match=r"at least four words separated by spaces, and only 0 of 40.*'noise'"):
        fit_flow(model, text, recipe="surface", show_progress_bar=False)


def test_bad_use(sentences: list[str]) -> None:
    x = np.random.default_rng(0).normal(size=(50, 4))
    with pytest.raises(ValueError, match="another kind of map"):
        fit_flow(FlowLayer(4), embeddings=x, nuisance=np.eye(4), recipe="surface")
    with pytest.raises(ValueError, match="edits sentences"):
        fit_flow(embeddings=x, recipe="surface")
    with pytest.raises(ValueError, match=r"shape \(4, 4\), but got \(3, 3\)"):
        fit_flow(embeddings=x, nuisance=np.eye(3), recipe="surface")
    with pytest.raises(ValueError, match="finite"):
        fit_flow(embeddings=x, nuisance=np.full((4, 4), np.inf), recipe="surface")
    with pytest.raises(ValueError, match="must be symmetric"):
        fit_flow(embeddings=x, nuisance=np.triu(np.ones((4, 4))), recipe="surface")


def test_embeddings_that_are_all_equal() -> None:
    with pytest.raises(ValueError, match="embeddings are equal"):
        fit_flow(embeddings=np.ones((50, 4)), nuisance=np.eye(4), recipe="surface")


def test_a_fit_with_other_views_does_not_resume_this_one(tiny_encoder, sentences, tmp_path, monkeypatch):
    """Two fits on one store that differ in their edits only: the second must not go on from the first's checkpoint."""
    paths = []
    monkeypatch.setattr("sbert_flow.fitting.fit.Checkpoint", lambda path: paths.append(path))
    for edits in (None, {"twice": lambda sentence, rng: f"{sentence} {sentence}"}):
        model = build_model(tiny_encoder, recipe="surface-flow")
        fit_flow(model, sentences, recipe="surface-flow", edits=edits, store=tmp_path / "s", show_progress_bar=False)
    assert len(set(paths)) == 2
