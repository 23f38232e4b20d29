"""Words of a text that carry little meaning, estimated from the text itself."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

CANDIDATES = 200
FUNCTION_WORDS = 80


def is_punctuation(character: str) -> bool:
    """Whether Unicode calls the character punctuation, in any script."""
    return unicodedata.category(character).startswith("P")


def bare(word: str) -> str:
    """The word in lower case without punctuation at its ends; empty where nothing else is left."""
    word = word.lower()
    start, end = 0, len(word)
    while start < end and is_punctuation(word[start]):
        start += 1
    while end > start and is_punctuation(word[end - 1]):
        end -= 1
    return word[start:end]


def function_words(sentences: Iterable[str], count: int = FUNCTION_WORDS) -> list[str]:
    r"""Words that look like function words ("the", "of", "is"), most frequent first, without a list of any language.

    Of the 200 most frequent words, those whose neighbours are the least predictable, that is with the largest

    .. math:: H(\text{word before}) + H(\text{word after})

    "of" stands between all kinds of words; "dog", in a text about dogs, follows "a" and "the". Words are what spaces
    separate, in lower case, so the result is empty for a script written without them.

    Args:
        sentences: the text.
        count: how many words at most.
    """
    counts: Counter[str] = Counter()
    before: defaultdict[str, Counter[str]] = defaultdict(Counter)
    after: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sentence in sentences:
        words = [word for word in map(bare, sentence.split()) if word]
        counts.update(words)
        for first, second in pairwise(["", *words, ""]):  # "" is the edge of the sentence
            after[first][second] += 1
            before[second][first] += 1
    # In text without spaces every sentence is one word, seen once: not a frequent one.
    candidates = [word for word, times in counts.most_common(CANDIDATES) if times > 1]
    chosen = sorted(candidates, key=lambda word: -_entropy(before[word]) - _entropy(after[word]))[:count]
    return sorted(chosen, key=lambda word: -counts[word])


def _entropy(counts: Counter[str]) -> float:
    total = counts.total()
    return -sum(times / total * math.log(times / total) for times in counts.values())


def final_mark(sentences: Iterable[str]) -> str:
    """The punctuation mark that ends most sentences; a full stop where none does."""
    ends = Counter(text[-1] for text in map(str.rstrip, sentences) if text and is_punctuation(text[-1]))
    return ends.most_common(1)[0][0] if ends else "."
