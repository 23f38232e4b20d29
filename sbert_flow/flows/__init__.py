"""Invertible maps R^d -> R^d in plain torch."""

from __future__ import annotations

from sbert_flow.flows.actnorm import ActNorm, live_dimensions
from sbert_flow.flows.affine import FrozenAffine, inverse_square_root, surface_matrix, surface_moment
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
    "FrozenAffine",
    "Glow",
    "Reverse",
    "bits_per_dimension",
    "inverse_square_root",
    "live_dimensions",
    "standard_normal_log_prob",
    "surface_matrix",
    "surface_moment",
]
