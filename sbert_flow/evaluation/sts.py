"""Semantic textual similarity, scored with the library's evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

from sbert_flow.data import SentencePairs


class EncodedOnceEvaluator(EmbeddingSimilarityEvaluator):
    """EmbeddingSimilarityEvaluator over embeddings that are already there.

    Args:
        pairs: the task.
        embeddings: embedding of each sentence of the task.
    """

    def __init__(self, pairs: SentencePairs, embeddings: dict[str, np.ndarray]) -> None:
        super().__init__(
            pairs.sentences1, pairs.sentences2, pairs.scores, main_similarity="cosine",
            similarity_fn_names=["cosine"], name=pairs.name, write_csv=False,
        )  # fmt: skip
        self.embeddings = embeddings

    def embed_inputs(self, model: SentenceTransformer, sentences: Any, **kwargs: Any) -> np.ndarray:
        return np.stack([self.embeddings[sentence] for sentence in sentences])


def encode_once(
    model: SentenceTransformer, tasks: Sequence[SentencePairs], batch_size: int = 32, show_progress_bar: bool = False
) -> dict[str, np.ndarray]:
    """Encode each distinct sentence of the tasks once."""
    sentences = list(dict.fromkeys(sentence for pairs in tasks for sentence in pairs.sentences))
    encoded = model.encode(sentences, batch_size=batch_size, show_progress_bar=show_progress_bar)
    return dict(zip(sentences, encoded.astype(np.float32, copy=False), strict=True))


def score_pairs(pairs: SentencePairs, embeddings: dict[str, np.ndarray], model: SentenceTransformer) -> float:
    """Spearman correlation, -1 to 1, of cosine similarity with the scores; the model's card notes it.

    Raises:
        ValueError: it is undefined because all pairs have the same similarity.
    """
    spearman = float(EncodedOnceEvaluator(pairs, embeddings)(model)[f"{pairs.name}_spearman_cosine"])
    if np.isnan(spearman):
        raise ValueError(
            f"all {len(pairs)} pairs of {pairs.name} have the same similarity, or NaN, so their rank correlation is "
            "undefined. Check that the model was fitted and that its embeddings are finite."
        )
    return spearman


def evaluate_sts(
    model: SentenceTransformer,
    tasks: Sequence[SentencePairs],
    *,
    batch_size: int = 32,
    show_progress_bar: bool = False,
) -> dict[str, Any]:
    """Spearman correlation of cosine similarity with human scores, over all pairs of each task ("all").

    Args:
        model: any SentenceTransformer.
        tasks: the tasks, see :func:`sbert_flow.data.read_sts`.
        batch_size: of the encoder.
        show_progress_bar: of the encoder.

    Returns:
        ``{"tasks": {name: {"pairs": int, "spearman": float}}, "average": float}``, correlations from -1 to 1.

    Raises:
        ValueError: a correlation is undefined because the model gives all pairs of a task the same similarity.
    """
    embeddings = encode_once(model, tasks, batch_size, show_progress_bar)
    scores = {pairs.name: {"pairs": len(pairs), "spearman": score_pairs(pairs, embeddings, model)} for pairs in tasks}
    return {"tasks": scores, "average": float(np.mean([score["spearman"] for score in scores.values()]))}
