"""The ``sbert-flow`` command."""

from __future__ import annotations

import sys
import warnings

import typer
from rich.console import Console
from rich.markup import escape

from sbert_flow.cli.adapt import adapt
from sbert_flow.cli.advise import advise
from sbert_flow.cli.analyze import analyze
from sbert_flow.cli.compare import compare
from sbert_flow.cli.demo import demo
from sbert_flow.cli.evaluate import evaluate
from sbert_flow.cli.fit import fit
from sbert_flow.cli.mteb import mteb
from sbert_flow.cli.score import score
from sbert_flow.cli.train import train

app = typer.Typer(
    help="BERT-flow for sentence-transformers: fit a flow on unlabelled text, evaluate, save.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(advise)
app.command()(fit)
app.command()(train)
app.command()(adapt)
app.command()(score)
app.command()(evaluate)
app.command()(compare)
app.command()(mteb)
app.command()(analyze)
app.command()(demo)

USER_ERROR = 2


def main() -> None:
    """Run the command; errors that the user can mend are one line, not a traceback."""
    console = Console(stderr=True)
    warnings.showwarning = lambda message, *_, **__: console.print(f"[yellow]Warning:[/yellow] {escape(str(message))}")
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        said = "\n".join([str(error), *getattr(error, "__notes__", [])])
        console.print(f"[red]Error:[/red] {escape(said)}")
        sys.exit(USER_ERROR)
