from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sbert_flow.fitting.statistics import StreamingMoments, moments


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 1000))
def test_equals_numpy_on_all_rows_at_once(sizes: list[int], seed: int) -> None:
    blocks = [np.random.default_rng([seed, index]).normal(size=(size, 3)) for index, size in enumerate([2, *sizes])]
    rows = np.concatenate(blocks)
    accumulated = StreamingMoments(3)
    for block in blocks:
        accumulated.update(block)
    assert accumulated.count == len(rows)
    np.testing.assert_allclose(accumulated.mean, rows.mean(0), atol=1e-14)
    np.testing.assert_allclose(accumulated.covariance, np.cov(rows.T, bias=True), atol=1e-14)
    np.testing.assert_allclose(accumulated.std, rows.std(0), atol=1e-14)


def test_far_from_zero_no_digits_are_lost() -> None:
    rows = np.random.default_rng(0).normal(size=(1000, 4))
    far = moments(rows + 1e7, block_rows=64)
    # Products of uncentred values of 1e14 would leave two digits of it.
    np.testing.assert_allclose(far.covariance, np.cov(rows.T, bias=True), rtol=1e-6, atol=1e-7)


def test_merged_parts_are_the_whole() -> None:
    rows = torch.randn(100, 5, generator=torch.Generator().manual_seed(0)) + 3
    parts = moments(rows[:30]).merge(moments(rows[30:])).merge(StreamingMoments(5))
    torch.testing.assert_close(parts.covariance, moments(rows).covariance)
    torch.testing.assert_close(parts.mean, rows.double().mean(0))


def test_wrong_shape_and_nothing_at_all() -> None:
    with pytest.raises(ValueError, match=r"shape \(n, 5\).*\(2, 4\)"):
        StreamingMoments(5).update(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="no rows"):
        _ = StreamingMoments(5).covariance
