"""The gradient of a flow of additive couplings, written out, for training on embeddings.

A step of the fit is nothing but the overhead of its calls. This makes a third of those that autograd makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sbert_flow.flows.actnorm import LOG_SCALE_FACTOR, ActNorm
from sbert_flow.flows.coupling import AdditiveCoupling
from sbert_flow.flows.glow import Glow
from sbert_flow.flows.permutation import Reverse

Loss = Callable[[Tensor, Tensor], Tensor]
"""(z, log_det) -> scalar."""


def gradient_function(flow: Glow) -> Callable[[Tensor, Loss], Tensor]:
    """A function of x (n, d) and a loss: it returns the loss of ``flow(x)`` and adds its gradients to the parameters.

    The same as ``loss(*flow(x)).backward()``, which it is where the flow has other steps than ActNorm -> reversal ->
    additive coupling. The parameters must have a ``grad``.
    """
    steps = [(width, step) for width, level in zip(flow.widths, flow.levels, strict=True) for step in level]  # type: ignore[attr-defined]
    if steps and all([type(part) for part in step] == [ActNorm, Reverse, AdditiveCoupling] for _, step in steps):
        return _WrittenOut([width for width, _ in steps], [_tensors(step) for _, step in steps])

    def by_autograd(x: Tensor, loss: Loss) -> Tensor:
        value = loss(*flow(x))
        value.backward()
        return value.detach()

    return by_autograd


class _WrittenOut:
    def __init__(self, widths: list[int], steps: list[list[Tensor]]) -> None:
        self.widths, self.steps = widths, steps

    def __call__(self, x: Tensor, loss: Loss) -> Tensor:
        with torch.no_grad():
            z, log_det, kept = self._forward(x)
        z.requires_grad_()
        log_det.requires_grad_()
        value = loss(z, log_det.expand(len(x)))
        grad_z, grad_log_det = torch.autograd.grad(value, (z, log_det))
        with torch.no_grad():
            self._backward(grad_z, grad_log_det, kept)
        return value.detach()

    def _forward(self, x: Tensor) -> tuple[Tensor, Tensor, list[_Kept]]:
        left, kept = [], []
        log_det = x.new_zeros(())
        for width, tensors in zip(self.widths, self.steps, strict=True):
            if width < x.shape[1]:
                left.append(x[:, width:])
                x = x[:, :width]
            of_step, term = _step(x, *tensors)
            kept.append(of_step)
            x = of_step.z
            log_det += term
        return torch.cat([*left, x], dim=-1), log_det, kept

    def _backward(self, grad_z: Tensor, grad_log_det: Tensor, kept: list[_Kept]) -> None:
        end = grad_z.shape[1] - self.widths[-1]
        grad = grad_z[:, end:]
        for width, tensors, of_step in zip(reversed(self.widths), reversed(self.steps), reversed(kept), strict=True):
            if width > grad.shape[1]:
                start = end - (width - grad.shape[1])
                grad, end = torch.cat([grad, grad_z[:, start:end]], dim=-1), start
            grad, gradients = _step_backward(grad, grad_log_det, of_step, *tensors)
            for tensor, gradient in zip(tensors, gradients, strict=True):
                if gradient is not None:
                    tensor.grad.add_(gradient)  # type: ignore[union-attr]


def _tensors(step: Any) -> list[Tensor]:
    """Parameters and gains of a step, in the order used here."""
    norm, _, coupling = step
    network = coupling.network
    return [
        norm.shift, norm.log_scale, norm.gain,
        network.linear1.weight, network.norm1.shift, network.norm1.log_scale, network.norm1.gain,
        network.linear2.weight, network.norm2.shift, network.norm2.log_scale, network.norm2.gain,
        network.linear3.weight, network.linear3.bias, network.log_scale,
    ]  # fmt: skip


class _Kept(NamedTuple):
    """What a step's backward pass needs beside its weights."""

    normed: Tensor
    z: Tensor
    hidden1: Tensor
    hidden2: Tensor
    moved: Tensor
    scale: Tensor
    scale1: Tensor
    scale2: Tensor
    scale3: Tensor


