"""How varied a text is, by its words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from sbert_flow.views import bare


def variety(edited: Sequence[str], sample: Sequence[str]) -> dict[str, float]:
    """What the advice looks at in the text: "word_overlap" of the edited sentences, "concentration" of the sample."""
    return {"word_overlap": word_overlap(edited), "concentration": concentration(sample)}


def word_overlap(sentences: Sequence[str]) -> float:
    """Mean share of words that two of the sentences have in common, of those that either has (Jaccard), 0 to 1."""
    words = [_words(sentence) for sentence in sentences]
    return float(np.mean([len(a & b) / len(a | b) for a, b in itertools.combinations(words, 2)]))


def concentration(sentences: Sequence[str]) -> float:
    r"""Mean squared cosine of two sentences' tf-idf vectors: how much the text keeps to a few topics, 0 to 1.

    .. math:: E[\cos(t_i, t_j)^2], \quad i \ne j

    Unlike :func:`word_overlap` it hardly counts the words that all sentences share. Text of k topics that share no
    words, and within which all sentences have the same words, has 1 / k, where there are many sentences. Blank ones do
    not count; two others are needed.
    """
    spoken = [sentence for sentence in sentences if sentence.strip()]
    vectors = TfidfVectorizer(analyzer=_words).fit_transform(spoken)  # rows of length 1
    count = len(spoken)
    return float(((vectors @ vectors.T).power(2).sum() - count) / (count * (count - 1)))


def _words(sentence: str) -> frozenset[str]:
    return frozenset(bare(word) for word in sentence.split())
