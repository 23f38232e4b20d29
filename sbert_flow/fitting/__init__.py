"""Fitting flows on unlabelled text."""

from __future__ import annotations

from sbert_flow.fitting.adapt import AdaptResult, Shift, adapt, measure_shift
from sbert_flow.fitting.advise import Advice, advise
from sbert_flow.fitting.fit import FitResult, fit_flow
from sbert_flow.fitting.log_prob import log_prob
from sbert_flow.fitting.surface import estimate_nuisance, nuisance_moment
from sbert_flow.fitting.train_encoder import EncoderTraining, load_trainable, train_encoder
from sbert_flow.fitting.whitening import WhiteningResult, fit_whitening

__all__ = [
    "AdaptResult",
    "Advice",
    "EncoderTraining",
    "FitResult",
    "Shift",
    "WhiteningResult",
    "adapt",
    "advise",
    "estimate_nuisance",
    "fit_flow",
    "fit_whitening",
    "load_trainable",
    "log_prob",
    "measure_shift",
    "nuisance_moment",
    "train_encoder",
]
