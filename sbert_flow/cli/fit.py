"""``sbert-flow fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbert_flow.cli.text import MoreText, all_text

INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM, as shells have it."""


def fit(
    encoder: Annotated[str, typer.Argument(help="Encoder: hub id or folder.")],
    text: Annotated[
        list[str],
        typer.Option(
            help="File of sentences (.txt one a line, .jsonl, .csv, .tsv, .parquet) or hub dataset id; repeatable."
        ),
    ],
    output: Annotated[Path, typer.Option(help="Folder for the fitted model.")],
    more_text: MoreText = None,
    pooling: Annotated[
        str, typer.Option(help="mean, cls, max, first-last, first-last-embedding, last-two or layer:K.")
    ] = "mean",
    recipe: Annotated[
        str, typer.Option(help="auto (as advised), noise, paper, surface, surface-flow, mix or whitening.")
    ] = "auto",
    column: Annotated[list[str] | None, typer.Option(help="Text column; may be repeated.")] = None,
    subset: Annotated[str | None, typer.Option(help="Configuration of a hub dataset.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the embeddings.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Sentences the encoder takes at a time.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the fit.")] = 0,
    store: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps text and embeddings: a later fit, or this one resumed, uses them."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or float16: of the embeddings in the store.")] = "float32",
    bf16: Annotated[bool, typer.Option("--bf16", help="Run the encoder in bfloat16 (GPUs).")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help="Progress and summary as JSON lines on stderr.")
    ] = False,
) -> None:
    """Fit a flow on unlabelled text and save the SentenceTransformer [encoder, pooling, flow].

    Started by torchrun or accelerate launch, the processes share the work.
    """
    from rich.console import Console

    from sbert_flow.data import read_sentences
    from sbert_flow.fitting import FitResult, WhiteningResult, distributed, fit_flow, fit_whitening
    from sbert_flow.fitting.progress import Progress
    from sbert_flow.modules import build_model, save
    from sbert_flow.modules.build import WHITENING
    from sbert_flow.modules.io import check_output
    from sbert_flow.modules.model_card import describe_fit

    progress = Progress("quiet" if quiet else "json" if json_lines else None)
    with distributed.process_group_from_environment() as device:
        first = distributed.rank() == 0
        if first:
            check_output(output)
        # Rank 0 alone reads the text.
        sentences = read_sentences(all_text(text, more_text), column, subset) if first else iter(())
        model = build_model(encoder, pooling, recipe)
        if device is not None:
            model.to(device)
        result: FitResult | WhiteningResult
        try:
            if recipe == WHITENING:
                result = fit_whitening(
                    model, sentences, batch_size=batch_size, store=store, dtype=dtype, bf16=bf16, progress=progress
                )
            else:
                result = fit_flow(
                    model, sentences, recipe=recipe, epochs=epochs, batch_size=batch_size, seed=seed, store=store,
                    dtype=dtype, bf16=bf16, progress=progress,
                )  # fmt: skip
        except KeyboardInterrupt as interrupt:
            if first:
                Console(stderr=True).print(str(interrupt) or "Interrupted.", highlight=False, soft_wrap=True)
            raise typer.Exit(INTERRUPTED) from interrupt
        if not first:
            return
        describe_fit(model, " and ".join(Path(name).name for name in all_text(text, more_text)), result.rows)
        save(model, output)
    bits = [round(entry["bits_per_dimension"], 4) for entry in result.history[-1:]]  # none where nothing is trained
    if json_lines:
        progress.say(
            "fitted", recipe=result.recipe, sentences=result.rows, encode_seconds=round(result.encode_seconds, 1),
            train_seconds=round(result.train_seconds, 1), bits_per_dimension=bits[0] if bits else None,
            output=str(output),
        )  # fmt: skip
    elif not quiet:
        Console().print(
            (f"Advice: {result.advice}\n" if result.advice else "")
            + f"Fitted {result.recipe} on {result.rows:,} sentences: encoding {result.encode_seconds:.1f} s, map "
            f"{result.train_seconds:.1f} s{''.join(f', {value:.3f} bits per dimension' for value in bits)}.\n"
            f"Saved in {output}. Use it:\n\n    import sbert_flow\n    model = sbert_flow.load({str(output)!r})\n"
            "    embeddings = model.encode(sentences)\n",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
