"""Weight averaging under the Trainer."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sbert_flow.modules.pipeline import split_at_flow

FILE = "flow_training_weights.safetensors"


def average_weight(decay: float, step: int) -> float:
    """Weight of the running average at ``step`` (from 1): it soon forgets its start, then decays with ``decay``."""
    return min(decay, (1 + step) / (10 + step))


class FlowAveragingCallback(TrainerCallback):
    r"""Exponential moving average of the flow's weights: :math:`\bar\theta \leftarrow a \bar\theta + (1 - a) \theta`.

    Evaluations, checkpoints and the final model see the averaged weights; training goes on with the raw ones, which
    are kept beside each checkpoint, so that ``resume_from_checkpoint`` continues both.

    Args:
        model: the SentenceTransformer that is trained.
        decay: the largest a; .99 in recipe "noise".

    Raises:
        ValueError: the model has no FlowLayer; decay is not between 0 and 1.
    """

    def __init__(self, model: Any, decay: float = 0.99) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"decay must be between 0 and 1, but got {decay!r}.")
        self.flow = split_at_flow(model)[1].flow
        self.decay = decay
        self.average: dict[str, Tensor] = {}
        self.raw: dict[str, Tensor] | None = None  # set while the model holds the average

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.average, self.raw = self._weights(), None
        kept = Path(args.output_dir or ".") / f"checkpoint-{state.global_step}" / FILE
        if state.global_step and kept.is_file():
            # Resuming: the model was loaded with the average.
            self.raw = {name: value.to(self.average[name].device) for name, value in load_file(kept).items()}
        elif state.global_step:
            warnings.warn(
                f"no {kept}: training resumes from the averaged weights, not the raw ones. Keep the checkpoint in the "
                "output folder, with this callback from the first step on.",
                stacklevel=2,
            )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.raw is not None:
            self._load(self.raw)
            self.raw = None

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        weight = 1 - average_weight(self.decay, state.global_step)
        with torch.no_grad():
            for name, parameter in self.flow.named_parameters():
                self.average[name].lerp_(parameter, weight)
        if control.should_evaluate or control.should_save or control.should_training_stop:
            self._show_average()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._show_average()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        folder = Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
        if self.raw is not None and state.is_world_process_zero and folder.is_dir():
            save_file(self.raw, folder / FILE)

    def _show_average(self) -> None:
        if self.raw is None and self.average:
            self.raw = self._weights()
            self._load(self.average)

    def _weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.flow.named_parameters()}

    @torch.no_grad()
    def _load(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self.flow.named_parameters():
            parameter.copy_(weights[name])
