"""``sbert-flow score``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbert_flow.cli.text import MoreText, all_text


def score(
    model: Annotated[str, typer.Argument(help="Model with a fitted flow: folder or hub id.")],
    text: Annotated[list[str], typer.Option(help="File of sentences or hub dataset id; may be repeated.")],
    more_text: MoreText = None,
    output: Annotated[Path | None, typer.Option(help="File for the JSON Lines; standard output if not given.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="Text column; may be repeated.")] = None,
    subset: Annotated[str | None, typer.Option(help="Configuration of a hub dataset.")] = None,
    batch_size: Annotated[int, typer.Option(help="Sentences the encoder takes at a time.")] = 32,
) -> None:
    """Say how typical sentences are of the text that the flow was fitted on: JSON Lines in their order.

    Blank lines have no score; "file" and "line" say where a sentence stands.
    """
    import json
    import sys
    from contextlib import nullcontext
    from itertools import islice

    import torch

    from sbert_flow.data import read_numbered
    from sbert_flow.fitting import log_prob
    from sbert_flow.modules import load
    from sbert_flow.modules.pipeline import split_at_flow

    if output is not None and not output.parent.is_dir():
        raise FileNotFoundError(f"no folder {output.parent} to write {output.name} into.")
    files = all_text(text, more_text)
    if output is not None and output.exists() and any(Path(name).exists() and output.samefile(name) for name in files):
        raise ValueError(f"--output {output} is one of the texts and would be lost. Name another file.")
    read = read_numbered(files, column, subset)
    loaded = load(model)
    _, layer = split_at_flow(loaded)
    layer.percentile(torch.zeros(1))  # a layer that does not know its own text says so before a file is opened
    with output.open("w", encoding="utf-8") if output else nullcontext(sys.stdout) as file:
        while block := list(islice(read, 4096)):
            values = torch.from_numpy(log_prob(loaded, [sentence for *_, sentence in block], batch_size=batch_size))
            places = layer.percentile(values).tolist()
            for (name, line, sentence), value, place in zip(block, values.tolist(), places, strict=True):
                row = {
                    "file": name, "line": line, "sentence": sentence, "log_prob": round(value, 3),
                    "percentile": round(place, 1),
                }  # fmt: skip
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
