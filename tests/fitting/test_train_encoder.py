from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import signal

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator, SequentialEvaluator
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from transformers import AutoTokenizer

from sbert_flow.data import sample_pairs
from sbert_flow.evaluation.sts import STSSuite
from sbert_flow.fitting import load_trainable, train_encoder
from sbert_flow.fitting.encoder_recipes import ENCODER_RECIPES, damaged, tension
from sbert_flow.losses.pseudo_token_callback import FILE
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
    start, first, *_ = evaluator.seen
    assert len(evaluator.seen) == 4 and done.best_step == 2 and done.steps == 6
    assert all(torch.equal(tensor, start[name]) for name, tensor in load_trainable(tiny_encoder).state_dict().items())
    assert all(torch.equal(tensor, first[name]) for name, tensor in model.state_dict().items())


def test_resuming_ends_as_without_interruption(tiny_encoder, sentences, tmp_path):
    whole, _ = train(tiny_encoder, sentences[:96], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")  # as if it had stopped after step 2
    resumed, done = train(tiny_encoder, sentences[:96], tmp_path / "run", resume=True)
    assert done.steps == 4 and equal_weights(whole, resumed)


def test_resuming_keeps_the_score_of_the_start(tiny_encoder, sentences, tmp_path):
    whole, done = train(tiny_encoder, sentences[:96], tmp_path, evaluator=Rising())
    shutil.rmtree(tmp_path / "checkpoint-4")
    again = Rising()
    again.calls = 2  # the start and step 2
    resumed, redone = train(tiny_encoder, sentences[:96], tmp_path, evaluator=again, resume=True)
    for history in (done.history, redone.history):
        scores = [(entry["step"], entry["eval_deciding"]) for entry in history if "eval_deciding" in entry]
        assert scores == [(0, 1.0), (2, 2.0), (4, 3.0)]
    assert redone.best_step == 4
    assert equal_weights(whole, resumed)


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
    with pytest.raises(ValueError, match="other settings: pooling"):
        train(tiny_encoder, sentences[:96], tmp_path / "run", resume=True, pooling="mean")
    with pytest.raises(ValueError, match="'ct' cannot be resumed"):
        train(tiny_encoder, sentences[:96], tmp_path / "run", "ct", resume=True)


@pytest.mark.parametrize("recipe", ["ptbert", "simcse"])
def test_a_loss_that_is_not_finite_stops(recipe, tiny_encoder, sentences, tmp_path):
    with pytest.raises(ValueError, match=r"the loss is nan in step \d+ at learning rate"):
        train(tiny_encoder, sentences[:96], tmp_path, recipe, learning_rate=1e30, steps=8)


@pytest.mark.parametrize("recipe", ["ptbert", "simcse"])
def test_weights_that_the_last_step_spoils_are_not_saved(recipe, tiny_encoder, sentences, tmp_path):
    with pytest.raises(ValueError, match=r"weights are no longer finite after step 1 \(learning rate"):
        train(tiny_encoder, sentences[:96], tmp_path, recipe, learning_rate=1e38, steps=1)
    assert not list(tmp_path.glob("checkpoint-*"))


class Rising:
    """An evaluator that returns a number, as the oldest ones do, and likes every step better."""

    primary_metric = None

    def __init__(self):
        self.calls = 0

    def __call__(self, model, *args, **kwargs):
        self.calls += 1
        return float(self.calls)


def test_evaluations_change_nothing(tiny_encoder, sentences, tmp_path):
    plain, _ = train(tiny_encoder, sentences[:96], tmp_path / "plain")
    evaluator = Rising()
    evaluated, done = train(tiny_encoder, sentences[:96], tmp_path / "run", evaluator=evaluator, eval_steps=1)
    assert evaluator.calls == 5 and done.best_step == 4  # and the start
    assert equal_weights(plain, evaluated)


def test_evaluators_of_the_library(tiny_encoder, sentences, tmp_path):
    pairs = sample_pairs()
    suite = EmbeddingSimilarityEvaluator(pairs.sentences1, pairs.sentences2, pairs.scores, name="pairs")
    _, done = train(tiny_encoder, sentences[:96], tmp_path / "a", evaluator=suite)
    scores = [entry["eval_pairs_spearman_cosine"] for entry in done.history if "eval_deciding" in entry]
    assert len(scores) == 3 and done.best_step == (2 if scores[1] >= scores[2] else 4)
    train(tiny_encoder, sentences[:96], tmp_path / "b", evaluator=SequentialEvaluator([suite]))


def test_a_checkpoint_that_a_kill_left_incomplete_is_passed_over(tiny_encoder, sentences, tmp_path):
    whole, _ = train(tiny_encoder, sentences[:96], tmp_path)
    (tmp_path / "checkpoint-4" / FILE).unlink()
    resumed, done = train(tiny_encoder, sentences[:96], tmp_path, resume=True)
    assert done.steps == 4 and equal_weights(whole, resumed)
    (tmp_path / "checkpoint-4" / "trainer_state.json").unlink()
    resumed, done = train(tiny_encoder, sentences[:96], tmp_path, resume=True)
    assert equal_weights(whole, resumed)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [("ptbert", r"checkpoint-2 keeps what was done; .*--resume"), ("ct", r"'ct' cannot be resumed")],
)
@pytest.mark.parametrize("stop", [KeyboardInterrupt, signal.SIGTERM, RuntimeError("out of memory")])
def test_a_training_that_stops_says_how_to_go_on(stop, recipe, message, tiny_encoder, sentences, tmp_path):
    class Stopping(Rising):
        def __call__(self, *args, **kwargs):
            if (tmp_path / "checkpoint-2").is_dir():
                if stop is signal.SIGTERM:
                    os.kill(os.getpid(), stop)
                raise stop
            return super().__call__(*args, **kwargs)

    kind = type(stop) if isinstance(stop, Exception) else KeyboardInterrupt
    with pytest.raises(kind) as stopped:
        train(tiny_encoder, sentences[:96], tmp_path, recipe, evaluator=Stopping())
    said = "\n".join([str(stopped.value), *getattr(stopped.value, "__notes__", [])])
    assert re.search(message, said)


