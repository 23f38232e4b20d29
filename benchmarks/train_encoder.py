"""Train an encoder on unlabelled text with several recipes and seeds, and print them side by side.

    python benchmarks/train_encoder.py --recipe ptbert --recipe simcse --encoder bert-base-uncased \\
        --text wiki1m_for_simcse.txt --sts STS --output runs --suite

is the setting of PT-BERT's paper (batch 64, length 64, 3e-5, one pass, best step by STSBenchmark validation). STS is a
folder of <TASK>/<split>.jsonl. Each run's best step is chosen on STSBenchmark validation; SICK-R train + validation is
printed beside it, also at the step that is best by it; and of STSBenchmark validation alignment (mean squared distance
of pairs with a score above 4) and uniformity (log of the mean of exp(-2 squared distance) of all sentences; Wang &
Isola, 2020; lower is better in both). With --suite the best weights are scored on the seven test sets: as they are,
with a flow, and with what the advice names, both fitted on the test sentences without their scores. What OUTPUT holds
already under the same settings is not trained or scored again, and an interrupted training goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from sbert_flow.data import SentencePairs, read_sentences, read_sts
from sbert_flow.evaluation.compare import compare
from sbert_flow.evaluation.sts import STSSuite
from sbert_flow.fitting import advise, load_trainable, train_encoder
from sbert_flow.fitting.encoder_recipes import ENCODER_RECIPES
from sbert_flow.modules import save

QUOTED = {"ptbert": 77.74, "simcse": 76.25}
"""Average of the seven test sets, BERT-base, as printed in the paper of PT-BERT (Tan et al., 2022, "all")."""

DECIDES, BESIDE = "STSBenchmark", "SICK-R"
SAME = 4.0
"""Pairs with a score above this say the same, as SimCSE's authors take it."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", action="append", choices=list(ENCODER_RECIPES), required=True)
    parser.add_argument("--encoder", required=True, help="hub id or folder")
    parser.add_argument("--text", nargs="+", required=True, help="files of sentences or hub datasets")
    parser.add_argument("--sts", required=True, help="folder of <TASK>/<split>.jsonl")
    parser.add_argument("--output", type=Path, required=True, help="folder for models and results")
    parser.add_argument("--pooling", default="cls")
    parser.add_argument("--steps", type=int, help="default: one pass over the text")
    parser.add_argument("--eval-steps", type=int, default=125)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, help="default: the recipe's")
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--suite", action="store_true", help="also the seven test sets: raw, with a flow, as advised")
    return parser.parse_args()


def validation_tasks(folder: str) -> list[SentencePairs]:
    """STSBenchmark validation, which decides, and SICK-R train + validation, which hardly meets the test sets."""
    train, validation = (read_sts(folder, [BESIDE], split)[0] for split in ("train", "validation"))
    joined = SentencePairs(
        BESIDE,
        train.sentences1 + validation.sentences1,
        train.sentences2 + validation.sentences2,
        train.scores + validation.scores,
    )
    return [*read_sts(folder, [DECIDES], "validation"), joined]


def suite(model: SentenceTransformer, tasks: list[SentencePairs], pooling: str) -> dict[str, Any]:
    """Averages over the seven test sets: of the model, with a flow on top, and with what the advice names."""
    advice = advise(model, list(dict.fromkeys(sentence for task in tasks for sentence in task.sentences)))
    methods = dict.fromkeys(["raw", "noise", advice.recipe or "raw"])
    found = compare(model, tasks, poolings=[pooling], methods=list(methods))
    return {
        "test": found.row(pooling, "raw").average,
        "test with flow": found.row(pooling, "noise").average,
        "test as advised": found.row(pooling, advice.recipe or "raw").average,
        "advice": advice.recipe or advice.decision,
    }


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """What a result depends on, beside recipe and seed."""
    names = ("encoder", "pooling", "steps", "eval_steps", "batch_size", "max_length", "learning_rate")
    return {name: getattr(args, name) for name in names}


