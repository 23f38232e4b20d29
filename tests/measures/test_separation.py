"""View separation against a closed form."""

from __future__ import annotations

import numpy as np
import pytest

from sbert_flow.measures import view_separation


def test_closed_form_on_the_sphere() -> None:
    """Views at a fixed angle to isotropic rows: (cos(angle) - 0) / (1 / sqrt(d))."""
    rng = np.random.default_rng(0)
    d, angle = 64, 0.6
    x = rng.normal(size=(4000, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    away = rng.normal(size=x.shape)
    away -= (away * x).sum(axis=1, keepdims=True) * x
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    views = {"same": 3 * x, "turned": np.cos(angle) * x + np.sin(angle) * away}
    expected = (1 + np.cos(angle)) / 2 * np.sqrt(d)
    assert view_separation(x, views) == pytest.approx(expected, rel=0.03)


def test_a_common_direction_does_not_change_the_order_but_the_separation() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2000, 30))
    noise = 0.3 * rng.normal(size=x.shape)
    uneven = np.array([8.0] + [1.0] * 29)
    assert view_separation(x * uneven, {"a": (x + noise) * uneven}) < 0.5 * view_separation(x, {"a": x + noise})


@pytest.mark.parametrize(
    ("x", "views", "message"),
    [
        (np.eye(2), {"a": np.eye(2)}, "three embeddings"),
        (np.eye(4), {}, "one edit"),
        (np.arange(12.0).reshape(4, 3), {"a": np.eye(3)}, "'a' must have shape"),
        (np.ones((5, 3)), {"a": np.ones((5, 3))}, "all alike"),
    ],
)
def test_bad_input(x: np.ndarray, views: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        view_separation(x, views)
