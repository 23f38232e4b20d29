"""The encoder's word embeddings by word frequency (Li et al., 2020, table 1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

NEIGHBOURS = (3, 5, 7)
BINS = ((0, 100), (100, 500), (500, 5_000), (5_000, 10_000), (10_000, 50_000), (50_000, 10**9))
"""Bins of frequency ranks; the first four end where the paper's do."""


@dataclass(frozen=True)
class FrequencyBin:
    """Word embeddings of words of similar frequency.

    Attributes:
        first, last: frequency ranks, from 0, last included.
        words: how many.
        norm: mean l2 norm.
        distance: mean l2 distance to the k nearest neighbours among all words, for each k of :data:`NEIGHBOURS`.
    """

    first: int
    last: int
    words: int
    norm: float
    distance: dict[int, float]


def word_embeddings(model: SentenceTransformer) -> tuple[np.ndarray, list[str]]:
    """The input embeddings of the vocabulary, shape (words, d), and their tokens; special and unused tokens left out.

    Raises:
        ValueError: the encoder has no table of input embeddings, or no vocabulary.
    """
    inner: Any = getattr(model[0], "model", None)
    table = inner.get_input_embeddings() if hasattr(inner, "get_input_embeddings") else None
    tokenizer: Any = model.tokenizer
    if table is None or not hasattr(tokenizer, "get_vocab"):
        raise ValueError(f"{type(model[0]).__name__} has no word embeddings of a vocabulary that could be looked at.")
    special = set(getattr(tokenizer, "all_special_tokens", ()))
    weight = table.weight.detach().float().cpu().numpy()
    vocabulary = sorted((index, token) for token, index in tokenizer.get_vocab().items())
    kept = [
        (index, token) for index, token in vocabulary
        if index < len(weight) and token not in special and not token.startswith("[unused")
    ]  # fmt: skip
    return weight[[index for index, _ in kept]], [token for _, token in kept]


def count_tokens(model: SentenceTransformer, sentences: Iterable[str]) -> Counter[str]:
    """How often each token of the vocabulary occurs in the sentences."""
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(model.tokenizer.tokenize(sentence))
    return counts


def frequency_bins(
    embeddings: np.ndarray, tokens: list[str], counts: Counter[str] | None = None, sample: int = 1000, seed: int = 0
) -> list[FrequencyBin]:
    """Norms and neighbour distances of word embeddings, bin by bin of frequency.

    Args:
        embeddings: shape (words, d), in the order of ``tokens``.
        tokens: the words.
        counts: occurrences in some text; words that do not occur are left out. None takes the order of the vocabulary,
            which WordPiece tokenizers sort by frequency, roughly, but for their alphabet: single characters, which
            stand first, are left out.
        sample: words of a bin whose neighbours are searched.
        seed: of that sample.

    Raises:
        ValueError: fewer than 16 words are left.
    """
    if counts is None:
        embeddings = embeddings[[len(token.removeprefix("##")) > 1 for token in tokens]]
    else:
        order = [i for i in np.argsort([-counts[token] for token in tokens], kind="stable") if counts[tokens[i]]]
        embeddings = embeddings[order]
    if len(embeddings) < 16:
        raise ValueError(f"frequency bins need at least 16 words, but only {len(embeddings)} occur. Give more text.")
    rng = np.random.default_rng(seed)
    everything = torch.from_numpy(embeddings)
    bins = []
    for start, stop in BINS:
        rows = np.arange(start, min(stop, len(embeddings)))
        if not len(rows):
            break
        chosen = rng.choice(rows, min(sample, len(rows)), replace=False)
        distances = torch.cdist(everything[chosen], everything).sort(dim=1).values[:, 1 : max(NEIGHBOURS) + 1]
        bins.append(
            FrequencyBin(
                int(rows[0]), int(rows[-1]), len(rows), float(np.linalg.norm(embeddings[rows], axis=1).mean()),
                {k: float(distances[:, :k].mean()) for k in NEIGHBOURS},
            )
        )  # fmt: skip
    return bins