def test_a_training_that_stops_before_the_first_checkpoint_says_so(tiny_encoder, sentences, tmp_path):
    class Stopping(Rising):
        def __call__(self, *args, **kwargs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="There is no checkpoint yet"):
        train(tiny_encoder, sentences[:96], tmp_path, evaluator=Stopping())


@pytest.mark.parametrize("recipe", ["ptbert", "simcse"])
def test_an_encoder_without_dropout_gives_a_warning(recipe, tiny_encoder, sentences, tmp_path):
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = load_trainable(tiny_encoder, config_kwargs=none)
    with pytest.warns(UserWarning, match="has no dropout, so both views"):
        train_encoder(model, sentences[:96], recipe, checkpoints=tmp_path, steps=1, batch_size=16)


@pytest.mark.parametrize("recipe", ENCODER_RECIPES)
def test_static_embeddings_cannot_be_trained(recipe, tiny_encoder, sentences, tmp_path):
    static = SentenceTransformer(modules=[StaticEmbedding(AutoTokenizer.from_pretrained(tiny_encoder), None, 8)])
    with pytest.raises(ValueError, match="begins with StaticEmbedding"):
        train_encoder(static, sentences[:96], recipe, checkpoints=tmp_path)


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


@pytest.mark.parametrize("recipe", ["ptbert", "simcse"])
def test_the_card_quotes_none_of_the_text(recipe, tiny_encoder, sentences, tmp_path):
    model, _ = train(tiny_encoder, sentences[:96], tmp_path / "run", recipe)
    model.save_pretrained(str(tmp_path / "saved"))
    card = (tmp_path / "saved" / "README.md").read_text("utf-8")
    assert "Size: 96 training samples" in card
    assert not [sentence for sentence in sentences[:96] if sentence in card]


def test_settings_are_noted(tiny_encoder, sentences, tmp_path):
    train(tiny_encoder, sentences[:96], tmp_path)
    noted = json.loads((tmp_path / "training_settings.json").read_text("utf-8"))
    assert noted["recipe"] == "ptbert" and noted["learning_rate"] == 1e-3 and noted["steps"] == 4
