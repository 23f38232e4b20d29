"""Progress of the Trainer where its own bar is not shown."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sbert_flow.fitting.progress import Progress, Stage


class TrainerProgress(TrainerCallback):
    """Passes steps, the last loss and the last score on to ``progress``.

    Args:
        progress: where and how it is shown.
        score: the score's name in the Trainer's log.
    """

    def __init__(self, progress: Progress, score: str) -> None:
        self.progress = progress
        self.names = {"loss": "loss", score: "score"}
        self.measures: dict[str, float] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        shown = self.progress
        self.stage = Stage(shown.style, shown.stream, "Training", state.max_steps, "steps", done=state.global_step)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.measures |= {self.names[key]: value for key, value in kwargs["logs"].items() if key in self.names}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            self.stage.advance(1, **self.measures)
