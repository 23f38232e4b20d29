"""BERT-flow for sentence-transformers: invertible maps that make embeddings isotropic, learnt without labels."""

from __future__ import annotations

from sbert_flow.fitting import adapt, advise, fit_flow, fit_whitening, log_prob
from sbert_flow.losses import FlowNLLLoss, PseudoTokenLoss
from sbert_flow.modules import FlowLayer, WhiteningLayer, build_model, load

__all__ = [
    "FlowLayer",
    "FlowNLLLoss",
    "PseudoTokenLoss",
    "WhiteningLayer",
    "adapt",
    "advise",
    "build_model",
    "fit_flow",
    "fit_whitening",
    "load",
    "log_prob",
]
