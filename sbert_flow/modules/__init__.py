"""sentence-transformers modules and the pipelines made of them."""

from __future__ import annotations

from sbert_flow.modules.build import build_model
from sbert_flow.modules.flow_layer import FlowLayer
from sbert_flow.modules.io import load, save
from sbert_flow.modules.whitening_layer import WhiteningLayer

__all__ = ["FlowLayer", "WhiteningLayer", "build_model", "load", "save"]
