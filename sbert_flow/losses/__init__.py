"""Training objectives, as sentence-transformers losses, and what belongs to them."""

from __future__ import annotations

from sbert_flow.losses.averaging import FlowAveragingCallback
from sbert_flow.losses.flow_nll import FlowNLLLoss
from sbert_flow.losses.optimizer import FlowAdamW
from sbert_flow.losses.pseudo_token import PseudoTokenLoss
from sbert_flow.losses.pseudo_token_callback import PseudoTokenCallback

__all__ = ["FlowAdamW", "FlowAveragingCallback", "FlowNLLLoss", "PseudoTokenCallback", "PseudoTokenLoss"]