def _step(
    x: Tensor, shift: Tensor, log_scale: Tensor, gain: Tensor,
    weight1: Tensor, shift1: Tensor, log_scale1: Tensor, gain1: Tensor,
    weight2: Tensor, shift2: Tensor, log_scale2: Tensor, gain2: Tensor,
    weight3: Tensor, bias3: Tensor, log_scale3: Tensor,
) -> tuple[_Kept, Tensor]:  # fmt: skip
    log_scale = log_scale * gain
    scale = log_scale.exp()
    normed = torch.addcmul(shift * scale, x, scale)
    z = normed.flip(-1)
    first, second = z[:, : weight1.shape[1]], z[:, weight1.shape[1] :]
    scale1, scale2 = (log_scale1 * gain1).exp_(), (log_scale2 * gain2).exp_()
    scale3 = (log_scale3 * LOG_SCALE_FACTOR).exp_()
    hidden1 = first.mm(weight1.t()).add_(shift1).mul_(scale1).relu_()
    hidden2 = hidden1.mm(weight2.t()).add_(shift2).mul_(scale2).relu_()
    moved = torch.addmm(bias3, hidden2, weight3.t())
    second.addcmul_(moved, scale3)
    return _Kept(normed, z, hidden1, hidden2, moved, scale, scale1, scale2, scale3), log_scale.sum()


def _step_backward(
    grad_z: Tensor, grad_log_det: Tensor, kept: _Kept, shift: Tensor, log_scale: Tensor, gain: Tensor,
    weight1: Tensor, shift1: Tensor, log_scale1: Tensor, gain1: Tensor,
    weight2: Tensor, shift2: Tensor, log_scale2: Tensor, gain2: Tensor,
    weight3: Tensor, bias3: Tensor, log_scale3: Tensor,
) -> tuple[Tensor, tuple[Tensor | None, ...]]:  # fmt: skip
    """Gradients of x and of the step's tensors."""
    width = weight1.shape[1]
    grad_moved = grad_z[:, width:] * kept.scale3
    grad_log_scale3 = (grad_moved * kept.moved).sum(0).mul_(LOG_SCALE_FACTOR)
    # The gradient of a log-scale is that of the value times the value; where ReLU stopped the value, it is 0.
    grad_hidden2 = grad_moved.mm(weight3)
    grad_log_scale2 = (grad_hidden2 * kept.hidden2).sum(0).mul_(gain2)
    grad_hidden2 = torch.ops.aten.threshold_backward(grad_hidden2, kept.hidden2, 0).mul_(kept.scale2)
    grad_hidden1 = grad_hidden2.mm(weight2)
    grad_log_scale1 = (grad_hidden1 * kept.hidden1).sum(0).mul_(gain1)
    grad_hidden1 = torch.ops.aten.threshold_backward(grad_hidden1, kept.hidden1, 0).mul_(kept.scale1)
    grad_normed = grad_z.flip(-1)
    grad_normed[:, -width:].addmm_(grad_hidden1, weight1.flip(-1))
    grad_log_scale = (grad_normed * kept.normed).sum(0).add_(grad_log_det).mul_(gain)
    grad_x = grad_normed.mul_(kept.scale)
    # The first half of z is what the coupling read.
    return grad_x, (
        grad_x.sum(0), grad_log_scale, None,
        grad_hidden1.t().mm(kept.z[:, :width]), grad_hidden1.sum(0), grad_log_scale1, None,
        grad_hidden2.t().mm(kept.hidden1), grad_hidden2.sum(0), grad_log_scale2, None,
        grad_moved.t().mm(kept.hidden2), grad_moved.sum(0), grad_log_scale3,
    )  # fmt: skip
