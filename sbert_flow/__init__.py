"""BERT-flow for sentence-transformers: invertible maps that make embeddings isotropic, learnt without labels."""

from __future__ import annotations

from sbert_flow.fitting import fit_flow, log_prob
from sbert_flow.losses import FlowNLLLoss, PseudoTokenLoss
from sbert_flow.modules import FlowLayer, build_model, load

__all__ = ["FlowLayer", "FlowNLLLoss", "PseudoTokenLoss", "build_model", "fit_flow", "load", "log_prob"]
