"""What a training step of PT-BERT costs beside one of SimCSE: same encoder, batch and text, in one run.

    python benchmarks/encoder_step_cost.py --encoder bert-base-uncased --text FILE

Prints the median CPU (on a GPU: wall) time of a step, the memory that the step's graph keeps for the backward pass,
and the parameters beside the encoder's. The steps of both recipes alternate, so that a busy machine treats them alike.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sbert_flow.data import read_sentences
from sbert_flow.fitting import load_trainable
from sbert_flow.fitting.encoder_recipes import ENCODER_RECIPES

COMPARED = ("simcse", "ptbert")
MEBIBYTE = 2**20


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", required=True, help="hub id or folder")
    parser.add_argument("--text", nargs="+", required=True, help="files of sentences or hub datasets")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5, help="measured steps of each, after one of warming up")
    return parser.parse_args()


def kept_for_backward(step: Callable[[], Tensor], parameters: list[nn.Parameter]) -> int:
    """Bytes of the tensors, parameters apart, that the graph of ``step`` holds."""
    known = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = step()
    loss.backward()
    return sum(storages.values())


def main() -> None:
    args = parse()
    sentences = list(itertools.islice(read_sentences(args.text), args.batch_size * (args.steps + 1)))
    seconds: dict[str, list[float]] = {recipe: [] for recipe in COMPARED}
    memory: dict[str, int] = {}
    extra: dict[str, tuple[int, int]] = {}
    losses, models, optimizers = {}, {}, {}
    for recipe in COMPARED:
        models[recipe] = load_trainable(args.encoder)
        models[recipe].max_seq_length = args.max_length
        models[recipe].train()
        losses[recipe] = ENCODER_RECIPES[recipe].loss(models[recipe], 0).to(models[recipe].device)
        optimizers[recipe] = torch.optim.AdamW([p for p in losses[recipe].parameters() if p.requires_grad], lr=3e-5)
        encoder = sum(p.numel() for p in models[recipe].parameters())
        learnt = sum(p.numel() for p in losses[recipe].parameters() if p.requires_grad) - encoder
        extra[recipe] = (learnt, sum(p.numel() for p in losses[recipe].parameters()) - encoder - learnt)
    on_gpu = models[COMPARED[0]].device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    for number, start in enumerate(range(0, len(sentences), args.batch_size)):
        for recipe in COMPARED:
            model, loss, optimizer = models[recipe], losses[recipe], optimizers[recipe]
            features = {
                name: value.to(model.device) if isinstance(value, Tensor) else value
                for name, value in model.preprocess(sentences[start : start + args.batch_size]).items()
            }
            columns = [features] if recipe == "ptbert" else [dict(features), dict(features)]
            begun = clock()
            optimizer.zero_grad()
            if number == 0:
                memory[recipe] = kept_for_backward(
                    lambda loss=loss, columns=columns: loss(columns, None), list(loss.parameters())
                )
            else:
                loss(columns, None).backward()
            optimizer.step()
            if on_gpu:
                torch.cuda.synchronize()
            if number:
                seconds[recipe].append(clock() - begun)
    print(f"{args.encoder}: {encoder:,} parameters; batch {args.batch_size}, length {args.max_length}, CLS pooling")
    print("| recipe | s a step | kept for backward, MiB | learnt beside the encoder | copies without gradient |")
    print("|---|---|---|---|---|")
    for recipe in COMPARED:
        learnt, copies = extra[recipe]
        print(
            f"| {recipe} | {statistics.median(seconds[recipe]):.2f} | {memory[recipe] / MEBIBYTE:.0f} | "
            f"{learnt:,} ({100 * learnt / encoder:.1f} %) | {copies:,} |"
        )


if __name__ == "__main__":
    main()
