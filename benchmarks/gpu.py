"""Fit on a GPU and on the CPU, and compare. Prints Markdown; exits with 1 where they differ too much.

    python benchmarks/gpu.py --encoder ENCODER --text FILE --sts DIR

Checked: embeddings of the encoder and latents of one and the same fitted flow on both devices, to 1e-4; the average
Spearman correlation (x 100) of the model fitted on the GPU against that of the one fitted on the CPU, to 0.1 points.
Two fits are never equal number by number: training magnifies rounding, on any pair of devices.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from datetime import date
from itertools import islice
from typing import Any

import numpy as np
import torch

from sbert_flow.data import read_sentences, read_sts
from sbert_flow.evaluation import evaluate_sts
from sbert_flow.fitting import fit_flow
from sbert_flow.modules import build_model
from sbert_flow.modules.pipeline import encoder_before_flow, split_at_flow

EMBEDDING_TOLERANCE = 1e-4
SPEARMAN_TOLERANCE = 0.1


def fitted(
    options: argparse.Namespace, device: str, sentences: list[str], bf16: bool = False
) -> tuple[Any, Any, float]:
    """A model fitted on the device, what fit_flow returned, and the seconds it took."""
    model = build_model(options.encoder, options.pooling, device=device)
    start = time.perf_counter()
    result = fit_flow(
        model, sentences, recipe="noise", batch_size=options.batch_size, bf16=bf16, show_progress_bar=False
    )
    return model, result, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--text", required=True, nargs="+", help="files of sentences to fit on")
    parser.add_argument("--sts", required=True, help="folder of the STS tasks")
    parser.add_argument("--pooling", default="layer:3")
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("no CUDA device here. Run this on a machine with a GPU and a torch built for it.")
    torch.backends.cuda.matmul.allow_tf32 = False  # TF32 keeps 10 bits: embeddings would differ by 1e-3
    torch.backends.cudnn.allow_tf32 = False
    sentences = list(islice(dict.fromkeys(read_sentences(options.text)), options.sentences))
    tasks = read_sts(options.sts)
    rows, scores = [], {}
    models = {}
    for name, device, bf16 in (
        ("CPU", "cpu", False),
        ("GPU", options.device, False),
        ("GPU, bf16", options.device, True),
    ):
        model, result, seconds = fitted(options, device, sentences, bf16)
        models[name] = model
        scores[name] = 100 * evaluate_sts(model, tasks, batch_size=options.batch_size)["average"]
        rows.append(
            f"| {name} | {result.encode_seconds:.1f} s | {result.train_seconds:.1f} s | "
            f"{result.history[-1]['bits_per_dimension']:.4f} | {scores[name]:.2f} | {seconds:.1f} s |"
        )
    probe = sentences[:2000]
    cpu, gpu = models["CPU"], models["GPU"]
    raw = [encoder_before_flow(model).encode(probe, show_progress_bar=False) for model in (cpu, gpu)]
    layer = split_at_flow(gpu)[1]
    latents = [layer.latents(raw[0]).cpu(), copy.deepcopy(layer).cpu().latents(raw[0])]
    apart = {
        "embeddings": float(np.abs(raw[0] - raw[1]).max()),
        "latents of the same flow": float((latents[0] - latents[1]).abs().max()),
    }
    gap = abs(scores["CPU"] - scores["GPU"])
    print(f"{date.today()}, {torch.cuda.get_device_name() if torch.cuda.is_available() else options.device}, ", end="")
    print(f"torch {torch.__version__}, {len(sentences):,} sentences, pooling {options.pooling}, recipe noise\n")
    print("| fitted on | encoding | flow | bits/dim | average Spearman | whole fit |\n|---|---|---|---|---|---|")
    print("\n".join(rows) + "\n")
    print("| GPU against CPU | largest difference | allowed |\n|---|---|---|")
    for name, difference in apart.items():
        print(f"| {name} | {difference:.1e} | {EMBEDDING_TOLERANCE:.0e} |")
    print(f"| average Spearman x 100 | {gap:.2f} | {SPEARMAN_TOLERANCE} |")
    sys.exit(int(max(apart.values()) > EMBEDDING_TOLERANCE or gap > SPEARMAN_TOLERANCE))


if __name__ == "__main__":
    main()
