"""Average of the STS tasks before and after a flow, fitted on the tasks' own unlabelled sentences ("target").

    python benchmarks/fit_sts.py ENCODER --sts DIR --pooling layer:3 --recipe noise --recipe paper --seeds 3
    python benchmarks/fit_sts.py ENCODER --sts DIR --pooling layer:3 --sentences 300 --seeds 5
    python benchmarks/fit_sts.py ENCODER --sts DIR --pooling layer:3 --route trainer --route model.fit

Prints Markdown: Spearman x 100 of cosine similarity over all pairs of each task ("all"), test split, and seconds of
the flow's fit, without encoding, on one CPU thread unless --threads says otherwise. No labels are used in fitting.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
import warnings

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import (
    InputExample,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from torch.utils.data import DataLoader

from sbert_flow import FlowNLLLoss, build_model, fit_flow
from sbert_flow.data import SentencePairs, read_sts
from sbert_flow.evaluation.sts import score_pairs
from sbert_flow.losses import FlowAdamW, FlowAveragingCallback
from sbert_flow.modules.pipeline import encoder_before_flow
from sbert_flow.modules.recipes import Recipe, get_recipe


def by_trainer(model: SentenceTransformer, sentences: list[str], recipe: Recipe, seed: int) -> None:
    """The recipe through SentenceTransformerTrainer: the encoder runs in every step."""
    loss = FlowNLLLoss(model, sentences, noise=recipe.noise)
    callbacks = [FlowAveragingCallback(model, recipe.average_decay)] if recipe.average_decay else []
    optimizer = FlowAdamW(
        (p for p in model.parameters() if p.requires_grad), recipe.learning_rate, recipe.weight_decay
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder, num_train_epochs=1, per_device_train_batch_size=recipe.batch_size,
            lr_scheduler_type="constant", save_strategy="no", report_to=[], seed=seed, dataloader_pin_memory=False,
        )  # fmt: skip
        SentenceTransformerTrainer(
            model, args=arguments, train_dataset=Dataset.from_dict({"text": sentences}), loss=loss,
            callbacks=callbacks, optimizers=(optimizer, None),
        ).train()  # fmt: skip


def by_model_fit(model: SentenceTransformer, sentences: list[str], recipe: Recipe, seed: int) -> None:
    """The recipe through model.fit, which has no callbacks and so no averaging."""
    torch.manual_seed(seed)
    loss = FlowNLLLoss(model, sentences, noise=recipe.noise)
    loader = DataLoader([InputExample(texts=[s]) for s in sentences], batch_size=recipe.batch_size, shuffle=True)
    model.fit(
        [(loader, loss)], epochs=1, scheduler="constantlr", warmup_steps=0, optimizer_class=FlowAdamW,
        optimizer_params={"lr": recipe.learning_rate}, weight_decay=recipe.weight_decay,
    )  # fmt: skip


ROUTES = {"trainer": by_trainer, "model.fit": by_model_fit}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder")
    parser.add_argument("--sts", required=True)
    parser.add_argument("--pooling", action="append")
    parser.add_argument("--recipe", action="append")
    parser.add_argument("--route", action="append", choices=["fit_flow", *ROUTES])
    parser.add_argument("--sentences", type=int, help="fit on this many, drawn at random")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore", "The encoder's own Normalize")
    tasks = read_sts(args.sts)
    sentences = list(dict.fromkeys(sentence for pairs in tasks for sentence in pairs.sentences))
    encoder = SentenceTransformer(args.encoder).float()
    print(f"{args.encoder}, {len(sentences):,} sentences, torch {torch.__version__}, {args.threads} thread(s)\n")
    names = [pairs.name for pairs in tasks]
    print(f"| pooling | map | {' | '.join(names)} | average | fit, s |")
    print("|---|---|" + "---:|" * (len(names) + 2))
    for pooling in args.pooling or ["mean"]:
        raw = encoder_before_flow(build_model(encoder, pooling)).encode(sentences, show_progress_bar=False)
        print_row(pooling, "raw", [scores(tasks, sentences, raw, encoder)], [0.0])
        for name in args.recipe or ["noise"]:
            for route in args.route or ["fit_flow"]:
                results, times = [], []
                for seed in range(args.seeds):
                    rows = list(range(len(sentences)))
                    random.Random(seed).shuffle(rows)
                    rows = rows[: args.sentences]
                    torch.manual_seed(seed)
                    model = build_model(encoder, pooling, name)
                    start = time.perf_counter()
                    if route == "fit_flow":
                        fit_flow(model, embeddings=raw[rows], recipe=name, seed=seed, show_progress_bar=False)
                    else:
                        ROUTES[route](model, [sentences[row] for row in rows], get_recipe(name), seed)
                    times.append(time.perf_counter() - start)
                    results.append(scores(tasks, sentences, model[-1].latents(raw).numpy(), encoder))
                label = name + (f", {route}" if route != "fit_flow" else "")
                print_row(pooling, label + (f", n = {args.sentences}" if args.sentences else ""), results, times)


def scores(
    tasks: list[SentencePairs], sentences: list[str], space: np.ndarray, model: SentenceTransformer
) -> list[float]:
    embeddings = dict(zip(sentences, space, strict=True))
    return [100 * score_pairs(pairs, embeddings, model) for pairs in tasks]


def print_row(pooling: str, label: str, results: list[list[float]], times: list[float]) -> None:
    means = np.mean(results, axis=0)
    averages = np.mean(results, axis=1)
    spread = f" ({averages.min():.2f} to {averages.max():.2f})" if len(results) > 1 else ""
    cells = " | ".join(f"{value:.2f}" for value in means)
    print(f"| {pooling} | {label} | {cells} | {averages.mean():.2f}{spread} | {np.mean(times):.1f} |", flush=True)


if __name__ == "__main__":
    main()
