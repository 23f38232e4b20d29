"""How much room a space leaves for a map, without labels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from scipy.linalg import cholesky, solve_triangular

from sbert_flow.fitting.statistics import moments, shrunk
from sbert_flow.fitting.surface import nuisance_moment
from sbert_flow.flows import surface_moment
from sbert_flow.measures import view_separation
from sbert_flow.modules.recipes import RECIPES


def mapped_separation(embeddings: np.ndarray, views: Mapping[str, np.ndarray]) -> float:
    """View separation (:func:`sbert_flow.measures.view_separation`) behind the surface map, apart from its own views.

    Each half of the edited sentences is measured behind a map whose W is of the other half, once with the half's own
    embeddings in T and once without: with few sentences the first is too high and the second too low. In the spaces of
    docs/should-i-use-it.md whose room is near the bounds of the advice, the mean of the four is the same within a
    quarter from 50 sentences on; where there is much room, little text shows less of it.

    Args:
        embeddings: of n sentences, shape (n, d); the first k are those that were edited.
        views: for each edit, embeddings of their views, shape (k, d).
    """
    rows, edited = torch.from_numpy(embeddings), {name: torch.from_numpy(view) for name, view in views.items()}
    count = len(next(iter(views.values())))
    halves = np.arange(count) < count // 2
    whole = moments(rows)
    found = []
    for held in (halves, ~halves):
        nuisance = nuisance_moment(rows[:count][~held], {name: view[~held] for name, view in edited.items()})
        apart = np.ones(len(rows), dtype=bool)
        apart[:count] = ~held
        for seen in (whole, moments(rows[apart])):
            total = shrunk(seen.covariance, seen.count)
            moment = surface_moment(total, nuisance, RECIPES["surface"].nuisance_weight)
            # Any root of the moment gives the same cosines, and a triangular one is cheap in thousands of dimensions.
            root, center = cholesky(moment.numpy(), lower=True), seen.mean.numpy()
            mapped = {name: _solved(root, view[held] - center) for name, view in views.items()}
            found.append(view_separation(_solved(root, embeddings[:count][held] - center), mapped))
    return float(np.mean(found))


def _solved(root: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return solve_triangular(root, rows.T, lower=True).T
