"""Views of sentences: the same sentences after an edit."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from sbert_flow.views.edits import Edit

MIN_WORDS = 4
"""Shorter sentences are not edited: too little is left to shuffle or to leave out."""


def editable(sentences: Iterable[str], count: int, seed: int = 0, least_words: int = MIN_WORDS) -> list[str]:
    """A random sample of at most ``count`` sentences of at least four words, in their order."""
    long = [sentence for sentence in sentences if len(sentence.split()) >= least_words]
    if len(long) <= count:
        return long
    return [long[index] for index in sorted(random.Random(seed).sample(range(len(long)), count))]


def make_views(sentences: Iterable[str], edits: Mapping[str, Edit], seed: int = 0) -> dict[str, list[str]]:
    """Apply each edit to each sentence.

    The randomness of a view depends on seed, edit and sentence alone, not on the other sentences, so that views of a
    growing text stay the same and can be kept.

    Args:
        sentences: the text.
        edits: functions ``(sentence, rng) -> sentence`` by name; see :func:`sbert_flow.views.surface_edits`.
        seed: another seed gives other views.

    Returns:
        For each edit its views, in the order of the sentences.

    Raises:
        ValueError: no edits, one that cannot be called, raised an error, or returned something else than a string
            (edit and sentence are named).
    """
    if not edits:
        raise ValueError("at least one edit is needed. Leave edits out to get those of the surface map.")
    for name, edit in edits.items():
        if not callable(edit):
            raise ValueError(f"edit {name!r} must be a function (sentence, rng) -> sentence, but is {edit!r:.80}.")
    sentences = list(sentences)
    return {name: [_view(sentence, name, edit, seed) for sentence in sentences] for name, edit in edits.items()}


def _view(sentence: str, name: str, edit: Edit, seed: int) -> str:
    try:
        view = edit(sentence, random.Random(f"{seed}\n{name}\n{sentence}"))
    except Exception as error:  # it is the user's code: anything may come
        raise ValueError(f"edit {name!r} failed on {sentence!r:.80}: {type(error).__name__}: {error}") from error
    if not isinstance(view, str):
        raise ValueError(f"edit {name!r} must return a string, but for {sentence!r:.80} it returned {view!r:.80}.")
    return view
