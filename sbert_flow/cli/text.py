"""Several text files after one --text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

MoreText = Annotated[list[str] | None, typer.Argument(help="Further text files after the first --text.")]
"""Arguments that no option takes: the shell's ``--text *.txt`` gives its option the first file only."""


def all_text(text: Sequence[str] | None, more_text: Sequence[str] | None) -> list[str]:
    """The files of both.

    Raises:
        ValueError: arguments that follow no --text.
    """
    if more_text and not text:
        raise ValueError(f"got an unexpected argument {more_text[0]!r}. Name text files after --text.")
    return [*(text or []), *(more_text or [])]
