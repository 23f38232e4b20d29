"""sentence-transformers modules and the pipelines made of them."""
from __future__ import annotations

from sbert_flow.modules.flow_layer import FlowLayer

__all__ = ["FlowLayer"]
