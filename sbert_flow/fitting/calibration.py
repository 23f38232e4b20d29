"""What a fitted layer keeps of its text, so that other text can be compared with it."""

from __future__ import annotations

import torch
from torch import Tensor

from sbert_flow.fitting.embedding_set import EmbeddingSet
from sbert_flow.fitting.sampling import HELD_OUT_FROM, held_out, read_rows, sample_rows
from sbert_flow.modules import FlowLayer

SAMPLE = 20_000
"""Rows that are looked at, whatever the size of the text."""


def note_fit(layer: FlowLayer, embeddings: Tensor | EmbeddingSet) -> None:
    """Give the layer the mean of the embeddings (n, d) that it was fitted on, and log densities, both of a sample.

    The log densities of a trained flow are of rows that it was not trained on, where there are 1,000 rows or more: it
    finds the others too likely.
    """
    numbers = sample_rows(len(embeddings), SAMPLE, torch.Generator().manual_seed(0))
    rows = read_rows(embeddings, numbers)
    center = rows.mean(dim=0, dtype=torch.float64)
    if layer.steps_per_level and len(embeddings) >= HELD_OUT_FROM:
        rows = rows[held_out(numbers).to(rows.device)]
    layer.note_fit(center, layer.log_prob(rows).cpu())
