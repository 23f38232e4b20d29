"""Coupling: one half of the dimensions moves the other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sbert_flow.flows.actnorm import LOG_SCALE_FACTOR, ActNorm
from sbert_flow.flows.bijection import Bijection

INITIAL_STD = 0.05


def split_sizes(width: int) -> tuple[int, int]:
    """The two parts of ``width`` channels: ceil(width / 2) and the rest. Odd widths have a larger first part."""
    return (width + 1) // 2, width // 2


class CouplingNetwork(nn.Module):
    r"""t: R^a -> R^b, zero at construction, so that a coupling starts as the identity.

    Linear (no bias) -> ActNorm -> ReLU -> Linear (no bias) -> ActNorm -> ReLU -> Linear, times exp(3 s).

    Args:
        inputs: a.
        hidden: width of the two hidden layers.
        outputs: b.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(inputs, hidden, bias=False)
        self.norm1 = ActNorm(hidden)
        self.linear2 = nn.Linear(hidden, hidden, bias=False)
        self.norm2 = ActNorm(hidden)
        self.linear3 = nn.Linear(hidden, outputs)
        self.log_scale = nn.Parameter(torch.zeros(outputs))
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm1.normalize(self.linear1(x)).relu()
        hidden = self.norm2.normalize(self.linear2(hidden)).relu()
        return self.linear3(hidden) * (self.log_scale * LOG_SCALE_FACTOR).exp()

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Set both ActNorms from the inputs ``x`` (n, a)."""
        hidden = self.norm1.initialize(self.linear1(x)).relu()
        self.norm2.initialize(self.linear2(hidden))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for linear in (self.linear1, self.linear2):  # drawn on the generator's device: a GPU's tensors refuse a CPU's
            device = generator.device if generator else linear.weight.device
            draw = torch.empty(linear.weight.shape, dtype=linear.weight.dtype, device=device)
            linear.weight.copy_(draw.normal_(0, INITIAL_STD, generator=generator))
        self.norm1.reset_parameters()
        self.norm2.reset_parameters()
        self.linear3.weight.zero_()
        self.linear3.bias.zero_()
        self.log_scale.zero_()


class AdditiveCoupling(Bijection):
    r"""NICE coupling (Dinh et al., 2015): :math:`z_1 = x_1,\; z_2 = x_2 + t(x_1)`; log-determinant 0.

    x_1 is the first ceil(d/2) channels.

    Args:
        width: d >= 2.
        hidden_width: width of the hidden layers of t.
    """

    outputs_per_channel = 1

    def __init__(self, width: int, hidden_width: int) -> None:
        super().__init__()
        self.sizes = split_sizes(width)
        self.network = CouplingNetwork(self.sizes[0], hidden_width, self.outputs_per_channel * self.sizes[1])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = x.split(self.sizes, dim=-1)
        return torch.cat([first, second + self.network(first)], dim=-1), x.new_zeros(len(x))

    def inverse(self, z: Tensor) -> Tensor:
        first, second = z.split(self.sizes, dim=-1)
        return torch.cat([first, second - self.network(first)], dim=-1)

    @torch.no_grad()
    def initialize(self, x: Tensor) -> Tensor:
        self.network.initialize(x[:, : self.sizes[0]])
        return self(x)[0]

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.network.reset_parameters(generator)


class AffineCoupling(AdditiveCoupling):
    r"""Glow's coupling (Kingma & Dhariwal, 2018):

    .. math:: z_1 = x_1,\quad z_2 = \sigma(r(x_1) + 2) (x_2 + t(x_1)), \quad \log|\det| = \sum \log \sigma(r(x_1) + 2)

    r and t are the two halves of one network's outputs. At construction every scale is sigmoid(2) = .88.
    """

    outputs_per_channel = 2

    def _shift_and_log_scale(self, first: Tensor) -> tuple[Tensor, Tensor]:
        shift, raw = self.network(first).chunk(2, dim=-1)
        return shift, nn.functional.logsigmoid(raw + 2)  # logsigmoid: no log of a rounded 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = x.split(self.sizes, dim=-1)
        shift, log_scale = self._shift_and_log_scale(first)
        return torch.cat([first, (second + shift) * log_scale.exp()], dim=-1), log_scale.sum(-1)

    def inverse(self, z: Tensor) -> Tensor:
        first, second = z.split(self.sizes, dim=-1)
        shift, log_scale = self._shift_and_log_scale(first)
        return torch.cat([first, second * (-log_scale).exp() - shift], dim=-1)
