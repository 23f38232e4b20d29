"""STS tasks as an evaluator for the Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sentence_transformers.sentence_transformer.evaluation import BaseEvaluator

from sbert_flow.data import SentencePairs
from sbert_flow.evaluation.sts import evaluate_sts


class STSEvaluator(BaseEvaluator):
    """Spearman correlation on STS tasks, each distinct sentence encoded once; the first task decides.

    Args:
        tasks: the tasks, of different names.
        batch_size: of the encoder.

    Raises:
        ValueError: no task.
    """

    def __init__(self, tasks: Sequence[SentencePairs], batch_size: int = 64) -> None:
        super().__init__()
        if not tasks:
            raise ValueError("at least one task is needed.")
        self.tasks = tasks
        self.batch_size = batch_size
        self.primary_metric = f"{tasks[0].name}_spearman_cosine"

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """``{"<task>_spearman_cosine": ...}``, each from -1 to 1."""
        scores = evaluate_sts(model, self.tasks, batch_size=self.batch_size)["tasks"]
        return {f"{name}_spearman_cosine": score["spearman"] for name, score in scores.items()}
