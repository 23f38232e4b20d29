"""``sbert-flow mteb``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def mteb(
    model: Annotated[str, typer.Argument(help="Fitted model: folder or hub id.")],
    tasks: Annotated[list[str], typer.Option("--tasks", "--task", help="MTEB task; may be repeated.")],
    output: Annotated[Path, typer.Option(help="Folder; files go to results/<org>__<model>/<revision>/ in it.")],
    more_tasks: Annotated[list[str] | None, typer.Argument(help="Further tasks after the first --tasks.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Local data, <TASK>/test.jsonl, instead of the hub's: not for the leaderboard.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the model, org/model. Default: hub id or local/<folder>.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Its revision. Default: the hub's commit, or a hash of the folder's content.")
    ] = None,
    trained_on: Annotated[
        list[str] | None, typer.Option(help="MTEB task whose text encoder or map has seen; may be repeated.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Sentences the encoder takes at a time.")] = 32,
) -> None:
    """Evaluate a fitted model with MTEB and write results as the leaderboard's repository wants them."""
    from rich.console import Console
    from rich.table import Table

    from sbert_flow.evaluation.mteb_model import identify, model_meta, require_mteb
    from sbert_flow.evaluation.mteb_run import check_results_folder, mteb_tasks, run_mteb
    from sbert_flow.modules import load

    require_mteb()
    name, revision = identify(model, name, revision)
    folder = check_results_folder(output, name, revision)
    ready = mteb_tasks([*tasks, *(more_tasks or [])], data)
    loaded = load(model)
    scores = run_mteb(
        loaded, model_meta(loaded, name, revision, training_datasets=trained_on), ready, output, batch_size
    )
    table = Table(title=f"{name} at {revision}: MTEB main score x 100", title_justify="left")
    table.add_column("task")
    table.add_column("score", justify="right")
    for task, score in scores.items():
        table.add_row(task, f"{100 * score:.2f}")
    console = Console()
    console.print(table)
    console.print(f"Results in {folder}.", highlight=False, soft_wrap=True)
    if data is not None:
        console.print('They are of local data (dataset revision "local"): run without --data for the leaderboard.')
