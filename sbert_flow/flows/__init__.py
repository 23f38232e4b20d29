"""Invertible maps R^d -> R^d in plain torch."""

from __future__ import annotations

from sbert_flow.flows.actnorm import ActNorm, live_dimensions
from sbert_flow.flows.bijection import Bijection, Composition
from sbert_flow.flows.coupling import AdditiveCoupling, AffineCoupling
from sbert_flow.flows.glow import Glow, bits_per_dimension, standard_normal_log_prob
from sbert_flow.flows.permutation import Reverse

__all__ = [
    "ActNorm",
    "AdditiveCoupling",
    "AffineCoupling",
    "Bijection",
    "Composition",
    "Glow",
    "Reverse",
    "bits_per_dimension",
    "live_dimensions",
    "standard_normal_log_prob",
]
