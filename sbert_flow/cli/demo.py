"""``sbert-flow demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEMO_POOLINGS = ("layer:0", "layer:3", "layer:5", "cls", "mean")


def demo(
    output: Annotated[Path, typer.Option(help="Folder for the model of the best helped pooling.")] = Path(
        "sbert-flow-demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the fits.")] = 0,
) -> None:
    """Show on a real encoder, without a network, where a flow helps and where it is better left out."""
    import warnings

    from rich.console import Console
    from rich.progress import track
    from rich.table import Table
    from sentence_transformers import SentenceTransformer

    from sbert_flow.data import sample_pairs, sample_sentences
    from sbert_flow.evaluation.demo import ALONE, HELPS, compare_pooling, packaged_encoder
    from sbert_flow.modules import save
    from sbert_flow.modules.io import check_output

    check_output(output)
    console = Console()
    encoder = SentenceTransformer(packaged_encoder())
    console.print(
        f"A flow is fitted, without labels, on {len(sample_sentences()):,} plain sentences and those of "
        f"{len(sample_pairs())} pairs.\nThe pairs' human scores only judge it.\n",
        highlight=False,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The encoder's own Normalize")
        results = [
            compare_pooling(encoder, pooling, seed) for pooling in track(DEMO_POOLINGS, "Poolings", console=console)
        ]
    table = Table(title="all-MiniLM-L6-v2, before -> after the flow", title_justify="left")
    table.add_column("pooling")
    for heading in ("Spearman x 100", "mean cosine"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for result in results:
        table.add_row(
            result.pooling,
            "{:.1f} -> {:.1f}".format(*(100 * value for value in result.spearman)),
            "{:.2f} -> {:.2f}".format(*result.mean_cosine),
            result.verdict,
        )
    console.print(table)
    helped = sorted((r for r in results if r.verdict == HELPS), key=lambda r: r.gain, reverse=True)
    alone = [r.pooling for r in results if r.verdict == ALONE]
    if helped:
        names = ", ".join(r.pooling for r in helped)
        console.print(f"The flow helps {names}: their embeddings lie in a narrow cone, which hides their meaning.")
    if alone:
        console.print(
            f"Better left alone: {', '.join(alone)}. There the encoder's training has already put meaning into the "
            "directions that vary most, and a flow evens them out."
        )
    if not helped:
        console.print("No pooling gained, so nothing is saved.")
        return
    save(helped[0].model, output)
    console.print(
        f"\nSaved the flow on {helped[0].pooling} in {output}. Use it:\n\n    import sbert_flow\n"
        f"    model = sbert_flow.load({str(output)!r})\n"
        "    embeddings = model.encode([\"A first sentence.\", \"And a second.\"])",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
