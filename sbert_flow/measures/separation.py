"""Whether a space tells a sentence said otherwise from another sentence."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

MOST_ROWS = 1000
"""Rows whose pairs are looked at: half a million pairs are enough for a mean and a standard deviation."""


def view_separation(embeddings: np.ndarray, views: Mapping[str, np.ndarray]) -> float:
    r"""How far the cosine of a sentence with its own edited view lies above that with another sentence:

    .. math:: \frac{E[\cos(x_i, v_i)] - E[\cos(x_i, x_j)]}{\operatorname{sd}[\cos(x_i, x_j)]}

    in standard deviations of the latter, averaged over the edits (the d' of signal detection); i and j run over all
    pairs. It needs no labels, and unlike the mean cosine or the spectrum it looks at what the space is for: small in a
    narrow cone, where all cosines are alike, and also in an isotropic space in which the order of the words counts for
    as much as their meaning.

    Args:
        embeddings: of n sentences, shape (n, d); of more than 1,000 the first are paired with each other.
        views: for each edit, the embeddings of the edited sentences, shape (n, d).

    Raises:
        ValueError: fewer than three rows, no views, views of another shape, or rows that are all alike.
    """
    if len(embeddings) < 3 or not views:
        raise ValueError(f"three embeddings and one edit are needed, but got {len(embeddings)} and {len(views)}.")
    x = _unit(embeddings)
    few = x[:MOST_ROWS]
    others = (few @ few.T)[np.triu_indices(len(few), 1)]
    spread = others.std()
    if not spread > 1e-12:
        raise ValueError(f"the {len(embeddings)} embeddings are all alike, so nothing can be told from them.")
    own = []
    for name, view in views.items():
        if np.shape(view) != np.shape(embeddings):
            raise ValueError(f"view {name!r} must have shape {np.shape(embeddings)}, but got {np.shape(view)}.")
        own.append((x * _unit(view)).sum(axis=1).mean())
    return float((np.mean(own) - others.mean()) / spread)


def _unit(rows: np.ndarray) -> np.ndarray:
    rows = np.asarray(rows, dtype=np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(min=1e-12)  # zero rows stay zero
