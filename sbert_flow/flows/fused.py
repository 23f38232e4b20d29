"""A flow of additive couplings with its gradient written out, for training.

It computes what the modules compute, as a single node of autograd: at the batches of a fit a step is nothing but the
overhead of its calls, and this has a third of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sbert_flow.flows.actnorm import LOG_SCALE_FACTOR

TENSORS_PER_STEP = 14


def step_tensors(step: Any) -> list[Tensor]:
    """Parameters and gains of a step ActNorm -> reversal -> additive coupling, in the order used here."""
    norm, _, coupling = step
    network = coupling.network
    return [
        norm.shift, norm.log_scale, norm.gain,
        network.linear1.weight, network.norm1.shift, network.norm1.log_scale, network.norm1.gain,
        network.linear2.weight, network.norm2.shift, network.norm2.log_scale, network.norm2.gain,
        network.linear3.weight, network.linear3.bias, network.log_scale,
    ]  # fmt: skip


def fused_flow(x: Tensor, widths: list[int], levels: nn.ModuleList) -> tuple[Tensor, Tensor]:
    """The latents (n, d), and log |det|, the same for every row, as a scalar.

    Args:
        x: shape (n, d).
        widths: of the levels.
        levels: each a sequence of steps ActNorm -> reversal -> additive coupling.
    """
    steps = [(width, step) for width, level in zip(widths, levels, strict=True) for step in level]  # type: ignore[arg-type]
    tensors = [tensor for _, step in steps for tensor in step_tensors(step)]
    return _FusedFlow.apply(x, [width for width, _ in steps], *tensors)  # type: ignore[no-any-return]


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


class _FusedFlow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, widths: list[int], *tensors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.widths, ctx.kept = widths, []
        ctx.save_for_backward(*tensors)
        left = []
        log_det = x.new_zeros(())
        for index, width in enumerate(widths):
            if width < x.shape[1]:
                left.append(x[:, width:])
                x = x[:, :width]
            kept, term = _step(x, *tensors[TENSORS_PER_STEP * index : TENSORS_PER_STEP * (index + 1)])
            ctx.kept.append(kept)
            x = kept.z
            log_det += term
        return torch.cat([*left, x], dim=-1), log_det

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_z: Tensor, grad_log_det: Tensor) -> tuple[Any, ...]:
        tensors, grads = ctx.saved_tensors, []
        width = ctx.widths[-1]
        grad, end = grad_z[:, -width:], grad_z.shape[1] - width
        for index in reversed(range(len(ctx.widths))):
            if ctx.widths[index] > grad.shape[1]:
                start = end - (ctx.widths[index] - grad.shape[1])
                grad, end = torch.cat([grad, grad_z[:, start:end]], dim=-1), start
            step = tensors[TENSORS_PER_STEP * index : TENSORS_PER_STEP * (index + 1)]
            grad, of_step = _step_backward(grad, grad_log_det, ctx.kept[index], *step)
            grads.append(of_step)
        return (grad, None, *(gradient for of_step in reversed(grads) for gradient in of_step))


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
