"""Fitting flows on unlabelled text."""

from __future__ import annotations

from sbert_flow.fitting.fit import FitResult, fit_flow
from sbert_flow.fitting.log_prob import log_prob
from sbert_flow.fitting.train_encoder import EncoderTraining, load_trainable, train_encoder

__all__ = ["EncoderTraining", "FitResult", "fit_flow", "load_trainable", "log_prob", "train_encoder"]
