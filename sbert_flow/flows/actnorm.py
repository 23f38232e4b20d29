"""ActNorm: a scale and a shift per dimension, set from data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sbert_flow.flows.bijection import Bijection

LOG_SCALE_FACTOR = 3.0
"""The stored log-scales are multiplied by this, so that they learn faster than other weights (Kingma & Dhariwal)."""

DEAD_RATIO = 1e-3
"""A dimension is dead when its standard deviation is below this share of the median one."""


def live_dimensions(std: Tensor) -> Tensor:
    """Which dimensions vary: std >= 1e-3 x the median std.

    Encoders have dead dimensions: all-MiniLM-L6-v2 has three of 384 whose std is below 1e-8. Scaled to unit variance
    they would be rounding noise, blown up.

    Args:
        std: standard deviations, shape (d,).

    Returns:
        Booleans, shape (d,).
    """
    moving = std[
        std > DEAD_RATIO * DEAD_RATIO * std.max()
    ]  # the median must be that of a live one, however many are dead
    if len(moving) == 0:
        return torch.zeros_like(std, dtype=torch.bool)
    return std >= DEAD_RATIO * moving.median()


class ActNorm(Bijection):
    r"""Affine map of each dimension (Kingma & Dhariwal, "Glow", 2018):

    .. math:: y = \exp(g s) (x + b), \qquad \log|\det| = \sum_i g_i s_i

    with g = 3, and g = 0 in dimensions found dead at initialisation, whose scale therefore stays 1.

    Args:
        width: number of dimensions d.
    """

    gain: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(width))
        self.log_scale = nn.Parameter(torch.zeros(width))
        self.register_buffer("gain", torch.full((width,), LOG_SCALE_FACTOR))

    def extra_repr(self) -> str:
        return str(len(self.shift))

    def normalize(self, x: Tensor) -> Tensor:
        """Return y alone, for use inside a network, where no determinant is asked for."""
        return (x + self.shift) * (self.log_scale * self.gain).exp()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_scale = self.log_scale * self.gain
        return (x + self.shift) * log_scale.exp(), log_scale.sum().expand(len(x))

    def inverse(self, z: Tensor) -> Tensor:
        return z * (self.log_scale * -self.gain).exp() - self.shift

    @torch.no_grad()
    def initialize(self, x: Tensor) -> Tensor:
        """Give the sample ``x`` (n, d) zero mean and, in live dimensions, unit variance; return its image."""
        std, mean = torch.std_mean(x, dim=0, correction=0)
        live = live_dimensions(std)
        self.gain.copy_(LOG_SCALE_FACTOR * live)
        self.shift.copy_(-mean)
        self.log_scale.copy_(torch.where(live, std, 1).log() / -LOG_SCALE_FACTOR)  # where: log 0 never enters
        return self.normalize(x)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.gain.fill_(LOG_SCALE_FACTOR)
        self.shift.zero_()
        self.log_scale.zero_()
