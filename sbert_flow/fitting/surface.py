"""Statistics of the surface map: the embeddings' covariance, and how they move when only the surface changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from sbert_flow.fitting.embedding_set import EmbeddingSet
from sbert_flow.fitting.sampling import HELD_OUT_FROM, held_out
from sbert_flow.fitting.statistics import moments, shrunk
from sbert_flow.fitting.store import EmbeddingStore
from sbert_flow.flows import surface_matrix, surface_moment
from sbert_flow.modules import FlowLayer
from sbert_flow.views import Edit, editable, make_views, surface_edits

VIEWED_SENTENCES = 1000
"""Sentences that are edited and encoded again; 3,000 gain nothing on STS, 300 cost about .3 points, 100 about 1."""

MIN_VIEWED_SENTENCES = 16
WORD_SENTENCES = 20_000
"""Sentences of a store from which function words are estimated and the edited ones are drawn."""


def nuisance_moment(originals: Tensor, views: Mapping[str, Tensor]) -> Tensor:
    r"""W: the sum over edits of the second moment, not centred, of f(view) - f(sentence), in float64.

    Args:
        originals: embeddings of the sentences, shape (n, d).
        views: for each edit, the embeddings of their views, shape (n, d).

    Returns:
        Shape (d, d).
    """
    differences = [moments(view - originals) for view in views.values()]
    return torch.stack([seen.covariance + torch.outer(seen.mean, seen.mean) for seen in differences]).sum(dim=0)


def estimate_nuisance(
    encoder: SentenceTransformer,
    sentences: Iterable[str],
    edits: Mapping[str, Edit] | None = None,
    *,
    seed: int = 0,
    batch_size: int = 32,
) -> Tensor:
    """Edit up to 1,000 of the sentences, encode them before and after, and return W, see :func:`nuisance_moment`.

    Args:
        encoder: the model up to where the map begins.
        sentences: the text; at least 16 of them must have four words or more.
        edits: None takes :func:`sbert_flow.views.surface_edits` of the sentences.
        seed: of the sample and of the edits.
        batch_size: of the encoder.

    Raises:
        ValueError: too few sentences of four words, separated by spaces; an edit failed.
    """
    sentences = list(sentences)
    chosen, views = viewed(sentences, edits, seed)

    def encode(texts: list[str]) -> Tensor:
        return encoder.encode(texts, batch_size=batch_size, convert_to_tensor=True, show_progress_bar=False).float()

    return nuisance_moment(encode(chosen), {name: encode(texts) for name, texts in views.items()})


def nuisance_of_store(
    store: EmbeddingStore,
    encoder: SentenceTransformer,
    edits: Mapping[str, Edit] | None,
    seed: int,
    dtype: str,
    batch_size: int,
    bf16: bool,
) -> Tensor:
    """W of a store's sentences, see :func:`estimate_nuisance`; the embeddings of the views stay in the store."""
    numbers = store.sample(WORD_SENTENCES, seed).tolist()
    sentences = store.at(numbers)
    chosen, views = viewed(sentences, edits, seed)
    number = dict(zip(sentences, numbers, strict=True))
    rows = [number[sentence] for sentence in chosen]

    def embed(name: str, texts: list[str]) -> Tensor:
        # The name holds what the views say: edits of the user's are functions and cannot be compared.
        digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
        view = dict(zip(chosen, texts, strict=True)).__getitem__
        found = store.embed(
            encoder, name=f"view-{name}-{digest}", edit=view, rows=rows, dtype=dtype, batch_size=batch_size, bf16=bf16
        )
        return torch.from_numpy(found[:].astype("float32"))

    return nuisance_moment(embed("none", chosen), {name: embed(name, texts) for name, texts in views.items()})


def viewed(
    sentences: list[str], edits: Mapping[str, Edit] | None, seed: int, count: int = VIEWED_SENTENCES
) -> tuple[list[str], dict[str, list[str]]]:
    """The sentences that are edited, and for each edit their views; with the user's ``edits`` any sentence will do.

    Raises:
        ValueError: too few sentences of four words, separated by spaces; an edit failed.
    """
    if edits is not None:  # the user's need no words
        chosen = editable(sentences, count, seed, least_words=0)
        return chosen, make_views(chosen, edits, seed)
    chosen = editable(sentences, count, seed)
    if len(chosen) < MIN_VIEWED_SENTENCES:
        raise ValueError(
            f"the surface map edits sentences of at least four words separated by spaces, and only {len(chosen)} of "
            f"{len(sentences)} are such; {MIN_VIEWED_SENTENCES} are needed. Recipe 'noise' needs no words."
        )
    return chosen, make_views(chosen, surface_edits(sentences), seed)


def check_nuisance(nuisance: Any, layer: FlowLayer) -> Tensor:
    """Return W as a float64 tensor.

    Raises:
        ValueError: it does not fit the layer's width, is not finite or not symmetric.
    """
    width = layer.embedding_dimension
    moment = torch.as_tensor(nuisance, dtype=torch.float64)
    if moment.shape != (width, width) or not bool(torch.isfinite(moment).all()):
        raise ValueError(f"nuisance must be finite and of shape {(width, width)}, but got {tuple(moment.shape)}.")
    if not torch.allclose(moment, moment.T, rtol=1e-4, atol=1e-6 * float(moment.abs().max())):
        raise ValueError("nuisance is a second moment, so it must be symmetric, but it differs from its transpose.")
    return moment


def surface_front(embeddings: Tensor | EmbeddingSet, nuisance: Tensor, weight: float) -> tuple[Tensor, Tensor, Tensor]:
    """Arguments of :meth:`FlowLayer.set_front` for the surface map of embeddings (n, d), with W and its weight c.

    T is shrunk (:func:`sbert_flow.fitting.statistics.shrunk`), and rows that are held out do not count.
    """
    rows, width = embeddings.shape
    seen = moments(embeddings, leave_out=held_out if rows >= HELD_OUT_FROM else None)
    if not seen.std.max() > 0:
        raise ValueError(f"all {rows} embeddings are equal, so there is nothing to fit. Look at encoder and pooling.")
    total = shrunk(seen.covariance, seen.count)
    matrix = surface_matrix(total, nuisance, weight)
    square_scale = (matrix @ surface_moment(total, nuisance, weight) @ matrix).trace() / width
    return matrix, seen.mean, matrix @ total @ matrix / square_scale
