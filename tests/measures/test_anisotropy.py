from __future__ import annotations

import numpy as np
import pytest

from sbert_flow.measures import mean_cosine


def test_against_all_pairs_written_out():
    x = np.random.default_rng(0).normal(size=(40, 7)) + 1
    x[3] = 0  # left out
    unit = np.delete(x, 3, axis=0)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[np.triu_indices(39, k=1)]
    assert mean_cosine(x) == pytest.approx(cosines.mean(), abs=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite(bad):
    x = np.ones((5, 3))
    x[2, 1] = bad
    with pytest.raises(ValueError, match="1 of 5 embeddings hold NaN or infinity"):
        mean_cosine(x)


def test_too_few():
    with pytest.raises(ValueError, match="at least two embeddings other than zero are needed, but got 1"):
        mean_cosine(np.eye(3)[:1])
