"""Likelihood of sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from sbert_flow.modules.pipeline import encoder_before_flow, split_at_flow


def log_prob(model: SentenceTransformer, sentences: str | Iterable[str], **encode_kwargs: Any) -> np.ndarray:
    """Log density in nats of sentences' embeddings under the model's flow: how typical they are of the fitted text.

    Args:
        model: a SentenceTransformer with one fitted FlowLayer.
        sentences: one string or several.
        **encode_kwargs: passed on to ``encode`` (``batch_size``, ``prompt``, ``show_progress_bar``).

    Returns:
        float32, shape (n,); a single number, shape (), for a single string.

    Raises:
        ValueError: no FlowLayer, one that was never fitted, or items that are not strings.
    """
    _, layer = split_at_flow(model)
    if not layer.initialized:
        raise ValueError(
            "the flow was never fitted, so it has no likelihood. Call sbert_flow.fit_flow(model, sentences)."
        )
    single = isinstance(sentences, str)
    texts = [sentences] if isinstance(sentences, str) else list(sentences)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"sentences must be strings, but item {index} is {text!r:.80} ({type(text).__name__}).")
    if not texts:
        return np.empty(0, dtype=np.float32)
    embeddings = encoder_before_flow(model).encode(texts, convert_to_tensor=True, **encode_kwargs)
    values = layer.log_prob(embeddings).cpu().numpy()
    return values[0] if single else values
