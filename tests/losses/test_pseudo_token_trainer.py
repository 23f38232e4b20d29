from __future__ import annotations

import copy
import math
import shutil

import pytest
import torch
from datasets import Dataset
from sentence_transformers import (
    InputExample,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch.utils.data import DataLoader

from sbert_flow import PseudoTokenLoss
from sbert_flow.losses import PseudoTokenCallback
from sbert_flow.losses.pseudo_token_callback import FILE


@pytest.fixture
def new_model(tiny_encoder):
    def build():
        torch.manual_seed(0)
        transformer = Transformer(tiny_encoder)
        model = SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension(), "cls")])
        model.model_card_data.generate_widget_examples = False
        return model

    return build


@pytest.fixture(scope="module")
def column(sentences):
    return Dataset.from_dict({"text": sentences[:96]})


def train(model, loss, data, folder, callbacks=None, resume=None, **kwargs):
    settings = {
        "output_dir": str(folder), "max_steps": 6, "per_device_train_batch_size": 16, "learning_rate": 1e-3,
        "report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False, "use_cpu": True, "save_strategy": "no",
        "seed": 1,
    }  # fmt: skip
    args = SentenceTransformerTrainingArguments(**{**settings, **kwargs})
    trainer = SentenceTransformerTrainer(model, args=args, train_dataset=data, loss=loss, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def equal_weights(first, second):
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_trainer_ends_with_a_plain_model(new_model, column, sentences, tmp_path):
    model = new_model()
    loss = PseudoTokenLoss(model, num_pseudo_tokens=16)
    before = copy.deepcopy(model[0])
    trainer = train(model, loss, column, tmp_path, callbacks=[PseudoTokenCallback(loss)])
    loss.follow()
    assert loss.steps == 6 and not equal_weights(before, model[0])
    trainer.save_model(str(tmp_path / "saved"))
    loaded = SentenceTransformer(str(tmp_path / "saved"))
    assert [type(module).__name__ for module in loaded.children()] == ["Transformer", "Pooling"]
    assert loaded.state_dict().keys() == model.state_dict().keys()
    first, second = (m.encode(sentences[:8], convert_to_tensor=True) for m in (loaded, model))
    torch.testing.assert_close(first, second)
    card = (tmp_path / "saved" / "README.md").read_text("utf-8")
    assert "Tan, Haochen" in card and '"num_pseudo_tokens": 16' in card


def test_gradient_accumulation_follows_once_a_step(new_model, column, tmp_path):
    model = new_model()
    loss = PseudoTokenLoss(model, num_pseudo_tokens=16)
    train(model, loss, column, tmp_path, per_device_train_batch_size=8, gradient_accumulation_steps=2, max_steps=3)
    loss.follow()
    assert loss.steps == 3
    assert [len(keys) for keys in loss.queue] == [8] * 4


@pytest.mark.parametrize("option", ["bf16", "gradient_checkpointing"])
def test_options_of_the_trainer_that_change_the_forward_pass(option, new_model, column, tmp_path):
    model = new_model()
    loss = PseudoTokenLoss(model, num_pseudo_tokens=16)
    before = copy.deepcopy(loss.head)
    seen = {"online": set(), "copy": set()}
    for name, encoder in (("online", model[0]), ("copy", loss.momentum_encoder)):
        dense = encoder.model.encoder.layer[0].intermediate.dense
        dense.register_forward_hook(lambda layer, inputs, output, name=name: seen[name].add(output.dtype))
    train(model, loss, column, tmp_path, callbacks=[PseudoTokenCallback(loss)], **{option: True})
    assert seen["online"] == seen["copy"] == {torch.bfloat16 if option == "bf16" else torch.float32}
    assert {parameter.dtype for parameter in loss.parameters()} == {torch.float32}
    assert all(keys.dtype == torch.float32 for keys in loss.queue)
    pairs = zip(loss.head.named_parameters(), before.parameters(), strict=True)
    moved = {name for (name, after), start in pairs if not torch.equal(after, start)}
    assert {"table", "query.weight", "value.weight", "dense.weight"} <= moved
    loss.follow()
    assert loss.steps == 6


def test_evaluation_leaves_the_training_alone(new_model, column, tmp_path):
    model = new_model()
    loss = PseudoTokenLoss(model, num_pseudo_tokens=16)
    trainer = train(model, loss, column, tmp_path, max_steps=3)
    before = loss.training_state()
    first, second = (trainer.evaluate(column)["eval_loss"] for _ in range(2))
    assert math.isfinite(first) and first == second  # no dropout in either view
    after = loss.training_state()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_model_fit_trains(new_model, sentences, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = new_model()
    loss = PseudoTokenLoss(model, num_pseudo_tokens=16)
    before = copy.deepcopy(model[0])
    loader = DataLoader([InputExample(texts=[sentence]) for sentence in sentences[:64]], batch_size=16)
    model.fit([(loader, loss)], warmup_steps=0, optimizer_params={"lr": 1e-3}, show_progress_bar=False)
    loss.follow()
    assert loss.steps == 4 and not equal_weights(before, model[0])


def test_resuming_gives_the_weights_of_an_uninterrupted_run(new_model, column, tmp_path):
    def run(folder, resume=None, **kwargs):
        model = new_model()
        # Another seed of the head: all of it has to come from the checkpoint.
        loss = PseudoTokenLoss(model, num_pseudo_tokens=16, seed=0 if resume is None else 7)
        train(
            model, loss, column, folder, [PseudoTokenCallback(loss)], resume, max_steps=9, save_strategy="steps",
            save_steps=4, **kwargs,
        )  # fmt: skip
        return model, loss.training_state()

    whole, state = run(tmp_path)
    for later in ("checkpoint-8", "checkpoint-9"):  # as if it had stopped after step 4
        assert (tmp_path / later / FILE).is_file()
        shutil.rmtree(tmp_path / later)
    resumed, resumed_state = run(tmp_path, resume=True)
    assert equal_weights(whole, resumed)
    assert state.keys() == resumed_state.keys() and int(state["steps"]) == 9
    assert {name for name in state if name.startswith("queue.")} == {f"queue.{place}" for place in range(4)}
    assert all(torch.equal(state[name], resumed_state[name]) for name in state)


def test_resuming_without_the_state_says_so(new_model, column, tmp_path):
    model = new_model()
    loss = PseudoTokenLoss(model, num_pseudo_tokens=16)
    train(model, loss, column, tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    with pytest.raises(FileNotFoundError, match="saved with PseudoTokenCallback"):
        train(model, loss, column, tmp_path, [PseudoTokenCallback(loss)], True, max_steps=4)


def test_a_damaged_or_foreign_state_is_an_error(new_model, column, tmp_path):
    model = new_model()
    loss = PseudoTokenLoss(model, num_pseudo_tokens=16)
    train(model, loss, column, tmp_path, [PseudoTokenCallback(loss)], max_steps=2, save_strategy="steps", save_steps=2)
    other = PseudoTokenLoss(model, num_pseudo_tokens=5)
    with pytest.raises(ValueError, match=r"head.table has shape \(16, 32\), but \(5, 32\)"):
        train(model, other, column, tmp_path, [PseudoTokenCallback(other)], True, max_steps=4)
    short = PseudoTokenLoss(model, num_pseudo_tokens=16, queue_batches=1)
    with pytest.raises(ValueError, match="holds 2 batches, but queue_batches is 1"):
        train(model, short, column, tmp_path, [PseudoTokenCallback(short)], True, max_steps=4)
    kept = tmp_path / "checkpoint-2" / FILE
    kept.write_bytes(kept.read_bytes()[:-100])
    with pytest.raises(OSError, match="damaged or cut short"):
        train(model, loss, column, tmp_path, [PseudoTokenCallback(loss)], True, max_steps=4)


def test_a_loss_that_is_not_finite_stops_with_step_and_rate(new_model, column, tmp_path):
    class Spoiling(PseudoTokenCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            super().on_step_begin(args, state, control, **kwargs)
            if state.global_step == 3:
                torch.nn.init.constant_(self.loss.head.dense.bias, math.nan)

    model = new_model()
    loss = PseudoTokenLoss(model, num_pseudo_tokens=16)
    with pytest.raises(ValueError, match=r"loss is nan in step 4 at learning rate 0\.0005\."):
        train(model, loss, column, tmp_path, [Spoiling(loss)], save_strategy="steps", save_steps=2)
    kept = SentenceTransformer(str(tmp_path / "checkpoint-2"))
    assert all(torch.isfinite(parameter).all() for parameter in kept.parameters())
