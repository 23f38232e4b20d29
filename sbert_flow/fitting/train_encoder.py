"""train_encoder: train the encoder itself on unlabelled text, before any map is fitted."""

from __future__ import annotations

import hashlib
import math
import random
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.evaluation import BaseEvaluator
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sbert_flow.fitting.encoder_checkpoints import prepare, saying_what_is_kept
from sbert_flow.fitting.encoder_progress import TrainerProgress
from sbert_flow.fitting.encoder_recipes import ENCODER_RECIPES, get_encoder_recipe
from sbert_flow.fitting.progress import progress_of
from sbert_flow.losses import PseudoTokenCallback, PseudoTokenLoss
from sbert_flow.modules import build_model
from sbert_flow.modules.model_card import keep_text_out
from sbert_flow.modules.pipeline import encoder_before_flow
from sbert_flow.modules.validation import check_sentences

DECIDING = "deciding"

REMEDY = "Train anew with a lower learning rate; checkpoints saved before hold the last good weights."

LEAST = {"steps": 1, "batch_size": 2, "max_length": 3, "eval_steps": 1}
"""Smallest values: one sentence has nothing to be contrasted with, and two of three tokens are special ones."""


@dataclass(frozen=True)
class EncoderTraining:
    """What a training did.

    Attributes:
        steps: optimiser steps made.
        best_step: the step whose weights the model has; the last one where there was no evaluator.
        history: the Trainer's log: loss, learning rate, evaluations.
        seconds: time of the training with its evaluations.
    """

    steps: int
    best_step: int
    history: list[dict[str, float]]
    seconds: float


