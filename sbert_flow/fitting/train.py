"""Training of a flow on embeddings that are already there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sbert_flow.fitting import distributed
from sbert_flow.fitting.calibration import note_fit
from sbert_flow.fitting.checkpoint import Checkpoint
from sbert_flow.fitting.embedding_set import EmbeddingSet
from sbert_flow.fitting.interrupt import stop_at_signal
from sbert_flow.fitting.progress import Progress
from sbert_flow.fitting.sampling import HELD_OUT_FROM, ShuffledRows, held_out, read_rows, sample_rows
from sbert_flow.flows.gradient import gradient_function
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


def train_flow(
    layer: FlowLayer,
    embeddings: Tensor | EmbeddingSet,
    recipe: Recipe,
    *,
    front: tuple[Tensor, ...] | None = None,
    epochs: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
) -> list[dict[str, Any]]:
    """Initialise the layer on a sample of the embeddings and train it on all of them, from scratch.

    With several processes each takes its share of every batch, and all end with the same weights. From 200 rows on,
    one in 20 is kept out of the batches, so that the likelihood of text can be compared with theirs.

    Args:
        layer: the layer to fit, in place; on an error or an interrupt it is left as it was.
        embeddings: shape (n, d), as they come before the layer, checked; or a set on disk.
        recipe: the training settings. Its noise is multiplied by sqrt(1 + d / n): the fewer the rows, the larger the
            error of their covariance, and the less of it the flow should undo.
        front: arguments of :meth:`FlowLayer.set_front`, for a layer with a frozen affine map before the flow.
        epochs: passes over the embeddings; in any case at least 200 steps are made.
        seed: of initial weights, order of the rows and noise.
        progress: how steps and loss are shown; None is quiet.
        checkpoint: where the state of the loop is kept and resumed from. With it, the first Ctrl-C or SIGTERM writes
            the state and then interrupts.

    Returns:
        The history: ``{"step": ..., "bits_per_dimension": ...}`` every 20 steps, each the mean since the last entry,
        with the recipe's noise on the embeddings. Empty for a map without trained steps.

    Raises:
        ValueError: the loss is no longer finite; more processes than rows in a batch.
        OSError: the checkpoint cannot be read or written.
        KeyboardInterrupt: a signal came; the checkpoint is written.
    """
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    training, adaptation = layer.training, layer.adaptation
    layer.train()
    try:
        if layer.steps_per_level == 0:
            _set_front(layer, front, None)
            note_fit(layer, embeddings)
            return []
        loop = _Loop(layer, embeddings, recipe, front, epochs, seed)
        state = checkpoint.read() if checkpoint else None
        loop.start() if state is None else loop.resume(state)
        history = loop.run(progress or Progress("quiet"), checkpoint)
        note_fit(layer, embeddings)
        return history
    except BaseException:  # an interrupt too
        layer.adaptation = adaptation
        layer.load_state_dict(before)
        raise
    finally:
        layer.train()  # drops a folded form of the flow, of which nothing must be left
        layer.train(training)


def _set_front(layer: FlowLayer, front: tuple[Tensor, ...] | None, generator: torch.Generator | None) -> None:
    """Draw the weights anew and set the frozen map before them."""
    layer.reset_parameters(generator)
    if front is not None:
        layer.set_front(*front)


class _Loop:
    """The training loop with everything that a checkpoint holds."""

    def __init__(
        self,
        layer: FlowLayer,
        embeddings: Tensor | EmbeddingSet,
        recipe: Recipe,
        front: tuple[Tensor, ...] | None,
        epochs: int,
        seed: int,
    ) -> None:
        rows, width = embeddings.shape
        self.layer, self.embeddings, self.front = layer, embeddings, front
        self.recipe = replace(recipe, noise=recipe.noise * math.sqrt(1 + width / rows))
        self.steps = number_of_steps(rows, recipe.batch_size, epochs)
        self.batch_size = min(recipe.batch_size, rows)
        if distributed.world_size() > self.batch_size:
            raise ValueError(
                f"{distributed.world_size()} processes cannot share batches of {self.batch_size} rows. Start fewer."
            )
        self.device = layer.noise_unit.device
        self.generator = torch.Generator().manual_seed(seed)
        self.history: list[float] = []

    def start(self) -> None:
        """Draw the weights and set what depends on data, from rows that all ranks have written."""
        _set_front(self.layer, self.front, self.generator)
        numbers = sample_rows(len(self.embeddings), INIT_ROWS, self.generator)
        if len(self.embeddings) >= HELD_OUT_FROM:
            numbers = numbers[~held_out(numbers)]
        sample = read_rows(self.embeddings, numbers)
        self.layer.initialize(sample, noise=self.recipe.noise, generator=self.generator)
        self._prepare()

    def resume(self, state: dict[str, Tensor]) -> None:
        """Go on from a checkpoint."""
        self.layer.adaptation = None  # the fit that is resumed has forgotten it
        self.layer.load_state_dict({name: state[f"layer.{name}"] for name in self.layer.state_dict()})
        self._prepare()
        for name, tensor in self._tensors().items():
            tensor.copy_(state[name])
        self.rows.load_state({name: state[f"sampling.{name}"] for name in self.rows.state()})
        self.generator.set_state(state["generator"])
        self.history = state["history"].tolist()

    def state(self) -> dict[str, Tensor]:
        return {
            **{f"layer.{name}": tensor for name, tensor in self.layer.state_dict().items()},
            **self._tensors(),
            **{f"sampling.{name}": tensor for name, tensor in self.rows.state().items()},
            "generator": self.generator.get_state(),
            "history": torch.tensor(self.history),
        }

    def _prepare(self) -> None:
        self.flat = FlatParameters(self.layer.flow)
        decayed, exempt = self.flat.flat
        self.optimizer = FlowAdamW(
            [{"params": [decayed]}, {"params": [exempt], "weight_decay": 0.0}],
            lr=self.recipe.learning_rate,
            weight_decay=self.recipe.weight_decay,
        )
        self.gradient = gradient_function(self.layer.flow)
        self.averages = [values.clone() for values in self.flat.flat]
        keep_out = len(self.embeddings) >= HELD_OUT_FROM
        self.rows = ShuffledRows(self.embeddings, self.batch_size, self.generator, self.device, keep_out)

    def _tensors(self) -> dict[str, Tensor]:
        """What the steps change, beside the weights: the running average and the optimiser's moments."""
        tensors = {f"average.{index}": values for index, values in enumerate(self.averages)}
        for index, values in enumerate(self.flat.flat):
            tensors |= {f"{name}.{index}": self.optimizer.state[values][name] for name in ("exp_avg", "exp_avg_sq")}
        return tensors

    def run(self, progress: Progress, checkpoint: Checkpoint | None) -> list[dict[str, Any]]:
        done = min(len(self.history) * REPORT_EVERY, self.steps)  # checkpoints are made at reports
        if done:
            progress.say(f"Continuing the training at step {done:,} of {self.steps:,}.", step=done, steps=self.steps)
        losses = torch.zeros(REPORT_EVERY, device=self.device)
        watch = stop_at_signal() if checkpoint else nullcontext(lambda: False)
        try:
            with watch as stop, progress.stage("Fitting the flow", self.steps, "steps", done) as stage:
                for step in range(done + 1, self.steps + 1):
                    place = (step - 1) % REPORT_EVERY
                    losses[place] = self._step(step)
                    if step % REPORT_EVERY == 0 or step == self.steps:
                        self._report(step, losses[: place + 1])
                        stage.advance(place + 1, **{"bits/dim": self.history[-1]})
                        if checkpoint:
                            stopped = distributed.any_rank(stop(), self.device)
                            if stopped or step % checkpoint.every == 0 or step == self.steps:
                                checkpoint.write(self.state())
                            if stopped:
                                raise KeyboardInterrupt
        finally:
            self.flat.release(self.averages if self.recipe.average_decay else self.flat.flat)
        return [
            {"step": min((index + 1) * REPORT_EVERY, self.steps), "bits_per_dimension": value}
            for index, value in enumerate(self.history)
        ]

    def _step(self, step: int) -> Tensor:
        recipe, flat = self.recipe, self.flat
        rank, size = distributed.rank(), distributed.world_size()
        x = _to_device(self.rows.take()[rank::size], self.device)
        if self.layer.affine is not None:
            x = self.layer.affine(x)[0]
        if recipe.noise:
            noise = torch.randn(self.batch_size, x.shape[1], generator=self.generator)  # the same on every rank
            x = x + recipe.noise * self.layer.noise_unit * _to_device(noise[rank::size], self.device)
        flat.zero_grad()
        share = len(x) / self.batch_size
        loss = self.gradient(x, lambda z, log_det: share * FlowNLLLoss.compute_loss_from_embeddings([z], [log_det]))
        if size > 1:
            for values in flat.flat:
                distributed.sum_over_ranks(values.grad)  # type: ignore[arg-type]
        torch.nn.utils.clip_grad_norm_(flat.flat, MAX_GRAD_NORM)
        self.optimizer.step()
        if recipe.average_decay:
            for average, values in zip(self.averages, flat.flat, strict=True):
                average.lerp_(values, 1 - average_weight(recipe.average_decay, step))
        return loss

    def _report(self, step: int, losses: Tensor) -> None:
        """Note the mean loss: the only place that waits for the device."""
        recent = distributed.sum_over_ranks(losses.mean()).item()
        if not math.isfinite(recent):
            raise ValueError(
                f"the loss is {recent} after step {step} at learning rate {self.recipe.learning_rate}. "
                "Check the embeddings for outliers: the flow is left as it was before the fit."
            )
        self.history.append(recent)


def _to_device(rows: Tensor, device: torch.device) -> Tensor:
    """A copy to a GPU that does not wait for it: only from pinned memory are copies asynchronous."""
    if rows.device.type == "cpu" and device.type == "cuda":
        rows = rows.pin_memory()
    return rows.to(device, non_blocking=True)
