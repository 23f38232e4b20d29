"""``sbert-flow compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbert_flow.cli.text import MoreText, all_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def compare(
    encoder: Annotated[str, typer.Argument(help="Encoder: hub id or folder.")],
    sts: Annotated[str, typer.Option(help="Folder of the tasks: <TASK>/<split>.jsonl; or hub.")],
    text: Annotated[
        list[str] | None,
        typer.Option(help="Text to fit on, as for fit; may be repeated. Default: the tasks' sentences."),
    ] = None,
    more_text: MoreText = None,
    column: Annotated[list[str] | None, typer.Option(help="Text column of --text; may be repeated.")] = None,
    subset: Annotated[str | None, typer.Option(help="Configuration of a hub dataset in --text.")] = None,
    each_task: Annotated[
        bool, typer.Option("--each-task", help="Fit a map for each task, on its own sentences, as the paper does.")
    ] = False,
    task: Annotated[list[str] | None, typer.Option(help="Task; may be repeated. Default: the seven.")] = None,
    pooling: Annotated[
        list[str] | None,
        typer.Option(
            help="Pooling, as for fit; may be repeated. Default: mean, cls and three averages of two layers."
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="raw, whitening, whitening-k or a recipe; may be repeated. Default: all."),
    ] = None,
    k: Annotated[int | None, typer.Option(help="Directions of whitening-k. Default: a third of the width.")] = None,
    aggregation: Annotated[str, typer.Option(help="all, mean or wmean over the subsets of STS12 to 16.")] = "all",
    quoted: Annotated[bool, typer.Option("--quoted", help="Show papers' rows for BERT beside.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="Folder for comparison.json, .csv, .md and, with matplotlib, .png.")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="Keep the embeddings here for the next run.")] = None,
    batch_size: Annotated[int, typer.Option(help="Sentences the encoder takes at a time.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the fits.")] = 0,
) -> None:
    """Raw embeddings, whitening and every recipe on several poolings, from one pass of the encoder."""
    import json
    from importlib.util import find_spec

    from rich.console import Console

    from sbert_flow.cli.tasks import read_tasks
    from sbert_flow.data import read_sentences
    from sbert_flow.evaluation import compare as comparing
    from sbert_flow.evaluation import tables
    from sbert_flow.evaluation.quoted import quoted_rows
    from sbert_flow.fitting.progress import Progress

    text = all_text(text, more_text)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    sentences = list(read_sentences(text, column, subset)) if text else None
    comparison = comparing.compare(
        encoder, read_tasks(sts, task), sentences,
        poolings=pooling or comparing.POOLINGS, methods=method or comparing.METHODS, aggregation=aggregation,
        each_task=each_task, fitted_on=" and ".join(Path(name).name for name in text) if text else None,
        k=k, seed=seed, batch_size=batch_size, store=store, progress=Progress(),
    )  # fmt: skip
    rows = quoted_rows(aggregation) if quoted else []
    console = Console()
    _show(console, *tables.table(comparison, rows), tables.caption(comparison))
    console.print(
        f"{comparison.encoded:,} distinct sentences encoded in one pass of {comparison.encode_seconds:.0f} s, "
        f"{len(comparison.rows)} rows.", highlight=False,
    )  # fmt: skip
    if output is None:
        return
    files = {
        "comparison.json": json.dumps(tables.as_json(comparison, rows), indent=2) + "\n",
        "comparison.csv": tables.as_csv(comparison, rows),
        "comparison.md": tables.as_markdown(comparison, rows),
    }
    for name, content in files.items():
        (output / name).write_text(content, "utf-8")
    written = list(files)
    if find_spec("matplotlib"):
        from sbert_flow.evaluation.plots import plot_comparison

        plot_comparison(comparison, output / "comparison.png")
        written.append("comparison.png")
    else:
        console.print("No figure: matplotlib is not installed. Install it with: pip install 'sbert-flow[plot]'")
    console.print(f"Written in {output}: {', '.join(written)}.", highlight=False)


def _show(console: Console, headings: list[str], cells: list[list[str]], caption: str) -> None:
    """Print the table: whole where it fits or the output is no terminal, else without the tasks' columns."""
    table = _table(headings, cells, caption)
    width = console.measure(table, options=console.options.update_width(1000)).maximum
    if not console.is_terminal:
        console.width = max(width, console.width)
    if width > console.width:
        kept = [0, 1, *range(headings.index("average"), len(headings))]
        table = _table([headings[i] for i in kept], [[line[i] for i in kept] for line in cells], caption)
        console.print("The terminal is too narrow for the tasks' columns; the files of --output have them.")
    console.print(table)


def _table(headings: list[str], cells: list[list[str]], caption: str) -> Table:
    from itertools import pairwise

    from rich.table import Table

    table = Table(title=caption, title_justify="left")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index < 2 else "right")
    for line, following in pairwise([*cells, ["", ""]]):
        table.add_row(*line, end_section=line[0] != following[0])
    return table
