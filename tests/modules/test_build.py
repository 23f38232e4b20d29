from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from transformers import AutoModel, AutoTokenizer

from sbert_flow import FlowLayer, build_model, load
from sbert_flow.modules.pipeline import encoder_before_flow
from sbert_flow.modules.pooling import layer_weights
from tests.tiny_encoder import LAYERS, make_tiny_encoder

TEXTS = ["A red boat.", "The harbour was quiet after the storm had passed.", "geese"]


def pooled(folder, name):
    """The pooling from transformers' hidden states, without sentence-transformers."""
    tokenizer, encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = encoder(**batch, output_hidden_states=True).hidden_states
    mask = batch["attention_mask"][..., None].bool()
    mean = [(state * mask).sum(1) / mask.sum(1) for state in states]
    last = states[-1]
    return {
        "mean": mean[-1],
        "cls": last[:, 0],
        "max": last.masked_fill(~mask, -torch.inf).amax(1),
        "first-last": (mean[1] + mean[-1]) / 2,
        "first-last-embedding": (mean[0] + mean[-1]) / 2,
        "last-two": (mean[-2] + mean[-1]) / 2,
        **{f"layer:{k}": m for k, m in enumerate(mean)},
    }[name].numpy()


NAMES = [
    "mean",
    "cls",
    "max",
    "first-last",
    "first-last-embedding",
    "last-two",
    *(f"layer:{k}" for k in range(LAYERS + 1)),
]


@pytest.mark.parametrize("name", NAMES)
def test_poolings_against_hidden_states_before_and_after_saving(tiny_encoder, tmp_path, name):
    model = build_model(tiny_encoder, name)
    expected = pooled(tiny_encoder, name)
    np.testing.assert_allclose(encoder_before_flow(model).encode(TEXTS), expected, atol=1e-6)
    model.save_pretrained(str(tmp_path / "m"))
    np.testing.assert_allclose(encoder_before_flow(load(tmp_path / "m")).encode(TEXTS), expected, atol=1e-6)


def test_real_encoder_layer(minilm):
    with pytest.warns(UserWarning, match="Normalize after the pooling is left out"):
        model = build_model(minilm, "layer:3")
    np.testing.assert_allclose(encoder_before_flow(model).encode(TEXTS), pooled(minilm, "layer:3"), atol=1e-5)


def test_first_last_of_a_one_layer_encoder_is_that_layer():
    assert layer_weights("first-last", 1).tolist() == [0, 1]
    assert layer_weights("first-last-embedding", 1).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("recipe", "steps"), [("noise", 6), ("paper", 3)])
def test_the_layer_has_the_shape_of_the_recipe(tiny_encoder, recipe, steps):
    layer = build_model(tiny_encoder, recipe=recipe)[-1]
    assert (layer.embedding_dimension, layer.levels, layer.steps_per_level) == (32, 3, steps)


def test_encoder_as_module_or_model(tiny_encoder):
    by_path = build_model(tiny_encoder, "cls")
    expected = encoder_before_flow(by_path).encode(TEXTS)
    for encoder in (by_path[0], SentenceTransformer(modules=[by_path[0], Pooling(32, "max")]), by_path):
        np.testing.assert_allclose(encoder_before_flow(quietly(encoder, "cls")).encode(TEXTS), expected, atol=1e-6)


