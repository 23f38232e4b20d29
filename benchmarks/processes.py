"""A fit on several processes against a fit on one. Prints a line of a Markdown table.

    python benchmarks/processes.py --encoder ENCODER --sts DIR --store FOLDER
    torchrun --nproc_per_node 2 benchmarks/processes.py --encoder ENCODER --sts DIR --store FOLDER

Fitted on the tasks' own sentences, without labels, seeds 0 to 2; Spearman x 100, average of the tasks.
"""

from __future__ import annotations

import argparse
import time

import torch

from sbert_flow.data import read_sts
from sbert_flow.evaluation.sts import score_pairs
from sbert_flow.fitting import distributed, fit_flow
from sbert_flow.fitting.store import EmbeddingStore
from sbert_flow.modules import build_model
from sbert_flow.modules.pipeline import encoder_before_flow

SEEDS = range(3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--sts", required=True)
    parser.add_argument("--task", action="append", help="default: all")
    parser.add_argument("--store", required=True, help="folder that all processes see")
    parser.add_argument("--pooling", default="layer:3")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with distributed.process_group_from_environment() as device:
        tasks = read_sts(options.sts, options.task)
        sentences = list(dict.fromkeys(sentence for pairs in tasks for sentence in pairs.sentences))
        model = build_model(options.encoder, options.pooling, device=str(device or "cpu"))
        store = EmbeddingStore.open(options.store, sentences)
        start = time.perf_counter()
        embeddings = store.embed(encoder_before_flow(model))
        encoded = time.perf_counter() - start
        averages = []
        for seed in SEEDS:
            layer = fit_flow(model, embeddings=embeddings, recipe="noise", seed=seed, show_progress_bar=False).layer
            if distributed.rank() == 0:
                latents = dict(zip(sentences, layer.latents(embeddings.array).cpu().numpy(), strict=True))
                scores = [score_pairs(pairs, latents, model) for pairs in tasks]
                averages.append(100 * sum(scores) / len(scores))
        if distributed.rank() == 0:
            print("| processes | sentences | encoding | " + " | ".join(f"seed {seed}" for seed in SEEDS) + " |")
            print("|---|---|---|" + "---|" * len(SEEDS))
            cells = [f"{distributed.world_size()}", f"{len(sentences):,}", f"{encoded:.1f} s"]
            print("| " + " | ".join([*cells, *(f"{average:.2f}" for average in averages)]) + " |")


if __name__ == "__main__":
    main()
