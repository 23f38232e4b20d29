"""Checks of what users hand in, made before any work starts."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

MIN_ROWS = 16
"""Fewer sentences or embeddings than this say nothing about the spread of a space."""

EQUAL = 1e-6
"""Embeddings that differ by less than this share of their size differ by rounding only."""


def check_embeddings(embeddings: Any, width: int | None = None, min_rows: int = 1) -> Tensor:
    """Return ``embeddings`` as a finite float32 tensor of shape (n, d) on its own device.

    Args:
        embeddings: tensor, array or list of rows, shape (n, d).
        width: the d that is required; None takes any d >= 2.
        min_rows: the smallest n allowed.

    Raises:
        ValueError: wrong shape, too few rows, NaN or infinite values (with their count and rows), or, where more than
            one row is asked for, all rows equal.
    """
    if not isinstance(embeddings, Tensor):
        try:
            embeddings = torch.as_tensor(np.asarray(embeddings))
        except (TypeError, ValueError) as error:
            raise ValueError(f"embeddings must be numbers in rows of equal length ({error}).") from error
    if embeddings.ndim != 2 or embeddings.shape[1] < 2 or (width is not None and embeddings.shape[1] != width):
        wanted = "(n, d) with d >= 2" if width is None else f"(n, {width})"
        raise ValueError(
            f"embeddings must have shape {wanted}, but got {tuple(embeddings.shape)}. "
            "The layer's embedding_dimension must equal the width of the embeddings it gets."
        )
    if len(embeddings) < min_rows:
        raise ValueError(f"at least {min_rows} embeddings are needed, but got {len(embeddings)}. Give more sentences.")
    embeddings = embeddings.detach().float()
    # One sum instead of n x d booleans: any NaN or infinity makes the row's sum so.
    bad = (~torch.isfinite(embeddings.sum(dim=1, dtype=torch.float64))).nonzero().flatten().tolist()
    if bad:
        rows = ", ".join(map(str, bad[:10])) + (", ..." if len(bad) > 10 else "")
        raise ValueError(
            f"{len(bad)} of {len(embeddings)} embeddings hold NaN or infinity (rows {rows}). "
            "Remove these sentences, or load the encoder in float32 or bfloat16: float16 overflows."
        )
    if min_rows > 1 and bool((embeddings - embeddings[0]).abs().max() <= EQUAL * embeddings.abs().max()):
        raise ValueError(
            f"all {len(embeddings)} embeddings are equal, so there is nothing to learn from them. "
            "Check the text and the encoder."
        )
    return embeddings


def iterate_sentences(sentences: Any) -> Iterator[str]:
    """Yield the sentences, each checked as it passes.

    Args:
        sentences: any iterable of strings.

    Lone surrogates, the half characters of broken text, which no tokenizer takes, are replaced by U+FFFD.

    Raises:
        ValueError: a single string, something that is not iterable (both at once), an item that is not a string.

    Warns:
        UserWarning: some are empty; some held surrogates; once all have passed.
    """
    if isinstance(sentences, str) or not isinstance(sentences, Iterable):
        raise ValueError(
            f"sentences must be a list of strings, but got {type(sentences).__name__}: {sentences!r:.80}."
        )
    return _checked(sentences)


def _checked(sentences: Iterable[Any]) -> Iterator[str]:
    empty = broken = 0
    first_broken = ""
    for index, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            raise ValueError(
                f"sentences must be strings, but item {index} is {sentence!r:.80} ({type(sentence).__name__}). "
                "Remove it or convert it to a string."
            )
        empty += not sentence.strip()
        mended = well_formed(sentence)
        if mended != sentence:
            first_broken = first_broken or f"item {index}, {sentence!r:.80}"
            broken += 1
        yield mended
    if empty:
        warnings.warn(f"{empty} of the sentences are empty; all their embeddings are the same point.", stacklevel=3)
    if broken:
        warnings.warn(
            f"{broken} of the sentences hold surrogates (halves of characters: broken text), first {first_broken}. "
            "U+FFFD takes the place of lone ones; mend the text if these sentences matter.",
            stacklevel=3,
        )


def well_formed(sentence: str) -> str:
    """The sentence with each lone surrogate replaced by U+FFFD, and each pair by the character that it stands for."""
    return sentence.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def check_enough(distinct: int, least: int = MIN_ROWS) -> None:
    """Raise ValueError if there are fewer than ``least`` distinct sentences."""
    if distinct < least:
        raise ValueError(
            f"at least {least} different sentences are needed, but got {distinct}. A few hundred are enough for "
            "most of the gain; more text of the target domain is better."
        )


def check_sentences(sentences: Any, least: int = MIN_ROWS) -> list[str]:
    """Return the distinct sentences in their order.

    Args:
        sentences: any iterable of strings.
        least: how many distinct ones are needed.

    Raises:
        ValueError: a single string, items that are not strings, too few distinct sentences.

    Warns:
        UserWarning: some are empty; some held lone surrogates, which U+FFFD replaces.
    """
    distinct = list(dict.fromkeys(iterate_sentences(sentences)))
    check_enough(len(distinct), least)
    return distinct
