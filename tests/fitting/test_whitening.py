"""fit_whitening against closed forms, scikit-learn's estimators and the published recipe."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS

from sbert_flow import WhiteningLayer, build_model, fit_flow, fit_whitening
from sbert_flow.fitting.progress import Progress
from sbert_flow.fitting.whitening import oas_shrinkage
from sbert_flow.modules.pipeline import encoder_before_map


def correlated(rows: int, width: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(rows, width)) @ rng.normal(size=(width, width)) + 5 * rng.normal(size=width)).astype("f")


def published(x: np.ndarray, k: int | None = None) -> np.ndarray:
    """Su et al. (2021), their code's formula: W = U diag(1 / sqrt(s)) of the SVD of the covariance."""
    mean = x.mean(axis=0)
    u, s, _ = np.linalg.svd(np.cov(x.T, bias=True))
    return (x - mean) @ (u / np.sqrt(s))[:, :k]


@pytest.mark.parametrize("k", [None, 5])
def test_without_shrinkage_it_is_the_published_whitening(k):
    x = correlated(500, 12).astype("d")
    z = fit_whitening(embeddings=x, k=k, shrinkage=0.0).layer.latents(x).numpy()
    wanted = published(x, k)
    signs = np.sign((z * wanted).sum(axis=0))  # eigenvectors have no sign
    np.testing.assert_allclose(z, wanted * signs, atol=2e-4)


def test_the_latents_of_the_fitted_text_have_unit_covariance():
    x = correlated(3000, 20)
    z = fit_whitening(embeddings=x, shrinkage=0.0).layer.latents(x).numpy()
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(np.cov(z.T, bias=True), np.eye(20), atol=1e-4)


@pytest.mark.parametrize("rows", [30, 60, 1000])
def test_default_shrinkage_is_oas(rows):
    x = correlated(rows, 40)
    oas = OAS().fit(x)
    result = fit_whitening(embeddings=x)
    assert result.shrinkage == pytest.approx(oas.shrinkage_, rel=1e-4)
    precision = (result.layer.transform @ result.layer.transform.T).numpy()
    np.testing.assert_allclose(precision, oas.precision_, rtol=2e-3, atol=1e-3 * np.abs(oas.precision_).max())


def test_an_isotropic_covariance_is_shrunk_whole():
    assert oas_shrinkage(torch.eye(5, dtype=torch.float64), 100) == 1.0


def test_dead_dimensions_stay_out():
    x = correlated(400, 10)
    noisy = x.copy()
    noisy[:, [2, 7]] = 3 + 1e-9 * np.random.default_rng(1).normal(size=(400, 2))
    layer = fit_whitening(embeddings=noisy).layer
    z = layer.latents(noisy).numpy()
    assert not layer.transform[[2, 7]].any() and not z[:, 8:].any()
    alive = fit_whitening(embeddings=np.delete(x, [2, 7], axis=1)).layer.latents(np.delete(x, [2, 7], axis=1)).numpy()
    np.testing.assert_allclose(z[:, :8] @ z[:, :8].T, alive @ alive.T, atol=2e-2)


def test_sentences_are_read_as_a_stream_and_count_once(tiny_encoder, sentences):
    model = build_model(tiny_encoder, "layer:1", "whitening")
    assert isinstance(model[-1], WhiteningLayer)
    result = fit_whitening(model, iter([*sentences, *sentences[:50]]), show_progress_bar=False)
    assert result.rows == len(set(sentences))
    x = encoder_before_map(model).encode(list(dict.fromkeys(sentences)))
    np.testing.assert_allclose(model.encode(sentences), fit_whitening(embeddings=x).layer.latents(x), atol=1e-3)


def test_a_flow_uses_the_embeddings_in_its_store(tiny_encoder, sentences, tmp_path):
    fit_whitening(
        build_model(tiny_encoder, recipe="whitening"),
        sentences,
        store=tmp_path,
        dtype="float16",
        show_progress_bar=False,
    )
    [array] = tmp_path.rglob("embeddings-*.npy")
    said = io.StringIO()
    fit_flow(
        build_model(tiny_encoder), sentences, recipe="noise", store=tmp_path, dtype="float16",
        progress=Progress("json", said),
    )  # fmt: skip
    assert list(tmp_path.rglob("embeddings-*.npy")) == [array] and "Encoding" not in said.getvalue()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either sentences or embeddings"),
        ({"embeddings": np.ones((20, 4))}, "all 20 embeddings are equal"),
        ({"embeddings": correlated(10, 4)}, "at least 16"),
        ({"embeddings": np.full((20, 4), np.nan)}, "NaN"),
        ({"embeddings": correlated(20, 4), "shrinkage": 1.5}, "from 0 to 1"),
        ({"embeddings": correlated(20, 40), "shrinkage": 0.0}, "cannot be whitened"),
        ({"embeddings": correlated(20, 4), "k": 5}, "from 1 to 4"),
        ({"embeddings": correlated(20, 4), "model": WhiteningLayer(4), "k": 2}, "property of the layer"),
        ({"model": WhiteningLayer(4), "sentences": ["a"]}, "SentenceTransformer"),
        ({"embeddings": correlated(20, 5), "model": WhiteningLayer(4)}, "shape"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        fit_whitening(**arguments)


@pytest.mark.parametrize("bad", ["one string", ["a", 3] * 20, ["same"] * 40])
def test_bad_sentences(tiny_encoder, bad):
    model = build_model(tiny_encoder, recipe="whitening")
    with pytest.raises(ValueError, match=r"strings|different sentences"):
        fit_whitening(model, bad, show_progress_bar=False)
