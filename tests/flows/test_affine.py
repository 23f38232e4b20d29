"""Frozen affine maps and the matrix of the surface map against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import fractional_matrix_power

from sbert_flow.flows import FrozenAffine, inverse_square_root, surface_matrix


def random_covariance(d: int, seed: int = 0) -> torch.Tensor:
    x = torch.randn(5 * d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = x * torch.linspace(0.1, 3, d, dtype=torch.float64)
    return x.T @ x / len(x)


def test_forward_inverse_and_log_det() -> None:
    generator = torch.Generator().manual_seed(0)
    affine = FrozenAffine(7).double()
    matrix, mean = torch.randn(7, 7, generator=generator).double(), torch.randn(7, generator=generator).double()
    affine.set(matrix, mean)
    x = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    z, log_det = affine(x)
    torch.testing.assert_close(z, torch.stack([matrix @ (row - mean) for row in x]))
    torch.testing.assert_close(affine.inverse(z), x)
    jacobian = torch.autograd.functional.jacobian(lambda row: affine(row[None])[0][0], x[0])
    torch.testing.assert_close(log_det, torch.linalg.slogdet(jacobian)[1].expand(5))


def test_identity_until_set_and_after_reset() -> None:
    affine = FrozenAffine(4)
    x = torch.randn(3, 4)
    assert torch.equal(affine(x)[0], x)
    affine.set(2 * torch.eye(4), torch.ones(4))
    assert not torch.equal(affine(x)[0], x)
    affine.reset_parameters()
    assert torch.equal(affine(x)[0], x) and affine.log_abs_det == 0


def test_nothing_to_train_and_shapes_fixed_at_construction() -> None:
    affine = FrozenAffine(6)
    shapes = {name: value.shape for name, value in affine.state_dict().items()}
    affine.set(random_covariance(6), torch.ones(6))
    assert {name: value.shape for name, value in affine.state_dict().items()} == shapes
    assert list(affine.parameters()) == []


@pytest.mark.parametrize("bad", [torch.zeros(3, 3), torch.full((3, 3), torch.nan)])
def test_singular_matrix(bad: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="invertible"):
        FrozenAffine(3).set(bad, torch.zeros(3))


def test_inverse_square_root() -> None:
    matrix = random_covariance(6)
    root = inverse_square_root(matrix)
    torch.testing.assert_close(root @ matrix @ root, torch.eye(6, dtype=torch.float64))
    np.testing.assert_allclose(root, fractional_matrix_power(matrix.numpy(), -0.5), atol=1e-10)
    with pytest.raises(ValueError, match="positive definite"):
        inverse_square_root(torch.diag(torch.tensor([1.0, 0.0])))


def test_surface_matrix_is_the_formula_up_to_scale() -> None:
    total, nuisance = random_covariance(5), random_covariance(5, seed=1)
    matrix = surface_matrix(total, nuisance, 10)
    formula = fractional_matrix_power((total + 10 * nuisance + 0.1 * total.trace() / 5 * torch.eye(5)).numpy(), -0.5)
    np.testing.assert_allclose(matrix / matrix.trace(), formula / formula.trace(), atol=1e-12)
    assert (matrix @ total @ matrix).trace().item() / 5 == pytest.approx(1)


def test_surface_matrix_shrinks_the_direction_that_the_edits_move() -> None:
    nuisance = torch.zeros(4, 4)
    nuisance[2, 2] = 5
    matrix = surface_matrix(torch.eye(4), nuisance, 10)
    gains = matrix.diagonal() / matrix[0, 0]
    torch.testing.assert_close(gains, torch.tensor([1, 1, (1.1 / 51.1) ** 0.5, 1], dtype=torch.float64))


def test_dead_dimensions_are_not_blown_up() -> None:
    total = torch.diag(torch.tensor([1.0, 2.0, 1e-16, 0.0]))
    matrix = surface_matrix(total, torch.zeros(4, 4), 10)
    assert torch.isfinite(matrix).all()
    assert matrix[3, 3] < 5 * matrix[0, 0]
