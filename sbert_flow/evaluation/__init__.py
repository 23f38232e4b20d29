"""Evaluation with the field's own tools."""

from __future__ import annotations

from sbert_flow.evaluation.sts import evaluate_sts

__all__ = ["evaluate_sts"]
