"""``sbert-flow train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbert_flow.cli.fit import INTERRUPTED
from sbert_flow.cli.text import MoreText, all_text


def train(
    encoder: Annotated[str, typer.Argument(help="Encoder: hub id or folder.")],
    text: Annotated[
        list[str],
        typer.Option(
            help="File of sentences (.txt one a line, .jsonl, .csv, .tsv, .parquet) or hub dataset id; repeatable."
        ),
    ],
    output: Annotated[Path, typer.Option(help="New folder for the trained model; checkpoints go beside it.")],
    more_text: MoreText = None,
    recipe: Annotated[str, typer.Option(help="ptbert, simcse, tsdae or ct.")] = "ptbert",
    pooling: Annotated[str, typer.Option(help="cls, mean or max.")] = "cls",
    column: Annotated[list[str] | None, typer.Option(help="Text column; may be repeated.")] = None,
    subset: Annotated[str | None, typer.Option(help="Configuration of a hub dataset.")] = None,
    sts: Annotated[
        Path | None, typer.Option(help="Folder of STS tasks: keep the best step by STSBenchmark validation.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps. Default: one pass over the text.")] = None,
    eval_steps: Annotated[int, typer.Option(help="Steps between evaluations, and between checkpoints.")] = 125,
    batch_size: Annotated[int, typer.Option(help="Sentences in a step.")] = 64,
    max_length: Annotated[int, typer.Option(help="Tokens that a sentence is cut at while training.")] = 64,
    learning_rate: Annotated[float | None, typer.Option(help="Default: the recipe's.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of fresh weights, order and dropout.")] = 0,
) -> None:
    """Train an encoder on unlabelled text, to fit a flow on afterwards or to use as it is."""
    import shutil

    from rich.console import Console

    from sbert_flow.data import read_sentences, read_sts
    from sbert_flow.evaluation.sts import STSSuite
    from sbert_flow.fitting import load_trainable, train_encoder
    from sbert_flow.fitting.encoder_checkpoints import saying_what_is_kept
    from sbert_flow.modules import save
    from sbert_flow.modules.io import check_output

    output = check_output(output)
    checkpoints = output.parent / f"{output.name}-checkpoints"
    evaluator = None if sts is None else STSSuite(read_sts(sts, ["STSBenchmark"], "validation"))
    sentences = read_sentences(all_text(text, more_text), column, subset)
    model = load_trainable(encoder, pooling)
    try:
        done = train_encoder(
            model,
            sentences,
            recipe,
            checkpoints=checkpoints,
            steps=steps,
            batch_size=batch_size,
            max_length=max_length,
            learning_rate=learning_rate,
            evaluator=evaluator,
            eval_steps=eval_steps,
            resume=resume,
            seed=seed,
        )
        with saying_what_is_kept(checkpoints, recipe):
            save(model, output)
    except KeyboardInterrupt as interrupt:
        Console(stderr=True).print(str(interrupt) or "Interrupted.", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from interrupt
    shutil.rmtree(checkpoints)  # only after a whole model is there
    console = Console()
    for entry in done.history:
        for name, value in entry.items():
            if name.endswith("_spearman_cosine"):
                console.print(f"step {entry['step']}: STSBenchmark validation {100 * value:.2f}", highlight=False)
    console.print(
        f"Trained with {recipe}: {done.steps} steps in {done.seconds:.0f} s, weights of step {done.best_step}.\n"
        f"Saved in {output}, a plain SentenceTransformer. Fit a flow on it:\n\n"
        f"    sbert-flow fit {output} --pooling {pooling} --text ... --output ...\n",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
