"""Frozen affine maps: set from statistics of the embeddings, never trained."""

from __future__ import annotations

import torch
from torch import Tensor

from sbert_flow.flows.bijection import Bijection


class FrozenAffine(Bijection):
    r"""Affine map with a fixed matrix and mean:

    .. math:: z = A (x - \mu), \qquad \log|\det| = \log|\det A|, \qquad x = A^{-1} z + \mu

    The identity until :meth:`set`.

    Args:
        width: number of dimensions d.
    """

    matrix: Tensor
    mean: Tensor
    log_abs_det: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("log_abs_det", torch.zeros(()))

    @property
    def is_set(self) -> bool:
        """Whether the map is another one than the identity."""
        eye = torch.eye(len(self.mean), device=self.mean.device)
        return bool(self.mean.any()) or not torch.equal(self.matrix, eye)

    def extra_repr(self) -> str:
        return str(len(self.mean))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x - self.mean) @ self.matrix.T, self.log_abs_det.expand(len(x))

    def inverse(self, z: Tensor) -> Tensor:
        return torch.linalg.solve(self.matrix, z.T).T + self.mean

    @torch.no_grad()
    def set(self, matrix: Tensor, mean: Tensor) -> None:
        """Set A (d, d) and mu (d,).

        Raises:
            ValueError: A is singular or not finite.
        """
        sign, log_abs_det = torch.linalg.slogdet(matrix.double())
        if sign == 0 or not torch.isfinite(log_abs_det):
            raise ValueError(
                "the matrix of an affine map must be finite and invertible, but it is singular or not finite."
            )
        self.matrix.copy_(matrix)
        self.mean.copy_(mean)
        self.log_abs_det.copy_(log_abs_det)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.matrix.copy_(torch.eye(len(self.mean)))
        self.mean.zero_()
        self.log_abs_det.zero_()


def inverse_square_root(matrix: Tensor) -> Tensor:
    """The symmetric A with A M A = I for a symmetric positive definite M (d, d), in float64.

    Raises:
        ValueError: M is not positive definite.
    """
    eigenvalues, vectors = torch.linalg.eigh(matrix.double())
    if not eigenvalues[0] > 0:
        raise ValueError(f"the matrix must be positive definite, but its smallest eigenvalue is {eigenvalues[0]:.3g}.")
    return vectors * eigenvalues.rsqrt() @ vectors.T


FLOOR = 0.1
"""Share of the mean variance that is added in every direction, so that none is blown up."""


def surface_moment(total: Tensor, nuisance: Tensor, weight: float) -> Tensor:
    """M = T + c W + 0.1 m I of :func:`surface_matrix`, in float64, shape (d, d)."""
    total, nuisance = total.double(), nuisance.double()
    mean_variance = total.trace() / len(total)
    eye = torch.eye(len(total), dtype=total.dtype, device=total.device)
    return total + weight * nuisance + FLOOR * mean_variance * eye


def surface_matrix(total: Tensor, nuisance: Tensor, weight: float) -> Tensor:
    r"""Matrix of the surface map, which divides out what changes when only the surface of a sentence does:

    .. math:: A = s\,(T + c W + 0.1\, m I)^{-1/2}, \qquad m = \operatorname{tr}(T) / d

    with the scale s that gives the embeddings' images a mean square of 1 per dimension. Dead dimensions of T and W
    stay dead: nothing is divided by their variance.

    Args:
        total: covariance T of the embeddings, shape (d, d).
        nuisance: W, the sum over edits of the second moments of f(edited) - f(sentence), shape (d, d).
        weight: c >= 0; 0 is whitening with a floor.

    Returns:
        float64, shape (d, d).
    """
    root = inverse_square_root(surface_moment(total, nuisance, weight))
    return root / ((root @ total.double() @ root).trace() / len(total)).sqrt()
