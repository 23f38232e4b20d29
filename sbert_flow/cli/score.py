"""``sbert-flow score``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def score(
    model: Annotated[str, typer.Argument(help="Model with a fitted flow: folder or hub id.")],
    text: Annotated[list[str], typer.Option(help="File of sentences or hub dataset id; may be repeated.")],
    output: Annotated[Path | None, typer.Option(help="File for the JSON Lines; standard output if not given.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="Text column; may be repeated.")] = None,
    subset: Annotated[str | None, typer.Option(help="Configuration of a hub dataset.")] = None,
    batch_size: Annotated[int, typer.Option(help="Sentences the encoder takes at a time.")] = 32,
) -> None:
    """Say how typical sentences are of the text that the flow was fitted on: JSON Lines in their order."""
    import json
    import sys
    from contextlib import nullcontext
    from itertools import islice

    import torch

    from sbert_flow.data import read_sentences
    from sbert_flow.fitting import log_prob
    from sbert_flow.modules import load
    from sbert_flow.modules.pipeline import split_at_flow

    if output is not None and not output.parent.is_dir():
        raise FileNotFoundError(f"no folder {output.parent} to write {output.name} into.")
    loaded = load(model)
    _, layer = split_at_flow(loaded)
    with output.open("w", encoding="utf-8") if output else nullcontext(sys.stdout) as file:
        sentences = read_sentences(text, column, subset)
        while block := list(islice(sentences, 4096)):
            values = torch.from_numpy(log_prob(loaded, block, batch_size=batch_size))
            for sentence, value, place in zip(block, values.tolist(), layer.percentile(values).tolist(), strict=True):
                row = {"sentence": sentence, "log_prob": round(value, 3), "percentile": round(place, 1)}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
