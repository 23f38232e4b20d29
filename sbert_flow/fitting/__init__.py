"""Fitting flows on unlabelled text."""

from __future__ import annotations

from sbert_flow.fitting.fit import FitResult, fit_flow
from sbert_flow.fitting.log_prob import log_prob
from sbert_flow.fitting.surface import estimate_nuisance, nuisance_moment
from sbert_flow.fitting.whitening import WhiteningResult, fit_whitening

__all__ = [
    "FitResult",
    "WhiteningResult",
    "estimate_nuisance",
    "fit_flow",
    "fit_whitening",
    "log_prob",
    "nuisance_moment",
]
