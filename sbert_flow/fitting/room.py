"""How much room a space leaves for a map, without labels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from sbert_flow.fitting.statistics import moments, shrunk
from sbert_flow.fitting.surface import nuisance_moment
from sbert_flow.flows import surface_matrix
from sbert_flow.measures import view_separation
from sbert_flow.modules.recipes import RECIPES


def mapped_separation(embeddings: np.ndarray, views: Mapping[str, np.ndarray]) -> float:
    """View separation (:func:`sbert_flow.measures.view_separation`) behind the surface map, apart from its own views.

    Each half of the edited sentences is measured behind a map whose W is of the other half, once with the half's own
    embeddings in T and once without: the first is too high, the second too low, by much if there are few sentences.
    The mean of the four hardly depends on their number.

    Args:
        embeddings: of n sentences, shape (n, d); the first k are those that were edited.
        views: for each edit, embeddings of their views, shape (k, d).
    """
    rows, edited = torch.from_numpy(embeddings), {name: torch.from_numpy(view) for name, view in views.items()}
    count = len(next(iter(views.values())))
    halves = np.arange(count) < count // 2
    found = []
    for held in (halves, ~halves):
        nuisance = nuisance_moment(rows[:count][~held], {name: view[~held] for name, view in edited.items()})
        apart = np.ones(len(rows), dtype=bool)
        apart[:count] = ~held
        for seen in (moments(rows), moments(rows[apart])):
            total = shrunk(seen.covariance, seen.count)
            matrix = surface_matrix(total, nuisance, RECIPES["surface"].nuisance_weight).numpy()
            center = seen.mean.numpy()
            mapped = {name: (view[held] - center) @ matrix for name, view in views.items()}
            found.append(view_separation((embeddings[:count][held] - center) @ matrix, mapped))
    return float(np.mean(found))
