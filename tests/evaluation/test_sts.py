from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

from sbert_flow.data import SentencePairs, sample_pairs
from sbert_flow.evaluation import evaluate_sts


@pytest.fixture(scope="module")
def model(minilm):
    return SentenceTransformer(minilm)


@pytest.fixture(scope="module")
def tasks():
    pairs = sample_pairs()
    halves = (slice(0, 60), slice(40, 100))
    return [
        SentencePairs(f"half{k}", pairs.sentences1[h], pairs.sentences2[h], pairs.scores[h])
        for k, h in enumerate(halves)
    ]


def test_scores_equal_the_librarys_evaluator_and_scipy(model, tasks):
    scores = evaluate_sts(model, tasks)
    for pairs in tasks:
        library = EmbeddingSimilarityEvaluator(pairs.sentences1, pairs.sentences2, pairs.scores, name="x")(model)
        first, second = model.encode(pairs.sentences1), model.encode(pairs.sentences2)
        cosine = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
        ours = scores["tasks"][pairs.name]
        assert ours["pairs"] == 60
        assert ours["spearman"] == pytest.approx(library["x_spearman_cosine"], abs=1e-6)
        assert ours["spearman"] == pytest.approx(spearmanr(cosine, pairs.scores)[0], abs=1e-6)
    assert scores["average"] == pytest.approx(np.mean([t["spearman"] for t in scores["tasks"].values()]))


def test_each_sentence_is_encoded_once(model, tasks, monkeypatch):
    encoded = []
    original = SentenceTransformer.encode

    def encode(self, sentences, **kwargs):
        encoded.extend(sentences)
        return original(self, sentences, **kwargs)

    monkeypatch.setattr(SentenceTransformer, "encode", encode)
    evaluate_sts(model, tasks)
    assert len(encoded) == len(set(encoded)) == len({s for pairs in tasks for s in pairs.sentences})


def test_an_undefined_correlation_is_said(model):
    pairs = SentencePairs("same", ["a", "b", "c"], ["a", "b", "c"], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="all 3 pairs of same have the same similarity"):
        evaluate_sts(Constant(modules=list(model.children())), [pairs])


class Constant(SentenceTransformer):
    def encode(self, sentences, **kwargs):
        return np.ones((len(sentences), 4), dtype=np.float32)
