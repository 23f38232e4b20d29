"""``sbert-flow advise``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbert_flow.cli.text import MoreText, all_text


def advise(
    encoder: Annotated[str, typer.Argument(help="Encoder: hub id or folder.")],
    text: Annotated[list[str], typer.Option(help="File of sentences or hub dataset id; may be repeated.")],
    more_text: MoreText = None,
    pooling: Annotated[
        list[str] | None,
        typer.Option(help="mean, cls, max, first-last, first-last-embedding, last-two or layer:K; may be repeated."),
    ] = None,
    column: Annotated[list[str] | None, typer.Option(help="Text column; may be repeated.")] = None,
    subset: Annotated[str | None, typer.Option(help="Configuration of a hub dataset.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write advice and measures here.")] = None,
    batch_size: Annotated[int, typer.Option(help="Sentences the encoder takes at a time.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the sample and of the edits.")] = 0,
) -> None:
    """Say, without labels, whether a map would help this encoder, and which."""
    import json
    import warnings
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from sbert_flow import fitting
    from sbert_flow.data import read_sentences
    from sbert_flow.modules import build_model

    if json_file is not None and not json_file.parent.is_dir():
        raise FileNotFoundError(f"no folder {json_file.parent} to write {json_file.name} into.")
    sentences = list(read_sentences(all_text(text, more_text), column, subset))
    advice = {}
    for name in pooling or ["mean"]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The encoder's own")  # nothing is left out of what the user will use
            model = build_model(encoder, name, "surface")
        advice[name] = fitting.advise(model, sentences, seed=seed, batch_size=batch_size)
    table = Table(title=f"{encoder}, without labels", title_justify="left")
    table.add_column("pooling")
    shown = ("view_separation", "room", "centred_room", "participation_ratio")
    for heading in shown:
        table.add_column(heading.replace("_", " "), justify="right")
    table.add_column("advice")
    for name, given in advice.items():
        numbers = [f"{given.measures[key]:.2f}" if key in given.measures else "" for key in shown]
        table.add_row(name, *numbers, given.decision + (f" ({given.recipe})" if given.recipe else ""))
    console = Console()
    console.print(table)
    for name, given in advice.items():
        console.print(f"{name}: {given}", highlight=False, markup=False)
        others = {key: value for key, value in given.measures.items() if key not in shown}
        console.print(
            "    " + ", ".join(
                f"{key.replace('_', ' ')} {value:{',' if isinstance(value, int) else '.4g'}}"
                for key, value in others.items()
            ),
            highlight=False, markup=False, style="dim",
        )  # fmt: skip
    if json_file is not None:
        report = {name: asdict(given) for name, given in advice.items()}
        json_file.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
