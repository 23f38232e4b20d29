"""What can be said of embeddings without labels."""

from __future__ import annotations

from sbert_flow.measures.anisotropy import mean_cosine
from sbert_flow.measures.separation import view_separation
from sbert_flow.measures.spectrum import (
    effective_rank,
    eigenvalue_spectrum,
    iso_score,
    participation_ratio,
    population_participation_ratio,
)

__all__ = [
    "effective_rank",
    "eigenvalue_spectrum",
    "iso_score",
    "mean_cosine",
    "participation_ratio",
    "population_participation_ratio",
    "view_separation",
]
