"""Channel reversal: what BERT-flow uses where Glow has an invertible 1x1 convolution."""

from __future__ import annotations

from torch import Tensor

from sbert_flow.flows.bijection import Bijection


class Reverse(Bijection):
    r"""Reverse the order of the dimensions: :math:`y_i = x_{d+1-i}`; log-determinant 0, its own inverse."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.flip(-1), x.new_zeros(len(x))

    def inverse(self, z: Tensor) -> Tensor:
        return z.flip(-1)
