"""The spaces of embeddings that choose.py and small_text.py look at, and their score on the STS tasks."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer

from sbert_flow.data import SentencePairs
from sbert_flow.fitting.store import EmbeddingStore
from sbert_flow.modules.pooling import pooling_modules

BETWEEN = (0.25, 0.5, 0.75)
NAMED = ("mean", "cls", "max", "first-last", "first-last-embedding", "last-two")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sts", required=True, help="folder of <TASK>/test.jsonl")
    parser.add_argument("--encoder", action="append", required=True, help="folder or hub id; may be repeated")
    parser.add_argument("--between", help="another encoder of the first one's shape: adds those with weights between")
    parser.add_argument(
        "--truncated", nargs="+", type=int, default=[], help="adds the first encoders cut after so many layers"
    )
    parser.add_argument(
        "--random", nargs="+", default=[], metavar="LxD", help="adds the first one with L layers of D random weights"
    )
    parser.add_argument("--pooling", action="append", help="default: every layer, and all named ones")
    parser.add_argument("--task", action="append", help="task; may be repeated; default the seven")
    parser.add_argument("--split", default="test", help="default test")
    parser.add_argument("--pairs", type=int, help="pairs of each task, drawn at random; default all")


def drawn(task: SentencePairs, count: int | None) -> SentencePairs:
    """``count`` random pairs of the task."""
    if count is None or count >= len(task):
        return task
    keep = random.Random(0).sample(range(len(task)), count)
    columns = ([column[index] for index in keep] for column in (task.sentences1, task.sentences2, task.scores))
    return SentencePairs(task.name, *columns)


def encoders(options: argparse.Namespace) -> Iterator[tuple[str, Transformer | SentenceTransformer, list[str]]]:
    """Name, Transformer or static model, and poolings of each encoder."""

    def loaded(encoder: str) -> SentenceTransformer:
        return SentenceTransformer(encoder, device="cpu", model_kwargs={"dtype": torch.float32})

    def poolings(transformer: Transformer) -> list[str]:
        layers = [f"layer:{index}" for index in range(transformer.model.config.num_hidden_layers)]
        return options.pooling or [*layers, *NAMED]

    transformers = []
    for encoder in options.encoder:
        name, model = Path(encoder).name, loaded(encoder)
        if isinstance(model[0], Transformer):
            transformers.append((name, encoder))
            yield name, model[0], poolings(model[0])
        else:
            yield name, model, ["mean"]
    first = options.encoder[0]
    if options.between:
        states = [loaded(encoder)[0].state_dict() for encoder in (first, options.between)]
        for share in BETWEEN:
            middle = loaded(first)[0]
            middle.load_state_dict(
                {
                    key: torch.lerp(value, states[1][key], share) if value.is_floating_point() else value
                    for key, value in states[0].items()
                }
            )
            yield f"between-{share:g}", middle, poolings(middle)
    for name, encoder in transformers[:2]:
        for layers in options.truncated:
            cut = loaded(encoder)[0]
            cut.model.encoder.layer = cut.model.encoder.layer[:layers]
            cut.model.config.num_hidden_layers = layers
            yield f"{name}, {layers} layers", cut, ["cls", "max", "first-last"]  # their mean is layer:K of the whole
    for size in options.random:
        layers, width = map(int, size.split("x"))
        drawn = loaded(first)[0]
        config = drawn.model.config
        config.update({
            "hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers,
            "num_attention_heads": width // 32,
        })  # fmt: skip
        torch.manual_seed(1)
        drawn.model = type(drawn.model)(config).eval()
        yield f"random {size}", drawn, ["layer:0", "mean", "cls", "max"]


def embed(store: EmbeddingStore, model: Transformer | SentenceTransformer, names: list[str]) -> dict[str, np.ndarray]:
    """All texts of the store under each pooling, from one pass of the encoder."""
    if isinstance(model, Transformer):
        sets = store.embed_poolings(model, {name: pooling_modules(model, name) for name in names})
    else:
        sets = {name: store.embed(model) for name in names}
    return {name: np.array(found[:], dtype=np.float32) for name, found in sets.items()}


def average(x: np.ndarray, tasks: list[SentencePairs], place: dict[str, int]) -> float:
    """Mean over tasks of Spearman x 100 between cosine similarity and score."""
    x = x / np.linalg.norm(x, axis=1, keepdims=True).clip(min=1e-12)
    values = []
    for task in tasks:
        first, second = ([place[s] for s in side] for side in (task.sentences1, task.sentences2))
        values.append(spearmanr((x[first] * x[second]).sum(axis=1), task.scores)[0])
    return 100 * float(np.mean(values))
