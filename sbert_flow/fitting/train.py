"""Training of a flow on embeddings that are already there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from sbert_flow.flows import Glow
from sbert_flow.losses import FlowAdamW, FlowNLLLoss
from sbert_flow.losses.averaging import average_weight
from sbert_flow.modules import FlowLayer
from sbert_flow.modules.recipes import INIT_ROWS, Recipe

MIN_STEPS = 200
"""Steps of the shortest fit: 100 sentences trained for one epoch would hardly move the flow."""

MAX_GRAD_NORM = 1.0
REPORT_EVERY = 20


def number_of_steps(rows: int, batch_size: int, epochs: int = 1) -> int:
    """Steps of a fit: ``epochs`` passes over the rows, and at least 200."""
    return max(MIN_STEPS, math.ceil(rows * epochs / batch_size))


class FlatParameters:
    """The parameters of a module as two flat tensors, so that optimiser, clipping and averaging are a few calls.

    Args:
        module: its parameters become views of the flat ones, until :meth:`release`.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        named = list(module.named_parameters())
        self.groups = [[p for name, p in named if ("bias" in name) is exempt] for exempt in (False, True)]
        self.flat = []
        for group in self.groups:
            flat = torch.cat([p.detach().flatten() for p in group])
            flat.grad = torch.zeros_like(flat)
            for parameter, data, grad in zip(
                group, self._views(flat, group), self._views(flat.grad, group), strict=True
            ):
                parameter.data, parameter.grad = data, grad
            self.flat.append(flat)

    @staticmethod
    def _views(flat: Tensor, group: list[torch.nn.Parameter]) -> Iterator[Tensor]:
        sizes = [p.numel() for p in group]
        return (view.view(p.shape) for view, p in zip(flat.split(sizes), group, strict=True))

    def zero_grad(self) -> None:
        for flat in self.flat:
            flat.grad.zero_()  # type: ignore[union-attr]

    def release(self, values: list[Tensor]) -> None:
        """Give the parameters storage of their own again, filled with ``values``, flat as here."""
        for group, flat in zip(self.groups, values, strict=True):
            for parameter, data in zip(group, self._views(flat, group), strict=True):
                parameter.data, parameter.grad = data.clone(), None


def shuffled_batches(rows: int, batch_size: int, steps: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield ``steps`` index tensors of ``batch_size`` rows from one random permutation after another."""
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        while len(order) < batch_size:
            order = torch.cat([order, torch.randperm(rows, generator=generator)])
        yield order[:batch_size]
        order = order[batch_size:]


def train_flow(
    layer: FlowLayer,
    embeddings: Tensor,
    recipe: Recipe,
    *,
    front: tuple[Tensor, Tensor] | None = None,
    epochs: int = 1,
    seed: int = 0,
    show_progress_bar: bool = False,
) -> list[dict[str, Any]]:
    """Initialise the layer on a sample of the embeddings and train it on all of them, from scratch.

    Args:
        layer: the layer to fit, in place; on an error it is left as it was.
        embeddings: shape (n, d), as they come before the layer, checked.
        recipe: the training settings. Its noise is multiplied by sqrt(1 + d / n): the fewer the rows, the larger the
            error of their covariance, and the less of it the flow should undo.
        front: matrix and mean of the frozen affine map before the flow, for a layer that has one.
        epochs: passes over the embeddings; in any case at least 200 steps are made.
        seed: of initial weights, order of the rows and noise.
        show_progress_bar: show steps and loss.

    Returns:
        The history: ``{"step": ..., "bits_per_dimension": ...}`` every 20 steps, each the mean since the last entry,
        with the recipe's noise on the embeddings. Empty for a map without trained steps.

    Raises:
        ValueError: the loss is no longer finite.
    """
    generator = torch.Generator().manual_seed(seed)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    try:
        layer.reset_parameters(generator)
        if front is not None:
            layer.set_front(*front)
        if layer.steps_per_level == 0:
            return []
        sample = torch.randperm(len(embeddings), generator=generator)[:INIT_ROWS]
        recipe = replace(recipe, noise=recipe.noise * math.sqrt(1 + embeddings.shape[1] / len(embeddings)))
        layer.initialize(embeddings[sample], noise=recipe.noise, generator=generator)
        if layer.affine is not None:  # frozen: once is enough
            with torch.no_grad():
                embeddings = layer.affine(embeddings.to(layer.noise_unit.device))[0]
        return _descend(layer, embeddings, recipe, epochs, generator, show_progress_bar)
    except BaseException:  # an interrupt too
        layer.load_state_dict(before)
        raise


def _descend(
    layer: FlowLayer, embeddings: Tensor, recipe: Recipe, epochs: int, generator: torch.Generator, bar: bool
) -> list[dict[str, Any]]:
    flow: Glow = layer.flow
    device = layer.noise_unit.device
    steps = number_of_steps(len(embeddings), recipe.batch_size, epochs)
    noise_std = recipe.noise * layer.noise_unit
    flat = FlatParameters(flow)
    decayed, exempt = flat.flat
    optimizer = FlowAdamW(
        [{"params": [decayed]}, {"params": [exempt], "weight_decay": 0.0}],
        lr=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
    )
    averages = [values.clone() for values in flat.flat]
    losses = torch.zeros(steps, device=device)
    history: list[dict[str, Any]] = []
    batch_size = min(recipe.batch_size, len(embeddings))
    batches = shuffled_batches(len(embeddings), batch_size, steps, generator)
    try:
        with tqdm(total=steps, desc="Fitting the flow", unit="step", disable=not bar) as progress:
            for step, rows in enumerate(batches, start=1):
                x = embeddings[rows].to(device, non_blocking=True)
                if recipe.noise:
                    x = x + noise_std * torch.randn(x.shape, generator=generator).to(device, non_blocking=True)
                flat.zero_grad()
                z, log_det = flow(x)
                loss = FlowNLLLoss.compute_loss_from_embeddings([z], [log_det])
                loss.backward()
                torch.nn.utils.clip_grad_norm_(flat.flat, MAX_GRAD_NORM)
                optimizer.step()
                losses[step - 1] = loss.detach()
                if recipe.average_decay:
                    for average, values in zip(averages, flat.flat, strict=True):
                        average.lerp_(values, 1 - average_weight(recipe.average_decay, step))
                if step % REPORT_EVERY == 0 or step == steps:
                    # The only place that waits for the device.
                    recent = losses[(step - 1) // REPORT_EVERY * REPORT_EVERY : step].mean().item()
                    if not math.isfinite(recent):
                        raise ValueError(
                            f"the loss is {recent} after step {step} at learning rate {recipe.learning_rate}. "
                            "Check the embeddings for outliers: the flow is left as it was before the fit."
                        )
                    history.append({"step": step, "bits_per_dimension": recent})
                    progress.set_postfix_str(f"{recent:.4f} bits/dim", refresh=False)
                    progress.update(step - progress.n)
    finally:
        flat.release(averages if recipe.average_decay else flat.flat)
    return history