def run(args: argparse.Namespace, recipe: str, seed: int, text: list[str], evaluator: STSSuite) -> dict[str, Any]:
    """The scores of one training from the start, at its best step; a model that is there already is only scored."""
    folder = args.output / f"{recipe}-{seed}"
    noted = args.output / f"{recipe}-{seed}.json"
    if not folder.is_dir():
        checkpoints = Path(f"{folder}-checkpoints")
        model = load_trainable(args.encoder, args.pooling)
        done = train_encoder(
            model,
            text,
            recipe,
            checkpoints=checkpoints,
            steps=args.steps,
            batch_size=args.batch_size,
            max_length=args.max_length,
            learning_rate=args.learning_rate,
            evaluator=evaluator,
            eval_steps=args.eval_steps,
            resume=ENCODER_RECIPES[recipe].resumable and any(checkpoints.glob("checkpoint-*")),
            seed=seed,
        )
        by_other = max(entry.get(f"eval_{BESIDE}_spearman_cosine", -1) for entry in done.history if entry["step"])
        noted.write_text(json.dumps({"settings": settings(args), f"{BESIDE} by itself": by_other}))
        save(model, folder)
    note = json.loads(noted.read_text())
    if note.pop("settings") != settings(args):
        raise SystemExit(f"{folder} was trained with other settings than these. Name another --output.")
    return {"recipe": recipe, "seed": seed, **note, **scores(args, load_trainable(folder, args.pooling), evaluator)}


def scores(args: argparse.Namespace, model: SentenceTransformer, evaluator: STSSuite) -> dict[str, Any]:
    """Spearman correlations of a model on the validation tasks and, if asked for, the test sets; the space's shape."""
    found: dict[str, Any] = {name: score.spearman for name, score in evaluator.score(model).items()}
    found |= shape(model, evaluator.tasks[0])
    return {**found, **(suite(model, read_sts(args.sts), args.pooling) if args.suite else {})}


def shape(model: SentenceTransformer, pairs: SentencePairs) -> dict[str, float]:
    """Alignment of the pairs that mean the same, and uniformity of all sentences, at unit length."""

    def encode(sentences: list[str]) -> torch.Tensor:
        return model.encode(sentences, convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False)

    same = torch.tensor(pairs.scores) > SAME
    distances = (encode(pairs.sentences1) - encode(pairs.sentences2)).square().sum(dim=1)
    uniformity = torch.pdist(encode(pairs.sentences)).square().mul(-2).exp().mean().log()
    return {"alignment": distances[same].mean().item(), "uniformity": uniformity.item()}


def main() -> None:
    args = parse()
    args.output.mkdir(parents=True, exist_ok=True)
    kept = args.output / "results.jsonl"
    results = [json.loads(line) for line in kept.read_text("utf-8").splitlines()] if kept.is_file() else []

    def note(result: dict[str, Any]) -> None:
        result = {**result, "settings": settings(args)}
        results.append(result)
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        print(json.dumps(result), flush=True)

    text = list(read_sentences(args.text))
    evaluator = STSSuite(validation_tasks(args.sts))
    evaluator.primary_metric = "STSBenchmark_spearman_cosine"  # as the paper chooses its step
    used = settings(args)
    results = [row for row in results if row["settings"] == used and ("test" in row or not args.suite)]
    finished = {(result["recipe"], result["seed"]) for result in results}
    if ("start", 0) not in finished:
        note({"recipe": "start", "seed": 0, **scores(args, load_trainable(args.encoder, args.pooling), evaluator)})
    for seed, recipe in itertools.product(args.seed, args.recipe):
        if (recipe, seed) not in finished:
            note(run(args, recipe, seed, text, evaluator))

    percent = [DECIDES, BESIDE, f"{BESIDE} by itself", "test", "test with flow", "test as advised"]
    columns = [*percent, "alignment", "uniformity"]
    print(
        f"\nSpearman x 100, mean (sd over seeds). {DECIDES} validation chose the step; {BESIDE} is train + "
        "validation; by itself: at the step that is best by it."
    )
    print(
        "| recipe | seeds | "
        + " | ".join(columns)
        + " | advice | paper, BERT-base, quoted |\n|"
        + "---|" * (len(columns) + 4)
    )
    for recipe in ("start", *args.recipe):
        rows = [result for result in results if result["recipe"] == recipe]
        cells = []
        for column in columns:
            values = [(100 if column in percent else 1) * row[column] for row in rows if column in row]
            spread = f" ({statistics.stdev(values):.2f})" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.2f}{spread}" if values else "-")
        advice = ", ".join(sorted({row["advice"] for row in rows if "advice" in row})) or "-"
        print(f"| {recipe} | {len(rows)} | " + " | ".join(cells) + f" | {advice} | {QUOTED.get(recipe, '-')} |")


if __name__ == "__main__":
    main()
