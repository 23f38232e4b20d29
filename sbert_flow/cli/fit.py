"""``sbert-flow fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def fit(
    encoder: Annotated[str, typer.Argument(help="Encoder: hub id or folder.")],
    text: Annotated[
        list[str],
        typer.Option(
            help="File of sentences (.txt one a line, .jsonl, .csv, .tsv, .parquet) or hub dataset id; repeatable."
        ),
    ],
    output: Annotated[Path, typer.Option(help="Folder for the fitted model.")],
    more_text: Annotated[list[str] | None, typer.Argument(help="Further text files after the first --text.")] = None,
    pooling: Annotated[
        str, typer.Option(help="mean, cls, max, first-last, first-last-embedding, last-two or layer:K.")
    ] = "mean",
    recipe: Annotated[str, typer.Option(help="noise, paper, surface, surface-flow, mix or whitening.")] = "noise",
    column: Annotated[list[str] | None, typer.Option(help="Text column; may be repeated.")] = None,
    subset: Annotated[str | None, typer.Option(help="Configuration of a hub dataset.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the embeddings.")] = 1,
    batch_size: Annotated[int, typer.Option(help="Sentences the encoder takes at a time.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the fit.")] = 0,
) -> None:
    """Fit a flow on unlabelled text and save the SentenceTransformer [encoder, pooling, flow]."""
    from rich.console import Console

    from sbert_flow.data import read_sentences
    from sbert_flow.fitting import FitResult, WhiteningResult, fit_flow, fit_whitening
    from sbert_flow.modules import build_model, save
    from sbert_flow.modules.build import WHITENING
    from sbert_flow.modules.io import check_output
    from sbert_flow.modules.model_card import describe_fit
    from sbert_flow.modules.validation import check_sentences

    check_output(output)
    sentences = check_sentences(read_sentences([*text, *(more_text or [])], column, subset))
    model = build_model(encoder, pooling, recipe)
    result: FitResult | WhiteningResult
    if recipe == WHITENING:
        result = fit_whitening(model, sentences, batch_size=batch_size)
    else:
        result = fit_flow(model, sentences, recipe=recipe, epochs=epochs, batch_size=batch_size, seed=seed)
    describe_fit(model, " and ".join(Path(name).name for name in [*text, *(more_text or [])]), result.rows)
    save(model, output)
    console = Console()
    bits = f", {result.history[-1]['bits_per_dimension']:.3f} bits per dimension" if result.history else ""
    console.print(
        f"Fitted on {result.rows:,} sentences: encoding {result.encode_seconds:.1f} s, "
        f"map {result.train_seconds:.1f} s{bits}.\n"
        f"Saved in {output}. Use it:\n\n    import sbert_flow\n    model = sbert_flow.load({str(output)!r})\n"
        "    embeddings = model.encode(sentences)\n",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
