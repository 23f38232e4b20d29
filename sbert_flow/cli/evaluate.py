"""``sbert-flow evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    model: Annotated[str, typer.Argument(help="SentenceTransformer: folder or hub id, with or without a flow.")],
    sts: Annotated[Path, typer.Option(help="Folder of the tasks: <TASK>/<split>.jsonl.")],
    task: Annotated[
        list[str] | None, typer.Option(help="Task; may be repeated. Default: all of the seven there.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of each task.")] = "test",
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the scores here.")] = None,
    batch_size: Annotated[int, typer.Option(help="Sentences the encoder takes at a time.")] = 32,
) -> None:
    """Spearman correlation of cosine similarity with human scores on the STS tasks, over all pairs of a task."""
    import json
    import sys

    from rich.console import Console
    from rich.table import Table

    from sbert_flow.data import read_sts
    from sbert_flow.evaluation import evaluate_sts
    from sbert_flow.fitting.adapt import warn_if_shifted
    from sbert_flow.modules import load

    if json_file is not None and not json_file.parent.is_dir():
        raise FileNotFoundError(f"no folder {json_file.parent} to write {json_file.name} into.")
    tasks = read_sts(sts, task, split)
    loaded = load(model)
    warn_if_shifted(loaded, list(dict.fromkeys(sentence for pairs in tasks for sentence in pairs.sentences)))
    scores = {
        "model": model,
        **evaluate_sts(loaded, tasks, batch_size=batch_size, show_progress_bar=sys.stderr.isatty()),
    }
    table = Table(title=f"{model}: Spearman x 100, all pairs of a task ({split})", title_justify="left")
    for heading in ("task", "pairs", "Spearman"):
        table.add_column(heading, justify="left" if heading == "task" else "right")
    for name, score in scores["tasks"].items():
        table.add_row(name, f"{score['pairs']:,}", f"{100 * score['spearman']:.2f}")
    table.add_section()
    table.add_row("average", "", f"{100 * scores['average']:.2f}")
    Console().print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(scores, indent=2) + "\n", "utf-8")
