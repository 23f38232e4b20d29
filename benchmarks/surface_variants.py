"""Variants of the surface map: other weights c, c from the data, each edit left out or alone, ways of mixing, and the
noise under which a flow behind it is trained.

T and the scores are of SICK-R's train + validation pairs, on which a variant would be chosen, and of the seven test
sets, which are only reported. W comes from the test sets' sentences without labels. Spearman x 100, mean over spaces.

    python benchmarks/surface_variants.py --sts STS --encoder ENCODER [--encoder ...] [--pooling ...] [--pairs 400]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import replace
from tempfile import TemporaryDirectory

import numpy as np
import torch
from spaces import add_options, average, drawn, embed, encoders

from sbert_flow.data import SentencePairs, read_sts
from sbert_flow.fitting import nuisance_moment
from sbert_flow.fitting.store import EmbeddingStore
from sbert_flow.fitting.surface import surface_front, viewed
from sbert_flow.fitting.train import train_flow
from sbert_flow.flows import surface_matrix
from sbert_flow.modules import FlowLayer
from sbert_flow.modules.recipes import RECIPES, Recipe

WEIGHT = RECIPES["surface"].nuisance_weight
RAW_SHARES = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
FLOWS = ((5.0, 0.3), (10.0, 0.3), (10.0, 0.5), (10.0, 1.0))
"""c of the front and noise of the flow behind it."""

SEEDS = (0, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--edited", type=int, default=1000, help="sentences that are edited for W")
    parser.add_argument("--store", help="folder that keeps the embeddings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tasks = [drawn(task, options.pairs) for task in read_sts(options.sts, options.task, options.split)]
    chooser = [read_sts(options.sts, ["SICK-R"], split)[0] for split in ("train", "validation")]
    texts = [list(dict.fromkeys(s for task in part for s in task.sentences)) for part in (chooser, tasks)]
    random.Random(0).shuffle(texts[1])
    chosen, views = viewed(texts[1], None, seed=0, count=options.edited)
    everything = list(dict.fromkeys([*texts[0], *texts[1], *(text for view in views.values() for text in view)]))
    place = {text: index for index, text in enumerate(everything)}
    found: dict[str, list[list[float]]] = {}
    with TemporaryDirectory() as temporary:
        store = EmbeddingStore.open(options.store or temporary, everything)
        for encoder, model, poolings in encoders(options):
            for pooling, array in embed(store, model, poolings).items():

                def of(block: list[str], array: np.ndarray = array) -> torch.Tensor:
                    return torch.from_numpy(array[[place[text] for text in block]])

                edits = {name: nuisance_moment(of(chosen), {name: of(view)}) for name, view in views.items()}
                for name, both in scores(array, [of(text) for text in texts], [chooser, tasks], edits, place):
                    found.setdefault(name, []).append(both)
                print(f"{encoder} {pooling}", flush=True)
    print("\n| map | SICK-R train + validation | seven test sets |\n|---|---|---|")
    for name, values in found.items():
        print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in np.mean(values, axis=0)) + " |")


def weightings(edits: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor, float]]:
    """Name, W and c of each variant; c below 0 is that share of tr(T) / tr(W)."""
    whole = torch.stack(list(edits.values())).sum(dim=0)
    yield "as it is", whole, WEIGHT
    for weight in (0, 2, 5, 20, 40):
        yield f"c = {weight}", whole, weight
    for share in (1, 2, 4, 8):
        yield f"c = {share} tr(T) / tr(W)", whole, -share
    for name, moment in edits.items():
        yield f"without {name}", whole - moment, WEIGHT
        yield f"{name} alone, c = 20", moment, 20
    mean_trace = whole.trace() / len(edits)
    yield "every edit with the same trace", sum(m * mean_trace / m.trace() for m in edits.values()), WEIGHT  # type: ignore[misc]


def scores(
    array: np.ndarray,
    texts: list[torch.Tensor],
    tasks: list[list[SentencePairs]],
    edits: dict[str, torch.Tensor],
    place: dict[str, int],
) -> Iterator[tuple[str, list[float]]]:
    """For each variant its average over the choosing pairs and over the test sets."""
    covariances = [torch.cov(text.double().T, correction=0) for text in texts]
    means = [text.double().mean(dim=0).numpy() for text in texts]
    yield "raw", [average(array, part, place) for part in tasks]
    for name, moment, weight in weightings(edits):
        values = []
        for total, mean, part in zip(covariances, means, tasks, strict=True):
            c = weight if weight >= 0 else -weight * float(total.trace() / moment.trace())
            z = (array - mean) @ surface_matrix(total, moment, c).numpy()
            values.append((average(z, part, place), z))
        yield name, [score for score, _ in values]
        if name == "as it is":
            z_of = [z for _, z in values]
    raw = unit(array)
    joined = [np.hstack([raw, unit(z)]) for z in z_of]
    yield "concatenated with raw", [average(x, part, place) for x, part in zip(joined, tasks, strict=True)]
    for share in RAW_SHARES:
        mixed = [share * raw + (1 - share) * unit(z) for z in z_of]
        yield f"added to raw, {share} raw", [average(x, part, place) for x, part in zip(mixed, tasks, strict=True)]
    whole = torch.stack(list(edits.values())).sum(dim=0)
    for weight, noise in FLOWS:
        recipe = replace(RECIPES["surface-flow"], nuisance_weight=weight, noise=noise)
        both = []
        for text, part in zip(texts, tasks, strict=True):
            seen = [average(flow_outputs(array, text, whole, recipe, seed), part, place) for seed in SEEDS]
            both.append(float(np.mean(seen)))
        yield f"surface-flow, c = {weight:g}, noise {noise}, {len(SEEDS)} seeds", both


def flow_outputs(
    array: np.ndarray, text: torch.Tensor, nuisance: torch.Tensor, recipe: Recipe, seed: int
) -> np.ndarray:
    """The array under the recipe, trained on the text."""
    layer = FlowLayer(array.shape[1], **recipe.shape)
    train_flow(layer, text, recipe, front=surface_front(text, nuisance, recipe.nuisance_weight), seed=seed)
    return layer.eval().outputs(array).numpy()


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(min=1e-12)


if __name__ == "__main__":
    main()
