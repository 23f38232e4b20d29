"""Edits and views: what they keep, what they change, and that a seed fixes them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from sbert_flow.data import sample_sentences
from sbert_flow.views import (
    DropWords,
    InsertWords,
    ToggleFinalMark,
    editable,
    final_mark,
    function_words,
    make_views,
    shuffle_words,
    surface_edits,
)

SENTENCE = "The old ferry carries the mail to the island."


def test_function_words_of_english_text_are_function_words() -> None:
    found = function_words(sample_sentences())
    assert {"the", "a", "of", "to", "in", "and", "on", "is", "with", "for", "at"} <= set(found)
    content = set("man woman dog people house water children river train".split())
    assert not content & set(found[:40])


def test_function_words_follow_the_text_not_the_language() -> None:
    content = [f"noun{i}" for i in range(60)]
    rng = random.Random(0)
    # "zu" stands between any two words, "kat" only after "de", though both are as frequent.
    sentences = [f"{rng.choice(content)} zu {rng.choice(content)} de kat" for _ in range(300)]
    assert function_words(sentences, 1) == ["zu"]


def test_no_words_where_nothing_is_separated_by_spaces() -> None:
    sentences = ["今日は天気がいい。", "明日は雨が降る。", "彼は本を読んでいる。"]
    assert function_words(sentences) == []
    assert final_mark(sentences) == "。"
    assert set(surface_edits(sentences)) == {"shuffle", "mark", "repeat"}
    assert editable(sentences, 10) == []


def test_shuffle_keeps_the_words() -> None:
    view = shuffle_words(SENTENCE, random.Random(1))
    assert view != SENTENCE
    assert Counter(view.split()) == Counter(SENTENCE.split())


def test_drop_leaves_out_half_of_the_words_given_and_no_others() -> None:
    edit = DropWords(frozenset({"the", "to"}))
    rng = random.Random(0)
    views = [edit(SENTENCE, rng).split() for _ in range(400)]
    content = [word for word in SENTENCE.split() if word.lower() not in ("the", "to")]
    assert all([word for word in view if word.lower() not in ("the", "to")] == content for view in views)
    mean_kept = sum(len(view) - len(content) for view in views) / len(views)
    assert mean_kept == pytest.approx(2, abs=0.2)  # of 4, sd of the mean 0.05
    assert DropWords(frozenset({"to", "be"}))("To be", random.Random(0)) != ""


@pytest.mark.parametrize(("words", "inserted"), [(4, 1), (6, 2), (12, 3)])
def test_insert_adds_one_and_a_sixth(words: int, inserted: int) -> None:
    sentence = " ".join(f"w{i}" for i in range(words))
    view = InsertWords(("of", "the"))(sentence, random.Random(0)).split()
    assert [word for word in view if word not in ("of", "the")] == sentence.split()
    assert len(view) == words + inserted


@pytest.mark.parametrize(
    ("sentence", "view"),
    [("It rains.", "It rains"), ("It rains", "It rains."), ("Does it?!", "Does it"), ("...", "..."), ("", "")],
)
def test_toggle_final_mark(sentence: str, view: str) -> None:
    assert ToggleFinalMark()(sentence, random.Random(0)) == view


def test_views_depend_on_seed_and_sentence_alone() -> None:
    sentences = sample_sentences()[:50]
    edits = surface_edits(sample_sentences())
    views = make_views(sentences, edits, seed=3)
    again = make_views(sentences[::-1][:20], edits, seed=3)
    for name in edits:
        assert again[name] == views[name][::-1][:20]
    assert make_views(sentences, edits, seed=4)["shuffle"] != views["shuffle"]


def test_sample_of_editable_sentences() -> None:
    sentences = ["Too short this", *(f"this one has number {i}" for i in range(100))]
    chosen = editable(sentences, 30, seed=1)
    assert len(chosen) == 30 and "Too short this" not in chosen
    assert chosen == editable(sentences, 30, seed=1) != editable(sentences, 30, seed=2)
    assert sentences.index(chosen[0]) < sentences.index(chosen[-1])


def raises(sentence: str, rng: random.Random) -> str:
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({}, "at least one edit"),
        ({"mine": 3}, "'mine' must be a function"),
        ({"mine": lambda sentence, rng: None}, "'mine' must return a string.*old ferry.*None"),
        ({"mine": raises}, "'mine' failed on 'The old ferry.*KeyError.*lost"),
    ],
)
def test_bad_edits_are_named(edits, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_views([SENTENCE], edits)
