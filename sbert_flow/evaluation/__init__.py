"""Evaluation with the field's own tools."""

from __future__ import annotations

from sbert_flow.evaluation.sts import STSSuite, TaskScore, evaluate_sts

__all__ = ["STSSuite", "TaskScore", "evaluate_sts"]
