"""Edits of a sentence's surface that keep its content words.

An edit is any function ``(sentence, rng) -> sentence`` that takes its randomness from ``rng``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sbert_flow.views.words import bare, final_mark, function_words, is_punctuation

Edit = Callable[[str, random.Random], str]
"""A user's own edit has this form too. It should change how a sentence is said, never what it says."""


def shuffle_words(sentence: str, rng: random.Random) -> str:
    """The words in random order."""
    words = sentence.split()
    rng.shuffle(words)
    return " ".join(words)


@dataclass(frozen=True)
class DropWords:
    """Leave out each of the given words with probability 1/2; a sentence of nothing else stays as it is.

    Attributes:
        words: lower case, without punctuation.
    """

    words: frozenset[str]

    def __call__(self, sentence: str, rng: random.Random) -> str:
        kept = [word for word in sentence.split() if bare(word) not in self.words or rng.random() < 0.5]
        return " ".join(kept) or sentence


@dataclass(frozen=True)
class InsertWords:
    """Insert 1 + floor(n / 6) of the given words at random places of a sentence of n words.

    Attributes:
        words: what is drawn from, all with the same probability.
    """

    words: tuple[str, ...]

    def __call__(self, sentence: str, rng: random.Random) -> str:
        words = sentence.split()
        for _ in range(1 + len(words) // 6):
            words.insert(rng.randint(0, len(words)), rng.choice(self.words))
        return " ".join(words)


@dataclass(frozen=True)
class ToggleFinalMark:
    """Remove the punctuation at the end of the sentence, or add a mark where there is none.

    Attributes:
        mark: what is added.
    """

    mark: str = "."

    def __call__(self, sentence: str, rng: random.Random) -> str:
        sentence = sentence.rstrip()
        end = len(sentence)
        while end and is_punctuation(sentence[end - 1]):
            end -= 1
        if not end:  # nothing but punctuation
            return sentence
        return sentence[:end].rstrip() if end < len(sentence) else sentence + self.mark


def repeat(sentence: str, rng: random.Random) -> str:
    """The sentence twice: the same content in twice the length."""
    return f"{sentence} {sentence}"


INSERTED_WORDS = 30
"""Inserted words are drawn from this many of the most frequent function words."""


def surface_edits(sentences: Iterable[str]) -> dict[str, Edit]:
    """The five edits of the surface map, with function words and final mark estimated from the sentences.

    They need no list of any language. Where no word comes twice (a script written without spaces), the edits "drop"
    and "insert" are left out.

    Returns:
        "shuffle", "mark", "repeat", "drop" and "insert" by name.
    """
    sentences = list(sentences)
    edits: dict[str, Edit] = {
        "shuffle": shuffle_words,
        "mark": ToggleFinalMark(final_mark(sentences)),
        "repeat": repeat,
    }
    words = function_words(sentences)
    if words:
        edits["drop"] = DropWords(frozenset(words))
        edits["insert"] = InsertWords(tuple(words[:INSERTED_WORDS]))
    return edits
