"""``sbert-flow analyze``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbert_flow.cli.text import MoreText, all_text


def analyze(
    model: Annotated[str, typer.Argument(help="Fitted model: folder or hub id.")],
    sts: Annotated[str, typer.Option(help="Folder of the tasks: <TASK>/<split>.jsonl; or hub.")],
    output: Annotated[Path, typer.Option(help="Folder for report.html, report.md and the figure.")],
    task: Annotated[list[str] | None, typer.Option(help="Task; may be repeated. Default: STSBenchmark.")] = None,
    split: Annotated[str, typer.Option(help="Split of each task.")] = "test",
    qnli: Annotated[
        str | None, typer.Option(help="File with question, sentence and label (.jsonl, .tsv), or hub for GLUE's QNLI.")
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="Text to count words in; may be repeated. Default: the vocabulary's order."),
    ] = None,
    more_text: MoreText = None,
    column: Annotated[list[str] | None, typer.Option(help="Text column of --text; may be repeated.")] = None,
    batch_size: Annotated[int, typer.Option(help="Sentences the encoder takes at a time.")] = 32,
) -> None:
    """Look at a model's space before and after its map: isotropy, lexical bias, word frequency, QNLI."""
    import sys
    from importlib.util import find_spec

    from rich.console import Console

    from sbert_flow.cli.tasks import read_tasks
    from sbert_flow.data import read_sentences
    from sbert_flow.evaluation import report
    from sbert_flow.evaluation.analyze import analyze as run
    from sbert_flow.evaluation.lexical import read_entailment
    from sbert_flow.modules import load

    text = all_text(text, more_text)
    output.mkdir(parents=True, exist_ok=True)
    entailment = None if qnli is None else read_entailment(qnli)
    sentences = list(read_sentences(text, column)) if text else None
    analysis = run(
        load(model), read_tasks(sts, task or ["STSBenchmark"], split), entailment=entailment, text=sentences,
        batch_size=batch_size, show_progress_bar=sys.stderr.isatty(),
    )  # fmt: skip
    title = Path(model).resolve().name if Path(model).is_dir() else model
    console = Console()
    png = None
    if find_spec("matplotlib"):
        report.draw(analysis, output / "report.png")
        png = (output / "report.png").read_bytes()
    else:
        console.print("No figure: matplotlib is not installed. Install it with: pip install 'sbert-flow[plot]'")
    (output / "report.md").write_text(report.as_markdown(analysis, title, "report.png" if png else None), "utf-8")
    (output / "report.html").write_text(report.as_html(analysis, title, png), "utf-8")
    console.print(report.summary(analysis), highlight=False)
    console.print(f"Written: {output / 'report.html'}, {output / 'report.md'}", highlight=False, soft_wrap=True)
