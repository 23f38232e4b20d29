"""What can be said of embeddings without labels."""

from __future__ import annotations

from sbert_flow.measures.anisotropy import mean_cosine

__all__ = ["mean_cosine"]
