"""Statistics of the surface map: the embeddings' covariance, and how they move when only the surface changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from sbert_flow.fitting.statistics import moments
from sbert_flow.flows import surface_matrix
from sbert_flow.views import Edit, editable, make_views, surface_edits

VIEWED_SENTENCES = 3000
"""Sentences that are edited and encoded again; 300 cost about .3 points on STS, 100 about 1."""

MIN_VIEWED_SENTENCES = 16


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
    show_progress_bar: bool = False,
) -> Tensor:
    """Edit up to 3,000 of the sentences, encode them before and after, and return W, see :func:`nuisance_moment`.

    Args:
        encoder: the model up to where the map begins.
        sentences: the text; at least 16 of them must have four words or more.
        edits: None takes :func:`sbert_flow.views.surface_edits` of the sentences.
        seed: of the sample and of the edits.
        batch_size: of the encoder.
        show_progress_bar: of the encoder.

    Raises:
        ValueError: too few sentences of four words, separated by spaces; an edit failed.
    """
    sentences = list(sentences)
    chosen = editable(sentences, VIEWED_SENTENCES, seed)
    if len(chosen) < MIN_VIEWED_SENTENCES:
        raise ValueError(
            f"the surface map edits sentences of at least four words separated by spaces, and only {len(chosen)} of "
            f"{len(sentences)} are such; {MIN_VIEWED_SENTENCES} are needed. Recipe 'noise' needs no words."
        )
    views = make_views(chosen, surface_edits(sentences) if edits is None else edits, seed)
    encoded = {
        name: encoder.encode(
            texts, batch_size=batch_size, convert_to_tensor=True, show_progress_bar=show_progress_bar
        ).float()
        for name, texts in {"": chosen, **views}.items()
    }
    return nuisance_moment(encoded.pop(""), encoded)


def check_nuisance(nuisance: Any, width: int) -> Tensor:
    """Return W as a float64 tensor.

    Raises:
        ValueError: another shape than (width, width), or not finite.
    """
    moment = torch.as_tensor(nuisance, dtype=torch.float64)
    if moment.shape != (width, width) or not bool(torch.isfinite(moment).all()):
        raise ValueError(f"nuisance must be finite and of shape {(width, width)}, but got {tuple(moment.shape)}.")
    return moment


def surface_front(embeddings: Tensor, nuisance: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """Matrix (d, d) and mean (d,) of the surface map for embeddings (n, d), with W and its weight c."""
    seen = moments(embeddings)
    return surface_matrix(seen.covariance, nuisance, weight), seen.mean
