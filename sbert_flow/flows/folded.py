"""The flow for use: every affine piece folded into one, at the front.

In a flow of additive couplings ActNorm's scales and shifts and the couplings' output biases commute to a single affine
map of each dimension, and reversals and splits only rename dimensions. In the order and scale of the output,

    w = x[:, order] * scale + shift                                        once, and for each coupling
    w[:, moved] += relu(relu(w[:, read] @ A + a) @ B + b) @ C

gives z = w, with a log-determinant that does not depend on x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sbert_flow.flows.actnorm import LOG_SCALE_FACTOR

if TYPE_CHECKING:
    from sbert_flow.flows.glow import Glow

CACHED_ROWS = 512
"""Rows mapped at a time on a CPU: their w stays in its cache."""


@dataclass(frozen=True)
class FoldedCoupling:
    """w[:, moved] += relu(relu(w[:, read] @ A + a) @ B + b) @ C."""

    read: slice
    moved: slice
    weight1: Tensor
    bias1: Tensor
    weight2: Tensor
    bias2: Tensor
    weight3: Tensor

    def add_to(self, w: Tensor, sign: float = 1.0) -> None:
        hidden = torch.addmm(self.bias1, w[:, self.read], self.weight1).relu_()
        hidden = torch.addmm(self.bias2, hidden, self.weight2).relu_()
        w[:, self.moved].addmm_(hidden, self.weight3, alpha=sign)


@dataclass(frozen=True)
class FoldedFlow:
    """A :class:`~sbert_flow.flows.Glow` with additive couplings as it is at one moment, without gradients."""

    order: Tensor
    place: Tensor
    scale: Tensor
    shift: Tensor
    couplings: tuple[FoldedCoupling, ...]
    log_det: Tensor

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.empty_like(x, memory_format=torch.contiguous_format)
        for source, w in zip(self._parts(x), self._parts(z), strict=True):
            torch.index_select(source, 1, self.order, out=w)
            w.mul_(self.scale).add_(self.shift)
            for coupling in self.couplings:
                coupling.add_to(w)
        return z, self.log_det.expand(len(x))

    def inverse(self, z: Tensor) -> Tensor:
        w = z.clone()
        for part in self._parts(w):
            for coupling in reversed(self.couplings):
                coupling.add_to(part, -1.0)
            part.sub_(self.shift).div_(self.scale)
        return w.index_select(1, self.place)

    @staticmethod
    def _parts(x: Tensor) -> tuple[Tensor, ...]:
        return x.split(CACHED_ROWS if x.device.type == "cpu" else max(1, len(x)))


@torch.inference_mode(False)  # encode runs in inference mode, whose tensors could not be used outside it
@torch.no_grad()
def fold(flow: Glow) -> FoldedFlow:
    """Fold a flow whose steps are all (ActNorm ->) reversal -> additive coupling; computed in float64."""
    reference = next(flow.parameters())
    width = flow.widths[0]
    # Forwards: which input dimension is where. Steps of levels, each with the dimensions it reads and those it moves.
    names = torch.arange(width)
    emitted: list[Tensor] = []
    steps = []
    for level_width, level in zip(flow.widths, flow.levels, strict=True):
        emitted.append(names[level_width:])
        names = names[:level_width]
        for *norms, _, coupling in level:  # type: ignore[attr-defined]
            before, names = names, names.flip(0)
            steps.append((norms, before, coupling.network, *names.split(coupling.sizes)))
    order = torch.cat([*emitted, names])
    place = order.argsort()
    # Backwards: w = scale * value + shift for the value that a dimension has at that point.
    scale = torch.ones(width, dtype=torch.float64)
    shift = torch.zeros(width, dtype=torch.float64)
    couplings = []
    log_det = torch.zeros((), dtype=torch.float64)
    for norms, before, network, first, second in reversed(steps):
        weight1 = network.linear1.weight.cpu().double() / scale[first]
        bias1 = network.norm1.shift.cpu().double() - weight1 @ shift[first]
        scale1 = _scale(network.norm1)
        scale2 = _scale(network.norm2)
        scale3 = scale[second] * (network.log_scale.cpu().double() * LOG_SCALE_FACTOR).exp()
        read, moved = _span(place[first]), _span(place[second])
        couplings.append(
            FoldedCoupling(
                read,
                moved,
                _spread((weight1 * scale1[:, None]).T, place[first], read, reference),
                _like(bias1 * scale1, reference),
                _like((network.linear2.weight.cpu().double() * scale2[:, None]).T, reference),
                _like(network.norm2.shift.cpu().double() * scale2, reference),
                _spread(
                    network.linear3.weight.cpu().double() * scale3[:, None], place[second], moved, reference
                ).T.contiguous(),
            )
        )
        shift[second] += scale3 * network.linear3.bias.cpu().double()
        for norm in norms:  # one, or none
            shift[before] += scale[before] * _scale(norm) * norm.shift.cpu().double()
            scale[before] *= _scale(norm)
            log_det += _scale(norm).log().sum()
    return FoldedFlow(
        order.to(reference.device),
        place.to(reference.device),
        _like(scale[order], reference),
        _like(shift[order], reference),
        tuple(reversed(couplings)),
        _like(log_det, reference),
    )


def _scale(norm: torch.nn.Module) -> Tensor:
    return (norm.log_scale.cpu().double() * norm.gain.cpu().double()).exp()  # type: ignore[operator]


def _like(value: Tensor, reference: Tensor) -> Tensor:
    return value.contiguous().to(reference.device, reference.dtype)


def _span(places: Tensor) -> slice:
    """The range of columns that holds these: one of the halves, or a little more where widths are odd."""
    return slice(int(places.min()), int(places.max()) + 1)


def _spread(rows: Tensor, places: Tensor, span: slice, reference: Tensor) -> Tensor:
    """Rows put at their places within the span, zeros elsewhere."""
    spread = rows.new_zeros(span.stop - span.start, rows.shape[1])
    spread[places - span.start] = rows
    return _like(spread, reference)