def quietly(*args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build_model(*args)


def test_what_follows_the_pooling_is_left_out_with_a_warning(tiny_encoder):
    transformer = build_model(tiny_encoder)[0]
    encoder = SentenceTransformer(modules=[transformer, Pooling(32, "mean"), Dense(32, 16), Normalize()])
    with pytest.warns(UserWarning, match="Dense, Normalize after the pooling is left out"):
        model = build_model(encoder)
    assert [type(m).__name__ for m in model.children()] == ["Transformer", "Pooling", "FlowLayer"]
    assert model[-1].embedding_dimension == 32


def test_prompts_are_kept(tiny_encoder):
    encoder = SentenceTransformer(tiny_encoder, prompts={"query": "find: "}, default_prompt_name="query")
    model = build_model(encoder)
    assert model.prompts["query"] == "find: " and model.default_prompt_name == "query"
    np.testing.assert_allclose(encoder_before_flow(model).encode(TEXTS), encoder.encode(TEXTS), atol=1e-6)


def test_half_precision_weights_are_loaded_in_float32_on_a_cpu(tmp_path):
    folder = make_tiny_encoder(tmp_path / "half", torch.float16)
    assert build_model(folder, device="cpu").dtype == torch.float32
    asked = build_model(folder, device="cpu", model_kwargs={"dtype": torch.float16})
    assert asked.dtype == torch.float16 and next(asked[-1].parameters()).dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pooling": "median"}, "pooling must be one of mean, cls, max, first-last.*layer:K, but got 'median'"),
        ({"pooling": "layer:4"}, r"'layer:4' is out of range: the encoder has the layers 0 \(embeddings\) to 3"),
        ({"pooling": "layer:-1"}, "pooling must be one of"),
        ({"recipe": "best"}, "recipe must be one of 'auto', 'noise', 'paper'.*but got 'best'"),
    ],
)
def test_unknown_names(tiny_encoder, arguments, message):
    with pytest.raises(ValueError, match=message):
        build_model(tiny_encoder, **arguments)


def test_missing_encoder(tmp_path):
    with pytest.raises(FileNotFoundError, match="no encoder folder"):
        build_model(str(tmp_path / "nothing"))


def test_the_missions_own_line(tiny_encoder):
    bert, pooling, _ = build_model(tiny_encoder).children()
    model = SentenceTransformer(modules=[bert, pooling, FlowLayer(32)])
    assert model.get_embedding_dimension() == 32


def test_settings_of_the_encoder_are_kept(tiny_encoder):
    model = build_model(tiny_encoder, similarity_fn_name="euclidean", truncate_dim=8)
    assert (model.similarity_fn_name, model.truncate_dim) == ("euclidean", 8)
    with pytest.warns(UserWarning, match="compares by cosine"):
        assert build_model(tiny_encoder, similarity_fn_name="dot").similarity_fn_name == "cosine"


def test_options_that_cannot_be_used_are_refused(tiny_encoder):
    with pytest.raises(
        TypeError, match="poling: options of SentenceTransformer are taken with an id or a folder only"
    ):
        build_model(SentenceTransformer(tiny_encoder), poling="cls")


def test_the_default_pooling_in_place_of_the_encoders_own_gives_a_warning(tiny_encoder):
    own = encoder_before_flow(build_model(tiny_encoder, "cls"))
    with pytest.warns(UserWarning, match=r"own pooling is 'cls', and 'mean' takes its place.*--pooling cls"):
        build_model(own)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_model(own, "cls")
        build_model(own, "layer:1")


@pytest.mark.parametrize("mode", ["lasttoken", "weightedmean", ("mean", "max")])
def test_a_pooling_that_has_no_name_here_is_not_replaced_in_silence(tiny_encoder, mode):
    encoder = encoder_before_flow(build_model(tiny_encoder))
    own = SentenceTransformer(modules=[encoder[0], Pooling(encoder[0].get_embedding_dimension(), mode)])
    with pytest.warns(UserWarning, match=r"and 'mean' takes its place. To keep it, put the map behind it"):
        build_model(own)
    kept = SentenceTransformer(modules=[*own, FlowLayer(own.get_embedding_dimension())])
    np.testing.assert_array_equal(encoder_before_flow(kept).encode(TEXTS), own.encode(TEXTS))


@pytest.mark.parametrize("name", ["mean", "layer:1"])
def test_a_pooling_that_leaves_the_prompt_out_still_does(tiny_encoder, name):
    encoder = encoder_before_flow(build_model(tiny_encoder, name))
    encoder[-1].include_prompt = False
    own = SentenceTransformer(modules=list(encoder), prompts={"q": "harbour: "}, default_prompt_name="q")
    again = encoder_before_flow(build_model(own, name))
    without = own.encode(TEXTS)
    np.testing.assert_allclose(again.encode(TEXTS), without, atol=1e-6)
    own[-1].include_prompt = True
    assert not np.allclose(own.encode(TEXTS), without, atol=1e-3)
