"""Which map helps which space, and what following the advice costs: the table of docs/should-i-use-it.md.

For every encoder and pooling: STS scores of the raw embeddings and of each map fitted on the tasks' own sentences
without labels, the measures behind the advice, and the regret of the advice, that is what the best of the maps would
have given more. Labels are used for scoring only. One pass of each encoder gives all its poolings.

    python benchmarks/choose.py --sts STS --encoder ENCODER [--encoder ...] [--between OTHER] [--truncated 1 2 3] \\
        [--random 3x192 6x384] [--pairs 300]

An encoder that is no transformer (benchmarks/static_encoders.py makes two) has one space.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from spaces import add_options, average, drawn, embed, encoders

from sbert_flow.data import SentencePairs, read_sts
from sbert_flow.fitting import fit_flow, nuisance_moment
from sbert_flow.fitting.advise import LEAVE_BELOW, SAMPLE, VIEWED, decide, measure
from sbert_flow.fitting.store import EmbeddingStore
from sbert_flow.fitting.surface import viewed
from sbert_flow.fitting.variety import variety

RECIPES = ("noise", "surface", "surface-flow", "mix")
METHODS = ("raw", "whitening", *RECIPES)
LITTLE_GAIN = 4.0
EDITED = 1000
"""Sentences behind W, as in fit_flow; never more than half of the text here."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--edited", type=int, default=EDITED, help="sentences that are edited for W")
    parser.add_argument("--store", help="folder that keeps the embeddings")
    parser.add_argument(
        "--json", type=Path, help="file for the rows; those that it holds already are not computed again"
    )
    parser.add_argument("--plot", type=Path, help="file for the picture (needs matplotlib)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tasks = [drawn(task, options.pairs) for task in read_sts(options.sts, options.task, options.split)]
    sentences = list(dict.fromkeys(sentence for task in tasks for sentence in task.sentences))
    random.Random(0).shuffle(sentences)  # as advise does: neighbours must not be paraphrases
    chosen, views = viewed(sentences, None, seed=0, count=options.edited)
    texts = list(dict.fromkeys([*sentences, *(text for view in views.values() for text in view)]))
    place = {text: index for index, text in enumerate(texts)}
    print(f"{len(sentences):,} sentences of {sum(map(len, tasks)):,} pairs, {len(chosen):,} edited", flush=True)
    measured = ["separation", "room", "centred", "PR", "cosine"]
    print(" | ".join(["space", *METHODS, *measured, "advice", "regret"]), flush=True)
    rows = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    known = {(row["encoder"], row["pooling"]) for row in rows}
    sample = list(dict.fromkeys([*chosen[:VIEWED], *sentences]))[:SAMPLE]
    of_text = {"sentences": len(sentences), **variety(chosen[:VIEWED], sample)}
    print(f"word overlap {of_text['word_overlap']:.2f}, concentration {of_text['concentration']:.5f}")
    rows = [printed({**row, **of_text}) for row in rows]
    with TemporaryDirectory() as temporary:
        store = EmbeddingStore.open(options.store or temporary, texts)
        for encoder, model, poolings in encoders(options):
            names = [name for name in poolings if (encoder, name) not in known]
            if not names:
                continue
            for name, array in embed(store, model, names).items():
                x, originals = (array[[place[text] for text in block]] for block in (sentences, chosen))
                edited = {edit: array[[place[text] for text in view]] for edit, view in views.items()}
                few = {edit: view[:VIEWED] for edit, view in edited.items()}
                numbers = {**measure(array[[place[text] for text in sample]], few), **of_text}
                nuisance = nuisance_moment(
                    torch.from_numpy(originals), {edit: torch.from_numpy(view) for edit, view in edited.items()}
                )
                rows.append(report(encoder, name, x, nuisance, numbers, tasks, sentences))
                if options.json:
                    options.json.write_text(json.dumps(rows, indent=1) + "\n")
    summary(rows)
    if options.plot:
        plot(rows, options.plot)


def whitened(x: np.ndarray) -> np.ndarray:
    """Full whitening (Su et al. 2021) of the directions that vary."""
    x = x.astype(np.float64) - x.mean(axis=0)
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    live = values > 1e-6 * np.median(values[values > 1e-12 * values.max()])
    return x @ (vectors[:, live] / np.sqrt(values[live]))


def report(
    encoder: str,
    pooling: str,
    x: np.ndarray,
    nuisance: torch.Tensor,
    numbers: dict[str, float],
    tasks: list[SentencePairs],
    sentences: list[str],
) -> dict[str, Any]:
    """Score every method on the space, print the row and return it."""
    place = {sentence: index for index, sentence in enumerate(sentences)}
    scores = {"raw": average(x, tasks, place), "whitening": average(whitened(x), tasks, place)}
    for recipe in RECIPES:
        fitted = fit_flow(embeddings=x, nuisance=nuisance, recipe=recipe, show_progress_bar=False)
        scores[recipe] = average(fitted.layer.eval().outputs(x).numpy(), tasks, place)
    return printed({"encoder": encoder, "pooling": pooling, **scores, **numbers})


def printed(row: dict[str, Any]) -> dict[str, Any]:
    """Print the row, and return it with the advice and its regret."""
    advice = decide(row)
    regret = max(row[method] for method in METHODS) - row[advice.recipe or "raw"]
    cells = [
        f"{row['encoder']} {row['pooling']}",
        *(f"{row[method]:.1f}" for method in METHODS),
        f"{row['view_separation']:.1f}",
        f"{row['room']:.2f}",
        f"{row['centred_room']:.2f}",
        f"{row['participation_ratio']:.0f}",
        f"{row['mean_cosine']:.2f}",
        advice.recipe or advice.decision,
        f"{regret:.1f}",
    ]
    print(" | ".join(cells), flush=True)
    return {**row, "advice": advice.recipe or advice.decision, "regret": regret}


def summary(rows: list[dict[str, Any]]) -> None:
    """Print the regret of the advice and of simpler rules."""
    lost = {method: np.array([max(row[m] for m in METHODS) - row[method] for row in rows]) for method in METHODS}

    def follow(chosen: list[str]) -> np.ndarray:
        return np.array([lost[method][index] for index, method in enumerate(chosen)])

    print("\nencoder | spaces | raw | as advised | best of the methods | mean regret | worst | advice")
    for encoder in dict.fromkeys(row["encoder"] for row in rows):
        own = [row for row in rows if row["encoder"] == encoder]
        best = np.mean([max(row[method] for method in METHODS) for row in own])
        regret = np.array([row["regret"] for row in own])
        advice = ", ".join(f"{name} {count}" for name, count in Counter(row["advice"] for row in own).items())
        print(
            f"{encoder} | {len(own)} | {np.mean([row['raw'] for row in own]):.1f} | {best - regret.mean():.1f} | "
            f"{best:.1f} | {regret.mean():.2f} | {regret.max():.2f} | {advice}"
        )
    rules = {
        "advice": np.array([row["regret"] for row in rows]),
        **{f"always {method}": lost[method] for method in METHODS},
        "mean cosine < .29: raw, else surface-flow": follow(
            ["raw" if row["mean_cosine"] < 0.29 else "surface-flow" for row in rows]
        ),
        "participation ratio > 70: mix, else surface-flow": follow(
            ["mix" if row["participation_ratio"] > 70 else "surface-flow" for row in rows]
        ),
        "view separation above 8.5: raw, above 6 or ratio above 70: mix, else surface-flow": follow([
            "raw" if row["view_separation"] >= 8.5
            else "mix" if row["view_separation"] >= 6 or row["participation_ratio"] > 70
            else "surface-flow" for row in rows
        ]),
    }  # fmt: skip
    print(f"\nregret over {len(rows)} spaces, and the share of spaces where it is at most 1.0")
    for rule, regret in rules.items():
        print(f"{rule} | mean {regret.mean():.2f} | worst {regret.max():.2f} | {np.mean(regret <= 1.0):.0%}")
    above = [f"{row['encoder']} {row['pooling']} {row['regret']:.1f}" for row in rows if row["regret"] > 1.0]
    print("advice above 1.0: " + ("; ".join(above) or "none"))
    print("\nencoder | best pooling, as advised | pooling with the largest view separation | mean pooling")
    behind = []
    for encoder in dict.fromkeys(row["encoder"] for row in rows):
        own = {row["pooling"]: row.get(row["advice"], row["raw"]) for row in rows if row["encoder"] == encoder}
        if len(own) > 1:
            separated = max((row for row in rows if row["encoder"] == encoder), key=lambda row: row["view_separation"])
            chosen = [max(own, key=own.__getitem__), separated["pooling"], *(["mean"] if "mean" in own else [])]
            print(f"{encoder} | " + " | ".join(f"{name} {own[name]:.1f}" for name in chosen))
            behind.append(own[chosen[0]] - own[chosen[1]])
    if behind:
        print(f"that pooling loses {np.mean(behind):.2f} on average, {np.max(behind):.2f} at most")
    few = np.array([max(row[m] for m in METHODS) - row["raw"] < LITTLE_GAIN for row in rows])
    if few.any():
        print(f"over the {few.sum()} spaces where the best map gains less than {LITTLE_GAIN:g}:")
        for rule, regret in rules.items():
            print(f"{rule} | mean {regret[few].mean():.2f} | worst {regret[few].max():.2f}")
    losses, fitted = candidate_rules(rows, lost)
    print("two bounds on one measure, the best over all spaces: raw beyond the one, mix beyond the other")
    for measure_name, own in fitted.items():
        best = losses[own][losses[own].mean(axis=1).argmin()]
        print(f"{measure_name} | mean {best.mean():.2f} | worst {best.max():.2f}")
    both = losses[fitted["room, centred_room, participation_ratio"]]
    groups = {
        "space": [f"{row['encoder']} {row['pooling']}" for row in rows],
        "encoder": [row["encoder"] for row in rows],
        "family": [row["encoder"].replace("between", "all").replace(" ", "-").split("-")[0] for row in rows],
    }
    for left_out, names in groups.items():
        if len(set(names)) > 1:
            held = [np.array([name == group for name in names]) for group in dict.fromkeys(names)]
            regret = np.concatenate([both[both[:, ~out].mean(axis=1).argmin()][out] for out in held])
            print(f"bounds set without the {left_out}: mean {regret.mean():.2f}, worst {regret.max():.2f}")


def candidate_rules(rows: list[dict[str, Any]], lost: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, slice]]:
    """Regret of many rules in every space, (rules, spaces), and which of them belong to which measure."""
    columns = {
        "room": -np.array([row["room"] for row in rows]),
        "view_separation": np.array([row["view_separation"] for row in rows]),
        "participation_ratio": np.array([row["participation_ratio"] for row in rows]),
        "mean_cosine": -np.array([row["mean_cosine"] for row in rows]),
    }
    losses: list[np.ndarray] = []
    places: dict[str, slice] = {}

    def add(name: str, leave: list[np.ndarray], mix: list[np.ndarray]) -> None:
        start = len(losses)
        for none, both in zip(leave, mix, strict=True):
            losses.append(np.where(none, lost["raw"], np.where(both, lost["mix"], lost["surface-flow"])))
        places[name] = slice(start, len(losses))

    for name, values in columns.items():
        grid = np.quantile(values, np.linspace(0, 1, 53))
        pairs = [(low, high) for low in grid for high in [*grid, np.inf] if low <= high]
        add(name, [values >= high for _, high in pairs], [values >= low for low, _ in pairs])
    room, ratio = columns["room"], columns["participation_ratio"]
    centred = np.array([row["centred_room"] for row in rows])
    bounds = [
        (low, high, most)
        for low in np.arange(1, 2.5, 0.1)
        for high in np.arange(1, 2.5, 0.1)
        for most in range(40, 110, 10)
    ]
    add(
        "room, centred_room, participation_ratio",
        [-room < low for low, _, _ in bounds],
        [(centred < high) & (ratio > most) for _, high, most in bounds],
    )
    return np.array(losses), places


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Gain over the raw space against the room, with the bound of the advice."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise SystemExit("the picture needs matplotlib: pip install matplotlib") from error

    figure, axes = plt.subplots(figsize=(7, 4))
    room = [row["room"] for row in rows]
    for recipe, marker in {"surface": "o", "mix": "x"}.items():
        gains = [row[recipe] - row["raw"] for row in rows]
        axes.scatter(room, gains, marker=marker, s=22, label=recipe)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.axvline(LEAVE_BELOW, color="grey", linestyle="--", linewidth=0.8)
    top = axes.get_ylim()[1]
    axes.text(LEAVE_BELOW - 0.05, 0.95 * top, "leave", ha="right")
    axes.text(LEAVE_BELOW + 0.05, 0.95 * top, "mix or replace", ha="left")
    axes.set_xlabel("room: view separation behind the surface map / of the raw space")
    axes.set_ylabel("gain in average Spearman x 100")
    axes.legend(loc="center right")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
