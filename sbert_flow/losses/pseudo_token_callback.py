"""Resuming a training with PseudoTokenLoss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sbert_flow.losses.pseudo_token import PseudoTokenLoss

FILE = "pseudo_token_state.safetensors"
"""Name of the loss's state in a checkpoint folder."""


class PseudoTokenCallback(TrainerCallback):
    """Keeps a PseudoTokenLoss beside the Trainer's checkpoints, so that ``resume_from_checkpoint`` continues it.

    Head, momentum copies and queue are saved in each ``checkpoint-N`` of the output folder and read back from there.
    The resumed training ends with the same weights as an uninterrupted one. Under ``bf16`` and ``fp16`` it has the
    momentum copy of the encoder run in mixed precision as well: the Trainer casts the model alone.

    Args:
        loss: the loss that is trained with.

    Raises:
        FileNotFoundError: training is resumed, but the checkpoint has no state of the loss.
        OSError: that state is damaged.
        ValueError: it belongs to another encoder or other settings.
    """

    def __init__(self, loss: PseudoTokenLoss) -> None:
        self.loss = loss

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.loss.autocast_dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
        if not state.global_step:
            return
        kept = _file(args, state)
        if not kept.is_file():
            raise FileNotFoundError(
                f"no {kept}: the training cannot be resumed, its momentum weights are not there. Resume from a "
                f"checkpoint in {args.output_dir} that was saved with PseudoTokenCallback, or train anew."
            )
        try:
            self.loss.load_training_state(load_file(kept))
        except SafetensorError as error:
            raise OSError(f"{kept} is damaged or cut short ({error}). Resume from an earlier checkpoint.") from error

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.loss.learning_rate = kwargs["lr_scheduler"].get_last_lr()[0]

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        kept = _file(args, state)
        if state.is_world_process_zero and kept.parent.is_dir():
            part = kept.with_suffix(".part")  # renamed at the end, so that an interruption leaves no half a file
            save_file(self.loss.training_state(), part)
            part.rename(kept)


def _file(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}" / FILE
