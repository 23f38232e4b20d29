"""``sbert-flow evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table


def evaluate(
    model: Annotated[str, typer.Argument(help="SentenceTransformer: folder or hub id, with or without a flow.")],
    sts: Annotated[str, typer.Option(help="Folder of the tasks: <TASK>/<split>.jsonl; or hub.")],
    task: Annotated[list[str] | None, typer.Option(help="Task; may be repeated. Default: the seven.")] = None,
    split: Annotated[str, typer.Option(help="Split of each task.")] = "test",
    detail: Annotated[bool, typer.Option("--detail", help="Also Pearson and the means over subsets.")] = False,
    bootstrap: Annotated[int, typer.Option(help="Resamples of a 95 % interval, shown with --detail; 0: none.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the scores here.")] = None,
    card: Annotated[
        bool, typer.Option("--card", help="Write the scores, before and after the map, in the card.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Sentences the encoder takes at a time.")] = 32,
) -> None:
    """Spearman correlation of cosine similarity with human scores on the STS tasks, over all pairs of a task."""
    import json
    import sys

    from rich.console import Console

    from sbert_flow.cli.tasks import read_tasks
    from sbert_flow.evaluation import evaluate_sts
    from sbert_flow.evaluation.card import saved_card, write_scores
    from sbert_flow.fitting.adapt import warn_if_shifted
    from sbert_flow.modules import load
    from sbert_flow.modules.pipeline import encoder_before_map

    if json_file is not None and json_file.is_dir():
        raise IsADirectoryError(f"{json_file} is a folder. Name a file for the scores.")
    if json_file is not None and not json_file.parent.is_dir():
        raise FileNotFoundError(f"no folder {json_file.parent} to write {json_file.name} into.")
    if card:
        saved_card(model)
    tasks = read_tasks(sts, task, split)
    loaded = load(model)
    warn_if_shifted(loaded, list(dict.fromkeys(sentence for pairs in tasks for sentence in pairs.sentences)))
    settings: dict[str, Any] = {"batch_size": batch_size, "show_progress_bar": sys.stderr.isatty()}
    scores = {"model": model, **evaluate_sts(loaded, tasks, detail=detail, bootstrap=bootstrap, **settings)}
    Console().print(_table(scores, f"{model}: Spearman x 100, all pairs of a task ({split})", detail))
    if json_file is not None:
        json_file.write_text(json.dumps(scores, indent=2) + "\n", "utf-8")
    if card:
        write_scores(model, evaluate_sts(encoder_before_map(loaded), tasks, **settings), scores, split)


def _table(scores: dict[str, Any], title: str, detail: bool) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    columns = ["spearman", *(["interval", "pearson", "mean", "wmean"] if detail else [])]
    for heading in ("task", "pairs", *("95 %" if c == "interval" else c.capitalize() for c in columns)):
        table.add_column(heading, justify="left" if heading == "task" else "right")
    for name, score in scores["tasks"].items():
        table.add_row(name, f"{score['pairs']:,}", *(_percent(score[column]) for column in columns))
    table.add_section()
    table.add_row(f"average of {len(scores['tasks'])}", "", f"{100 * scores['average']:.2f}")
    return table


def _percent(value: float | tuple[float, float] | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.2f}" if isinstance(value, float) else " to ".join(f"{100 * v:.1f}" for v in value)
