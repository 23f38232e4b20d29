from __future__ import annotations

import json
import math
import random
import shutil

import pytest
import torch

from sbert_flow.data import sample_pairs
from sbert_flow.evaluation.sts import STSSuite
from sbert_flow.fitting import load_trainable, train_encoder
from sbert_flow.fitting.encoder_recipes import ENCODER_RECIPES, damaged, tension
from tests.tiny_encoder import make_tiny_encoder


def equal_weights(first, second):
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def train(encoder, sentences, folder, recipe="ptbert", **kwargs):
    torch.manual_seed(5)
    model = load_trainable(encoder, kwargs.pop("pooling", "cls"))
    settings = {"steps": 4, "batch_size": 16, "max_length": 16, "learning_rate": 1e-3, "eval_steps": 2}
    done = train_encoder(model, sentences, recipe, checkpoints=folder, **{**settings, **kwargs})
    return model, done


@pytest.mark.parametrize("recipe", ENCODER_RECIPES)
def test_every_recipe_trains_the_encoder(recipe, tiny_encoder, sentences, tmp_path):
    start = load_trainable(tiny_encoder)
    model, done = train(tiny_encoder, sentences[:96], tmp_path, recipe)
    assert done.steps == done.best_step == 4
    assert not equal_weights(start, model)
    assert torch.isfinite(model.encode(sentences[:4], convert_to_tensor=True)).all()
    assert model.max_seq_length == 64  # only training cuts shorter


@pytest.mark.parametrize("recipe", ENCODER_RECIPES)
def test_every_recipe_trains_a_checkpoint_in_half_precision(recipe, sentences, tmp_path):
    encoder = make_tiny_encoder(tmp_path / "encoder", torch.float16)
    model, done = train(encoder, sentences[:96], tmp_path / "run", recipe)
    assert done.steps == 4 and model.dtype == torch.float32
    assert torch.isfinite(model.encode(sentences[:4], convert_to_tensor=True)).all()


def test_the_best_step_is_kept(tiny_encoder, sentences, tmp_path):
    class Falling(STSSuite):
        """Says that every step makes it worse."""

        def __init__(self):
            super().__init__([sample_pairs()])
            self.seen = []

        def __call__(self, model, *args, **kwargs):
            assert model.max_seq_length == 64  # the model's own limit; training cuts at 16
            self.seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
            return {self.primary_metric: -len(self.seen)}

    evaluator = Falling()
    model, done = train(tiny_encoder, sentences[:96], tmp_path, evaluator=evaluator, steps=6)
    assert len(evaluator.seen) == 3 and done.best_step == 2 and done.steps == 6
    assert all(torch.equal(tensor, evaluator.seen[0][name]) for name, tensor in model.state_dict().items())


def test_resuming_ends_as_without_interruption(tiny_encoder, sentences, tmp_path):
    whole, _ = train(tiny_encoder, sentences[:96], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")  # as if it had stopped after step 2
    resumed, done = train(tiny_encoder, sentences[:96], tmp_path / "run", resume=True)
    assert done.steps == 4 and equal_weights(whole, resumed)


def test_checkpoints_are_not_mixed(tiny_encoder, sentences, tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint to resume from"):
        train(tiny_encoder, sentences[:96], tmp_path / "run", resume=True)
    train(tiny_encoder, sentences[:96], tmp_path / "run")
    with pytest.raises(FileExistsError, match="checkpoints of an earlier training"):
        train(tiny_encoder, sentences[:96], tmp_path / "run")
    with pytest.raises(ValueError, match="other settings: batch_size 16 -> 8"):
        train(tiny_encoder, sentences[:96], tmp_path / "run", resume=True, batch_size=8)
    with pytest.raises(ValueError, match="other settings: sentences"):
        train(tiny_encoder, sentences[:95], tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="'ct' cannot be resumed"):
        train(tiny_encoder, sentences[:96], tmp_path / "run", "ct", resume=True)


@pytest.mark.parametrize("recipe", ["ptbert", "simcse"])
def test_a_loss_that_is_not_finite_stops(recipe, tiny_encoder, sentences, tmp_path):
    with pytest.raises(ValueError, match=r"the loss is nan in step \d+ at learning rate"):
        train(tiny_encoder, sentences[:96], tmp_path, recipe, learning_rate=1e30, steps=8)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"recipe": "bert"}, "recipe must be one of 'ptbert', 'simcse', 'tsdae', 'ct', but got 'bert'"),
        ({"steps": 0}, "steps must be a whole number of at least 1, but got 0"),
        ({"batch_size": 1}, "batch_size must be a whole number of at least 2, but got 1"),
        ({"max_length": 2}, "max_length must be a whole number of at least 3, but got 2"),
        ({"eval_steps": 0}, "eval_steps must be"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0, but got 0.0"),
        ({"learning_rate": math.nan}, "learning_rate must be above 0"),
        ({"batch_size": 200}, "at least 200 different sentences are needed, but got 96"),
    ],
)
def test_bad_arguments(kwargs, message, tiny_encoder, sentences, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(tiny_encoder, sentences[:96], tmp_path / "run", **kwargs)
    assert not (tmp_path / "run").exists()


def test_half_precision_is_loaded_in_float32(tiny_encoder, tmp_path):
    from transformers import AutoModel, AutoTokenizer

    AutoModel.from_pretrained(tiny_encoder).half().save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_encoder).save_pretrained(tmp_path)
    assert load_trainable(str(tmp_path)).dtype == torch.float32


def test_damaged_deletes_three_words_in_five():
    sentences = [" ".join(f"w{i}" for i in range(40)) for _ in range(50)] + ["one", ""]
    columns = damaged(sentences, random.Random(0))
    assert columns["whole"] == sentences
    kept = sum(len(sentence.split()) for sentence in columns["damaged"][:50])
    assert 0.36 < kept / 2000 < 0.44
    for part, whole in zip(columns["damaged"][:50], sentences, strict=False):
        order = [whole.split().index(word) for word in part.split()]
        assert order == sorted(order)
    assert columns["damaged"][50:] == ["one", ""]


def test_tension_pairs_one_in_eight_with_itself():
    sentences = [f"sentence {i}" for i in range(80)]
    columns = tension(sentences, random.Random(0))
    same = [first == second for first, second in zip(columns["first"], columns["second"], strict=True)]
    assert same == [place % 8 == 0 for place in range(80)]


def test_settings_are_noted(tiny_encoder, sentences, tmp_path):
    train(tiny_encoder, sentences[:96], tmp_path)
    noted = json.loads((tmp_path / "training_settings.json").read_text("utf-8"))
    assert noted["recipe"] == "ptbert" and noted["learning_rate"] == 1e-3 and noted["steps"] == 4
