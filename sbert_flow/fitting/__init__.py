"""Fitting flows on unlabelled text."""

from __future__ import annotations

from sbert_flow.fitting.fit import FitResult, fit_flow
from sbert_flow.fitting.log_prob import log_prob

__all__ = ["FitResult", "fit_flow", "log_prob"]
