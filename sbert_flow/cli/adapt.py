"""``sbert-flow adapt``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbert_flow.cli.text import MoreText, all_text


def adapt(
    model: Annotated[str, typer.Argument(help="Model with a fitted flow: folder or hub id.")],
    output: Annotated[Path, typer.Option(help="Folder for the adapted model.")],
    text: Annotated[list[str] | None, typer.Option(help="File of the new domain's text; may be repeated.")] = None,
    more_text: MoreText = None,
    reset: Annotated[bool, typer.Option("--reset", help="Undo the adaptation instead.")] = False,
    column: Annotated[list[str] | None, typer.Option(help="Text column; may be repeated.")] = None,
    subset: Annotated[str | None, typer.Option(help="Configuration of a hub dataset.")] = None,
    batch_size: Annotated[int, typer.Option(help="Sentences the encoder takes at a time.")] = 32,
) -> None:
    """Adapt a fitted model to unlabelled text of a new domain, in seconds."""
    from rich.console import Console

    from sbert_flow import fitting
    from sbert_flow.data import read_sentences
    from sbert_flow.modules import load, save
    from sbert_flow.modules.io import check_output
    from sbert_flow.modules.pipeline import split_at_flow

    text = all_text(text, more_text)
    if bool(text) == reset:
        raise ValueError("give either --text, to adapt, or --reset, to undo an adaptation.")
    check_output(output)
    loaded = load(model)
    _, layer = split_at_flow(loaded)
    console = Console()
    if reset:
        if not layer.adapted:
            raise ValueError(f"{model} is not adapted, so there is nothing to reset.")
        layer.reset_adaptation()
        console.print("Undid the adaptation.")
    else:
        done = fitting.adapt(loaded, list(read_sentences(text, column, subset)), batch_size=batch_size)
        shift, decision = done.shift, done.advice.decision
        low, high = shift.interval
        needless = decision == "flow" and not shift.large
        console.print(
            f"The new text takes {shift.bits_per_dimension:+.3f} bits per dimension against the fitted text "
            f"({low:+.3f} to {high:+.3f}, {shift.sentences:,} sentences): a {'large' if shift.large else 'small'} "
            f"shift{', for which the map as fitted may serve as well' if needless else ''}."
            f"\nAdvice on the new text: {decision}. The model now writes {_written(done.raw_weight)}.",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
    save(loaded, output)
    console.print(f"Saved in {output}.", highlight=False, markup=False, soft_wrap=True)


def _written(raw_weight: float | None) -> str:
    if raw_weight is None:
        return "the same as before, with mean and covariance of the new text"
    if raw_weight in (0, 1):
        return "the raw embedding alone" if raw_weight else "the map alone"
    return f"{raw_weight:.0%} raw embedding and {1 - raw_weight:.0%} map"
