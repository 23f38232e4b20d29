"""Measures of the spectrum against closed forms and the published definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import ortho_group

from sbert_flow.measures import (
    effective_rank,
    eigenvalue_spectrum,
    iso_score,
    participation_ratio,
    population_participation_ratio,
)

MEASURES = (eigenvalue_spectrum, participation_ratio, effective_rank, iso_score)


def points_with_variances(variances: np.ndarray, n: int = 400, seed: int = 0) -> np.ndarray:
    """Rows whose covariance has exactly the given eigenvalues, rotated and moved away from the origin."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(np.column_stack([np.ones(n), rng.normal(size=(n, len(variances)))]))[0][:, 1:]
    rotation = ortho_group.rvs(len(variances), random_state=seed)
    return basis * np.sqrt(n * variances) @ rotation + rng.normal(size=len(variances))


def published_iso_score(points: np.ndarray) -> float:
    """The paper's algorithm step by step (Rudman et al. 2022, section 4)."""
    n = points.shape[1]
    variances = np.linalg.svd(points - points.mean(axis=0), compute_uv=False) ** 2 / (len(points) - 1)
    normalised = math.sqrt(n) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(normalised - np.ones(n)) / math.sqrt(2 * (n - math.sqrt(n)))
    used_share = (n - defect**2 * (n - math.sqrt(n))) ** 2 / n**2
    return (n * used_share - 1) / (n - 1)


VARIANCES = np.array([9.0, 4.0, 1.0, 0.5, 0.5, 0.0])


def test_spectrum_is_that_of_the_points() -> None:
    np.testing.assert_allclose(eigenvalue_spectrum(points_with_variances(VARIANCES)), VARIANCES, atol=1e-10)


def test_participation_ratio_and_effective_rank_closed_forms() -> None:
    points = points_with_variances(VARIANCES)
    assert participation_ratio(points) == pytest.approx(15**2 / (81 + 16 + 1 + 0.25 + 0.25))
    p = VARIANCES[:5] / 15
    assert effective_rank(points) == pytest.approx(math.prod(q**-q for q in p))


@pytest.mark.parametrize(("used", "d"), [(1, 5), (3, 8), (8, 8)])
def test_equal_variances_in_some_directions(used: int, d: int) -> None:
    points = points_with_variances(np.array([2.0] * used + [0.0] * (d - used)))
    assert participation_ratio(points) == pytest.approx(used)
    assert effective_rank(points) == pytest.approx(used, abs=1e-6)
    assert iso_score(points) == pytest.approx((used - 1) / (d - 1), abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_iso_score_is_the_published_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(200, 12)) * rng.gamma(0.5, size=12) + 3
    assert iso_score(points) == pytest.approx(published_iso_score(points), abs=1e-12)


@pytest.mark.parametrize("measure", [participation_ratio, effective_rank, iso_score])
def test_unchanged_by_scale_mean_and_rotation(measure) -> None:
    points = points_with_variances(VARIANCES)
    moved = (7 * points + 100) @ ortho_group.rvs(6, random_state=5)
    assert measure(moved) == pytest.approx(measure(points), rel=1e-6)


def test_order_of_the_measures() -> None:
    points = np.random.default_rng(1).normal(size=(50, 10)) * np.arange(1, 11)
    assert 1 < participation_ratio(points) < effective_rank(points) < 10


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros(4), "shape"),
        (np.zeros((1, 4)), "shape"),
        (np.full((20, 4), 0.1), "equal"),
        (np.array([[0.0, 1.0], [np.nan, 2.0]]), "NaN"),
    ],
)
def test_bad_input(measure, bad: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure(bad)


def test_float16_does_not_overflow() -> None:
    points = (1000 * points_with_variances(VARIANCES)).astype(np.float16)
    assert participation_ratio(points) == pytest.approx(participation_ratio(points.astype(np.float64)))


def test_participation_ratio_of_the_population_does_not_depend_on_the_sample() -> None:
    scales = np.linspace(0.5, 2, 60)
    expected = np.square(scales**2).sum() ** -1 * (scales**2).sum() ** 2
    rng = np.random.default_rng(0)
    for rows in (40, 80, 400):
        samples = [rng.normal(size=(rows, 60)) * scales + 3 for _ in range(60)]
        estimates = [population_participation_ratio(x) for x in samples]
        assert np.median(estimates) == pytest.approx(expected, rel=0.06)
        assert np.mean([participation_ratio(x) for x in samples]) < expected * rows / (rows + expected / 2)


def test_participation_ratio_of_the_population_stays_in_its_range() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        assert 1 <= population_participation_ratio(rng.normal(size=(3, 40))) <= 40
    line = np.outer(np.arange(10.0), np.ones(5))
    assert population_participation_ratio(line) == pytest.approx(1, rel=0.3)
    with pytest.raises(ValueError, match="n >= 3"):
        population_participation_ratio(np.eye(2))
