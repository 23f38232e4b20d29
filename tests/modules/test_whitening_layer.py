from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from sbert_flow import WhiteningLayer, build_model, fit_whitening, load
from sbert_flow.modules import save

TEXTS = ["A red boat.", "The harbour was quiet after the storm had passed.", "", "Seven geese"]


@pytest.fixture
def model(tiny_encoder, sentences):
    model = build_model(tiny_encoder, recipe="whitening")
    fit_whitening(model, sentences, show_progress_bar=False)
    return model


@pytest.mark.parametrize("k", [None, 7])
def test_saves_and_loads_by_either_way(tiny_encoder, sentences, tmp_path, k):
    parts = list(build_model(tiny_encoder))[:-1]
    model = SentenceTransformer(modules=[*parts, WhiteningLayer(32, k)])
    fit_whitening(model, sentences, show_progress_bar=False)
    before = model.encode(TEXTS)
    assert before.shape == (4, k or 32) and model.get_embedding_dimension() == (k or 32)
    save(model, tmp_path / "model")
    modules = json.loads((tmp_path / "model" / "modules.json").read_text())
    assert modules[-1]["type"] == "sbert_flow.modules.whitening_layer.WhiteningLayer"
    np.testing.assert_array_equal(load(tmp_path / "model").encode(TEXTS), before)
    trusted = SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True)
    np.testing.assert_array_equal(trusted.encode(TEXTS), before)
    assert not list((tmp_path / "model").rglob("*.bin"))


@pytest.mark.parametrize("cast", [lambda m: m.half(), lambda m: m.to(torch.bfloat16), lambda m: m.double()])
def test_computes_in_float32_and_returns_the_encoders_dtype(model, cast):
    layer = cast(model)[-1]
    assert layer.transform.dtype == layer.mean.dtype == torch.float32
    dtype = next(model[0].parameters()).dtype
    x = torch.randn(3, 32, dtype=dtype)
    out = layer({"sentence_embedding": x})["sentence_embedding"]
    assert out.dtype == dtype
    torch.testing.assert_close(out, layer.latents(x.float()).to(dtype))


def test_warns_when_never_fitted(tiny_encoder):
    with pytest.warns(UserWarning, match="fit_whitening"):
        build_model(tiny_encoder, recipe="whitening").encode(TEXTS)


def test_bad_arguments_and_widths(model):
    with pytest.raises(ValueError, match=">= 2"):
        WhiteningLayer(1)
    for k in (0, 33, 2.5, True):
        with pytest.raises(ValueError, match="k must be"):
            WhiteningLayer(32, k)
    with pytest.raises(ValueError, match=r"WhiteningLayer\(8\)"):
        model[-1]({"sentence_embedding": torch.zeros(2, 8)})
    with pytest.raises(ValueError, match="not first"):
        SentenceTransformer(modules=[WhiteningLayer(4)])


def test_damaged_files_are_named(model, tmp_path):
    save(model, tmp_path / "model")
    [weights] = (tmp_path / "model").glob("*_WhiteningLayer/model.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(OSError, match=r"whitening's weights .* damaged"):
        load(tmp_path / "model")
    weights.unlink()
    with pytest.raises(OSError, match=r"No model\.safetensors"):
        load(tmp_path / "model")


def test_a_dot_product_model_is_warned_about(tiny_encoder):
    encoder = SentenceTransformer(tiny_encoder, similarity_fn_name="dot")
    with pytest.warns(UserWarning, match="dot product"):
        model = build_model(encoder)
    assert model.similarity_fn_name == "cosine"
    parts = [encoder[0], Pooling(32, "mean"), WhiteningLayer(32)]
    with pytest.warns(UserWarning, match="dot product"):
        SentenceTransformer(modules=parts, similarity_fn_name="dot")
