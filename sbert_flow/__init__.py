"""BERT-flow for sentence-transformers: invertible maps that make embeddings isotropic, learnt without labels."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    # Imported on first use: torch and transformers take seconds, and `sbert-flow --help` needs neither.
    if name in __all__:
        for room in ("modules", "losses", "fitting"):
            module = import_module(f"sbert_flow.{room}")
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module 'sbert_flow' has no attribute {name!r}")
