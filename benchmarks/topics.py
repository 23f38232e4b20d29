"""When a flow behind the surface map pays: the parts of the STS tasks, texts of one kind, by their concentration.

Every part with 700 sentences or more is fitted on its own sentences, without labels, and scored on its own pairs.
Spearman x 100, mean over the encoders' poolings.

    python benchmarks/topics.py --sts STS --encoder ENCODER [--encoder ...] [--pooling layer:3 --pooling layer:5]
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from spaces import add_options, average, drawn, embed, encoders

from sbert_flow.data import SentencePairs
from sbert_flow.data.sts import STS_TASKS
from sbert_flow.fitting import fit_flow, nuisance_moment
from sbert_flow.fitting.advise import FLOW_CONCENTRATION, SAMPLE
from sbert_flow.fitting.store import EmbeddingStore
from sbert_flow.fitting.surface import viewed
from sbert_flow.fitting.variety import concentration

LEAST_SENTENCES = 700
EDITED = 300
RECIPES = ("surface", "surface-flow")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--store", help="folder that keeps the embeddings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = [drawn(part, options.pairs) for part in parts(Path(options.sts), options.task or STS_TASKS, options.split)]
    found = [part for part in found if len(part.sentences) >= LEAST_SENTENCES]
    texts = {part.name: random.Random(0).sample(part.sentences, len(part.sentences)) for part in found}
    edited = {name: viewed(text, None, seed=0, count=EDITED) for name, text in texts.items()}
    everything = dict.fromkeys(sentence for text in texts.values() for sentence in text)
    for _, views in edited.values():
        everything.update(dict.fromkeys(sentence for view in views.values() for sentence in view))
    place = {sentence: row for row, sentence in enumerate(everything)}
    scores: dict[str, list[list[float]]] = {part.name: [] for part in found}
    with TemporaryDirectory() as temporary:
        store = EmbeddingStore.open(options.store or temporary, everything)
        for encoder, model, poolings in encoders(options):
            for pooling, array in embed(store, model, poolings).items():

                def of(sentences: list[str], array: np.ndarray = array) -> torch.Tensor:
                    return torch.from_numpy(array[[place[sentence] for sentence in sentences]])

                for part in found:
                    text, (chosen, views) = texts[part.name], edited[part.name]
                    nuisance = nuisance_moment(of(chosen), {name: of(view) for name, view in views.items()})
                    x, own = of(text), {sentence: row for row, sentence in enumerate(text)}
                    row = [average(x.numpy(), [part], own)]
                    for recipe in RECIPES:
                        fitted = fit_flow(embeddings=x, nuisance=nuisance, recipe=recipe, show_progress_bar=False)
                        row.append(average(fitted.layer.eval().outputs(x).numpy(), [part], own))
                    scores[part.name].append(row)
                print(f"{encoder} {pooling}", flush=True)
    columns = ("text", "sentences", "concentration", "raw", *RECIPES, "the flow adds")
    print("\n| " + " | ".join(columns) + " |\n" + len(columns) * "|---" + "|")
    added: dict[bool, list[float]] = {False: [], True: []}
    for few, name in sorted((concentration(text[:SAMPLE]), name) for name, text in texts.items()):
        means = np.mean(scores[name], axis=0)
        added[few > FLOW_CONCENTRATION].append(means[2] - means[1])
        cells = " | ".join(f"{mean:.1f}" for mean in means)
        print(f"| {name} | {len(texts[name]):,} | {few:.4f} | {cells} | {means[2] - means[1]:+.1f} |")
    for above, values in added.items():
        if values:
            side = "above" if above else "up to"
            print(f"{side} {FLOW_CONCENTRATION}: {len(values)} texts, mean {np.mean(values):+.1f}")


def parts(folder: Path, tasks: list[str] | tuple[str, ...], split: str) -> list[SentencePairs]:
    """The pairs of each task by their "subset"."""
    found: dict[str, list[tuple[str, str, float]]] = {}
    for task in tasks:
        for line in (folder / task / f"{split}.jsonl").read_text("utf-8").splitlines():
            row = json.loads(line)
            name = f"{task} {row.get('subset', '')}".strip()
            found.setdefault(name, []).append((row["sentence1"], row["sentence2"], row["score"]))
    return [SentencePairs(name, *map(list, zip(*rows, strict=True))) for name, rows in found.items()]


if __name__ == "__main__":
    main()
