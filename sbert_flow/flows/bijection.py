"""The contract of an invertible map."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class Bijection(nn.Module, ABC):
    """An invertible map R^d -> R^d in float32 or float64, the same in training and in use."""

    @abstractmethod
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map ``x`` (n, d) to ``(z, log_det)``: z of shape (n, d) and ``log |det dz/dx|`` of each row, (n,)."""

    @abstractmethod
    def inverse(self, z: Tensor) -> Tensor:
        """Return the x of shape (n, d) with ``forward(x)[0] == z``."""

    @torch.no_grad()
    def initialize(self, x: Tensor) -> Tensor:
        """Set whatever depends on data from the sample ``x`` (n, d) and return the image of ``x``.

        The default has nothing to set.
        """
        return self(x)[0]

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the parameters anew, as at construction. The default has none."""
        return None


class Composition(Bijection):
    r"""Bijections one after the other: :math:`f = f_k \circ \dots \circ f_1`; the log-determinants add up.

    Args:
        bijections: the maps, first applied first.
    """

    def __init__(self, *bijections: Bijection) -> None:
        super().__init__()
        for index, bijection in enumerate(bijections):
            self.add_module(str(index), bijection)

    def __iter__(self) -> Iterator[Bijection]:
        return iter(self._modules.values())  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_det = x.new_zeros(len(x))
        for bijection in self:
            x, term = bijection(x)
            log_det = log_det + term
        return x, log_det

    def inverse(self, z: Tensor) -> Tensor:
        for bijection in reversed(list(self)):
            z = bijection.inverse(z)
        return z

    @torch.no_grad()
    def initialize(self, x: Tensor) -> Tensor:
        for bijection in self:
            x = bijection.initialize(x)
        return x

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for bijection in self:
            bijection.reset_parameters(generator)
