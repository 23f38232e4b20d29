"""How much text is enough: every recipe, and what the advice names, fitted on 50 to 1,000 sentences of many spaces.

Random sentences of the STS tasks are the text, without labels; edits and function words come from that text alone.
Each map is scored on the tasks; the table has the gain over the raw space, mean and least over spaces and draws.

    python benchmarks/small_text.py --sts STS --encoder ENCODER [--encoder ...] [options of choose.py]
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from spaces import add_options, average, drawn, embed, encoders

from sbert_flow.data import read_sts
from sbert_flow.fitting import fit_flow, nuisance_moment
from sbert_flow.fitting.advise import SAMPLE, VIEWED, Advice, decide, measure
from sbert_flow.fitting.store import EmbeddingStore
from sbert_flow.fitting.surface import viewed
from sbert_flow.fitting.variety import variety

RECIPES = ("surface", "mix")
SIZES = (50, 100, 300, 1000)
BOUND = -0.3
"""A map that loses more than this against the raw space does harm."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for all scores")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tasks = [drawn(task, options.pairs) for task in read_sts(options.sts, options.task, options.split)]
    sentences = list(dict.fromkeys(sentence for task in tasks for sentence in task.sentences))
    texts = {(n, draw): random.Random(draw).sample(sentences, n) for n in SIZES for draw in range(options.draws)}
    texts[len(sentences), 0] = random.Random(0).sample(sentences, len(sentences))
    edited = {key: viewed(text, None, seed=key[1], count=1000) for key, text in texts.items()}
    everything = dict.fromkeys(sentences)
    for _, views in edited.values():
        everything.update(dict.fromkeys(text for view in views.values() for text in view))
    place = {text: index for index, text in enumerate(everything)}
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as temporary:
        store = EmbeddingStore.open(temporary, everything)
        for encoder, model, poolings in encoders(options):
            for pooling, array in embed(store, model, poolings).items():
                x = array[: len(sentences)]
                raw = average(x, tasks, place)
                for (n, draw), text in texts.items():
                    chosen, views = edited[n, draw]
                    fit, originals = (array[[place[s] for s in block]] for block in (text, chosen))
                    moved = {name: array[[place[s] for s in view]] for name, view in views.items()}
                    sample = list(dict.fromkeys([*chosen[:VIEWED], *text]))[:SAMPLE]
                    few = {name: view[:VIEWED] for name, view in moved.items()}
                    measures = measure(array[[place[s] for s in sample]], few)
                    advice = decide({**measures, "sentences": n, **variety(chosen[:VIEWED], sample)})
                    row = {"encoder": encoder, "pooling": pooling, "sentences": n, "draw": draw, "raw": raw}
                    rows.append({**row, **scores(x, fit, originals, moved, tasks, place, raw, advice)})
                gains = [row for row in rows if (row["encoder"], row["pooling"]) == (encoder, pooling)]
                print(f"{encoder} {pooling} raw {raw:.1f}: " + least(gains), flush=True)
                if options.json:
                    options.json.write_text(json.dumps(rows) + "\n")
    summary(rows)


def scores(
    x: np.ndarray,
    fit: np.ndarray,
    originals: np.ndarray,
    views: dict[str, np.ndarray],
    tasks: list[Any],
    place: dict[str, int],
    raw: float,
    advice: Advice,
) -> dict[str, Any]:
    """Average of the tasks under each recipe fitted on ``fit``, and under what the advice names."""
    nuisance = nuisance_moment(
        torch.from_numpy(originals), {name: torch.from_numpy(view) for name, view in views.items()}
    )
    found: dict[str, Any] = {}
    for recipe in dict.fromkeys([*RECIPES, *([advice.recipe] if advice.recipe else [])]):
        layer = fit_flow(embeddings=fit, nuisance=nuisance, recipe=recipe, show_progress_bar=False).layer
        found[recipe] = average(layer.eval().outputs(x).numpy(), tasks, place)
    return {**found, "advice": advice.recipe or advice.decision, "advised": found.get(advice.recipe or "", raw)}


def least(rows: list[dict[str, Any]]) -> str:
    """The least gain of the advice at each size."""
    by_size: dict[int, list[float]] = {}
    for row in rows:
        by_size.setdefault(row["sentences"], []).append(row["advised"] - row["raw"])
    return ", ".join(f"{size:,}: {min(values):+.1f}" for size, values in by_size.items())


def summary(rows: list[dict[str, Any]]) -> None:
    columns = ("advised", *RECIPES)
    spaces = {(row["encoder"], row["pooling"]) for row in rows}
    print(f"\nGain over raw, mean (least) over {len(spaces)} spaces and all draws, Spearman x 100\n")
    print("| sentences | " + " | ".join(columns) + f" | advised below {BOUND} |\n|" + "---|" * (len(columns) + 2))
    for size in sorted({row["sentences"] for row in rows}):
        of_size = [row for row in rows if row["sentences"] == size]
        gains = {column: np.array([row[column] - row["raw"] for row in of_size]) for column in columns}
        cells = [f"{gain.mean():+.2f} ({gain.min():+.2f})" for gain in gains.values()]
        below = int((gains["advised"] < BOUND).sum())
        print(f"| {size:,} | " + " | ".join(cells) + f" | {below} of {len(of_size)} |")
    print("\nadvised below the bound:")
    for row in rows:
        if row["advised"] - row["raw"] < BOUND:
            place = f"{row['encoder']} {row['pooling']}, {row['sentences']} sentences, draw {row['draw']}"
            print(f"{place}: {row['advice']} {row['advised'] - row['raw']:+.2f}")


if __name__ == "__main__":
    main()
