"""Mean and covariance of any number of rows, in one pass and in memory for d x d numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor


class StreamingMoments:
    r"""Mean and covariance accumulated block by block in float64.

    Each block is centred on its own mean before it is squared, and blocks are combined by

    .. math:: M = M_a + M_b + \frac{n_a n_b}{n_a + n_b} (\mu_b - \mu_a)(\mu_b - \mu_a)^T

    (Chan, Golub and LeVeque, 1979), so that a mean far from zero costs no digits. Read the mean and covariance at any
    time; feed it with ``for block in embedding_set.blocks(): moments.update(block)``.

    Args:
        width: d, the number of columns.

    Attributes:
        count: rows seen, n.
        mean: shape (d,), float64.
        scatter: sum of the outer products of the centred rows, shape (d, d), float64.
    """

    def __init__(self, width: int) -> None:
        self.count = 0
        self.mean = torch.zeros(width, dtype=torch.float64)
        self.scatter = torch.zeros(width, width, dtype=torch.float64)

    def update(self, rows: Any) -> Self:
        """Add rows, shape (n, d), tensor or array.

        Raises:
            ValueError: another shape.
        """
        block = torch.as_tensor(rows)
        if block.ndim != 2 or block.shape[1] != len(self.mean):
            raise ValueError(f"rows must have shape (n, {len(self.mean)}), but got {tuple(block.shape)}.")
        if len(block) == 0:
            return self
        block = block.to("cpu", torch.float64)
        mean = block.mean(dim=0)
        centred = block - mean
        self._combine(len(block), mean, centred.T @ centred)
        return self

    def merge(self, other: StreamingMoments) -> Self:
        """Add the rows that ``other`` has seen, of another process for instance."""
        self._combine(other.count, other.mean, other.scatter)
        return self

    @property
    def covariance(self) -> Tensor:
        """Covariance with divisor n, shape (d, d), float64.

        Raises:
            ValueError: no rows so far.
        """
        if not self.count:
            raise ValueError("no rows were given, so they have no covariance.")
        return self.scatter / self.count

    @property
    def std(self) -> Tensor:
        """Standard deviation of each column with divisor n, shape (d,), float64."""
        return self.covariance.diagonal().sqrt()

    def _combine(self, count: int, mean: Tensor, scatter: Tensor) -> None:
        if count:
            total = self.count + count
            shift = mean - self.mean
            self.scatter += scatter + torch.outer(shift, shift) * (self.count * count / total)
            self.mean += shift * (count / total)
            self.count = total


def shrunk(covariance: Tensor, rows: int) -> Tensor:
    r"""A covariance (d, d) of ``rows`` n, drawn towards a multiple of the identity with its trace:

    .. math:: (1 - \rho) T + \rho \frac{\operatorname{tr} T}{d} I, \qquad \rho = \frac{d}{d + n}

    The fewer the rows, the more of its directions are chance.
    """
    width = len(covariance)
    rho = width / (width + rows)
    return (1 - rho) * covariance + rho * covariance.trace() / width * torch.eye(width, dtype=covariance.dtype)


def moments(
    rows: Any, block_rows: int = 8192, leave_out: Callable[[Tensor], Tensor] | None = None
) -> StreamingMoments:
    """Moments of anything with ``len``, a ``shape`` (n, d) and slices: array, memory map, tensor, EmbeddingSet.

    Args:
        rows: the rows.
        block_rows: how many are in memory at a time.
        leave_out: says of row numbers which of them do not count, as booleans.
    """
    accumulated = StreamingMoments(rows.shape[1])
    for start in range(0, len(rows), block_rows):
        block = rows[start : start + block_rows]
        block = block if isinstance(block, Tensor) else torch.from_numpy(np.array(block))  # a copy: maps are read-only
        if leave_out is not None:
            block = block[~leave_out(torch.arange(start, start + len(block))).to(block.device)]
        accumulated.update(block)
    return accumulated
