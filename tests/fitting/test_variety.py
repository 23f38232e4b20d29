"""How varied a text is: closed forms, scikit-learn's own tf-idf, and text about one thing against text about many."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from sbert_flow.data import sample_sentences
from sbert_flow.fitting.variety import concentration, word_overlap


def test_overlap_of_three_sentences() -> None:
    # 1 of 5 words, 0 of 4, 1 of 3
    assert word_overlap(["The red boat", "the, sea wind!", "sea"]) == pytest.approx((1 / 5 + 0 / 4 + 1 / 3) / 3)


def test_concentration_of_topics_that_share_no_words() -> None:
    topics = [["the red boat sails", "Sails red, the boat.", "boat the sails red"], ["a b c", "c b a", "b! a c"]]
    # Of 6 x 5 ordered pairs, 2 x 3 x 2 have the same words: cosine 1, the others 0.
    assert concentration([sentence for topic in topics for sentence in topic]) == pytest.approx(12 / 30)
    assert concentration(["one two", "three four", "five six"]) == pytest.approx(0, abs=1e-12)


def test_concentration_is_the_mean_squared_cosine_of_tf_idf() -> None:
    text = [" ".join(word for word in line.lower().split() if word.isalpha()) for line in sample_sentences()[:60]]
    vectors = TfidfVectorizer(binary=True, token_pattern=r"\S+").fit_transform(text).toarray()
    cosines = (vectors @ vectors.T)[np.triu_indices(len(text), 1)]
    assert concentration(text) == pytest.approx(np.mean(cosines**2))


def test_text_about_few_things_is_concentrated() -> None:
    rng = np.random.default_rng(0)
    words = [f"word{i}" for i in range(400)]

    def text(topics: int) -> list[str]:
        """Sentences of six words, each about one topic; topics share the words evenly."""
        shares = np.split(np.array(words), topics)
        return ["the of a " + " ".join(rng.choice(shares[rng.integers(topics)], size=6)) for _ in range(300)]

    few, many = text(40), text(1)
    assert concentration(few) > 2 * concentration(many)
    assert word_overlap(few) == pytest.approx(word_overlap(many), rel=0.25)  # which the frequent words dominate


def test_sentences_without_words() -> None:
    assert concentration(["! ? ! ?", ". . . .", "- - - -"]) == 1
    assert concentration(["one two", "", "two one", " "]) == pytest.approx(1)