class _Trainer(SentenceTransformerTrainer):
    """Stops at a loss that is not finite, and keeps evaluations from changing the training after them."""

    def compute_loss(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        loss: Any = super().compute_loss(model, *args, **kwargs)
        if model.training and not torch.isfinite(loss):  # it would be logged as the mean of earlier losses
            rate = self._get_learning_rate()
            raise ValueError(
                f"the loss is {loss.item()} in step {self.state.global_step + 1} at learning rate {rate:g}. {REMEDY}"
            )
        return loss

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        own = [self.args.device] if self.args.device.type == "cuda" else []
        with torch.random.fork_rng(own):  # its data loader draws a seed, which would change the dropout of later steps
            found: dict[str, float] = super().evaluate(*args, **kwargs)
        return found


class _StopAtBadWeights(TrainerCallback):
    """Looks at the weights before they are evaluated or saved: a step can spoil them after a loss that was finite."""

    def __init__(self, loss: torch.nn.Module) -> None:
        self.loss = loss

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        looked_at = control.should_save or control.should_evaluate or control.should_training_stop
        if looked_at and not all(bool(torch.isfinite(weight).all()) for weight in self.loss.parameters()):
            rate = kwargs["lr_scheduler"].get_last_lr()[0]
            raise ValueError(
                f"the weights are no longer finite after step {state.global_step} (learning rate {rate:g}). {REMEDY}"
            )


class _Deciding(BaseEvaluator):
    """Puts the figure that decides under one name, and lets the evaluator see sentences whole: training cuts them."""

    def __init__(self, evaluator: BaseEvaluator, limit: int | None) -> None:
        super().__init__()
        self.evaluator = evaluator
        self.limit = limit

    def __call__(self, model: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
        training_limit, model.max_seq_length = model.max_seq_length, self.limit
        try:
            found = self.evaluator(model, *args, **kwargs)
        finally:
            model.max_seq_length = training_limit
        if not isinstance(found, dict):
            return {DECIDING: found}
        return {**found, DECIDING: found[self.evaluator.primary_metric]}


def load_trainable(encoder: str | Path, pooling: str = "cls", **kwargs: Any) -> SentenceTransformer:
    """Return [Transformer, Pooling] of an encoder, its weights in float32, for training.

    Raises:
        ValueError: unknown pooling.
        OSError: the encoder cannot be loaded.
    """
    kwargs["model_kwargs"] = {"dtype": torch.float32, **kwargs.get("model_kwargs", {})}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The encoder's own Normalize")  # it is about a flow, and there is none here
        return encoder_before_flow(build_model(encoder, pooling, **kwargs))


def train_encoder(
    model: SentenceTransformer,
    sentences: Iterable[str],
    recipe: str = "ptbert",
    *,
    checkpoints: str | Path,
    steps: int | None = None,
    batch_size: int = 64,
    max_length: int = 64,
    learning_rate: float | None = None,
    evaluator: BaseEvaluator | None = None,
    eval_steps: int = 125,
    resume: bool = False,
    seed: int = 0,
    show_progress_bar: bool | None = None,
) -> EncoderTraining:
    """Train the model on unlabelled sentences, in place, with the library's Trainer.

    With an evaluator the model ends with the weights of its best step, else with the last ones. On a GPU that knows
    bfloat16, mixed precision is used.

    Args:
        model: [Transformer, Pooling], see :func:`load_trainable`.
        sentences: the text; duplicates count once.
        recipe: "ptbert", "simcse", "tsdae" or "ct", see
            :data:`~sbert_flow.fitting.encoder_recipes.ENCODER_RECIPES`.
        checkpoints: folder for the Trainer's checkpoints, two at a time.
        steps: optimiser steps; None makes one pass over the sentences.
        batch_size: sentences in a step; the last partial batch of a pass is left out.
        max_length: tokens that a sentence is cut at while training, or the model's own limit if that is lower.
        learning_rate: None takes the recipe's.
        evaluator: any of the library's; called at the start, to compare with, and every ``eval_steps`` steps, with
            sentences cut at the model's own limit only. What it returns, or the ``primary_metric`` of that, decides
            between the steps, the start left out; greater is better.
        eval_steps: also the distance of checkpoints.
        resume: go on from the last checkpoint in ``checkpoints``, with the same text and settings.
        seed: of fresh weights, order and dropout.
        show_progress_bar: None shows it on a terminal, and elsewhere a line every 30 seconds.

    Raises:
        ValueError: unknown recipe, fewer sentences than a batch, a number outside its range, a loss that is no longer
            finite, checkpoints of other settings, a recipe that cannot be resumed.
        FileExistsError: ``checkpoints`` holds those of an earlier training and ``resume`` is off.
        FileNotFoundError: there is nothing to resume.
        KeyboardInterrupt: also for SIGTERM; it says how to go on.
    """
    settings = get_encoder_recipe(recipe)
    if not isinstance(model[0], Transformer):
        raise ValueError(
            f"a transformer is trained here, but the model begins with {type(model[0]).__name__}: static embeddings "
            "have no token states to learn from. Fit a flow on them, or train another encoder."
        )
    numbers = {"steps": steps, "batch_size": batch_size, "max_length": max_length, "eval_steps": eval_steps}
    for name, value in numbers.items():
        if value is not None and (not isinstance(value, int) or value < LEAST[name]):
            raise ValueError(f"{name} must be a whole number of at least {LEAST[name]}, but got {value!r}.")
    rate = settings.learning_rate if learning_rate is None else learning_rate
    if not 0 < rate < math.inf:
        raise ValueError(f"learning_rate must be above 0, but got {learning_rate!r}.")
    text = check_sentences(sentences, least=1)
    if len(text) < batch_size:
        raise ValueError(
            f"at least {batch_size} different sentences are needed, but got {len(text)}: that is one batch. Give "
            "more, or lower the batch size."
        )
    if resume and not settings.resumable:
        can = " and ".join(name for name, known in ENCODER_RECIPES.items() if known.resumable)
        raise ValueError(
            f"recipe {recipe!r} cannot be resumed: its checkpoints lack part of what it learns; {can} can."
        )
    used = {
        **numbers,
        "recipe": recipe,
        "learning_rate": rate,
        "seed": seed,
        "pooling": repr(list(model.children())[1:]),
        "evaluated": evaluator is not None,
        "sentences": hashlib.sha256("\n".join(text).encode()).hexdigest(),
    }
    folder = Path(checkpoints).expanduser()
    torch.manual_seed(seed)
    own_limit = model.max_seq_length
    model.max_seq_length = max_length if own_limit is None else min(max_length, own_limit)
    keep_text_out(model)
    try:
        loss = settings.loss(model, seed)
        progress = progress_of(None, show_progress_bar)
        callbacks: list[TrainerCallback] = [_StopAtBadWeights(loss)]
        if progress.style == "lines":
            callbacks.append(TrainerProgress(progress, f"eval_{DECIDING}"))
        if isinstance(loss, PseudoTokenLoss):
            callbacks.append(PseudoTokenCallback(loss))
        last = prepare(folder, used, resume)
        trainer = _Trainer(
            model,
            args=_arguments(folder, used, evaluator, anew=last is None, bar=progress.style == "bar"),
            train_dataset=Dataset.from_dict(settings.columns(text, random.Random(seed))),
            loss=loss,
            evaluator=None if evaluator is None else _Deciding(evaluator, own_limit),
            callbacks=callbacks,
        )
        trainer.remove_callback(PrinterCallback)  # without a bar it would print every entry of the log
        with saying_what_is_kept(folder, recipe):
            done = trainer.train(resume_from_checkpoint=last)
    finally:
        model.max_seq_length = own_limit
    state = trainer.state
    best = state.best_global_step if evaluator is not None and state.best_global_step else state.global_step
    return EncoderTraining(state.global_step, best, state.log_history, done.metrics["train_runtime"])


def _arguments(
    folder: Path, used: dict[str, Any], evaluator: BaseEvaluator | None, anew: bool, bar: bool
) -> SentenceTransformerTrainingArguments:
    on_gpu = torch.cuda.is_available()
    evaluation: dict[str, Any] = {}
    if evaluator is not None:
        evaluation = {
            "eval_strategy": "steps",
            "eval_steps": used["eval_steps"],
            "eval_on_start": anew,  # a resumed training has it in its history
            "load_best_model_at_end": True,
            "metric_for_best_model": f"eval_{DECIDING}",
            "greater_is_better": True,
        }
    return SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        num_train_epochs=1,
        max_steps=used["steps"] or -1,
        per_device_train_batch_size=used["batch_size"],
        dataloader_drop_last=True,
        dataloader_pin_memory=on_gpu,
        learning_rate=used["learning_rate"],
        save_strategy="steps",
        save_steps=used["eval_steps"],
        save_total_limit=2,
        logging_steps=25,
        bf16=on_gpu and torch.cuda.is_bf16_supported(including_emulation=False),
        seed=used["seed"],
        report_to=[],
        disable_tqdm=not bar,
        **evaluation,
    )
