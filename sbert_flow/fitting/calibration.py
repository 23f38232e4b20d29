"""What a fitted layer keeps of its text, so that other text can be compared with it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sbert_flow.fitting.embedding_set import EmbeddingSet
from sbert_flow.fitting.sampling import HELD_OUT, HELD_OUT_FROM, held_out, read_rows, sample_rows
from sbert_flow.modules import FlowLayer

ROWS_AT_A_TIME = 8192
SAMPLE = 20_000
"""Rows whose log densities are kept, as 1,001 quantiles."""


def note_fit(layer: FlowLayer, embeddings: Tensor | EmbeddingSet) -> None:
    """Give the layer the mean of the embeddings (n, d) that it was fitted on, and log densities.

    Those of a trained flow are of rows that it was not trained on, where there are 1,000 rows or more: it finds the
    others too likely.
    """
    count, generator = len(embeddings), torch.Generator().manual_seed(0)
    if layer.steps_per_level and count >= HELD_OUT_FROM:
        rows = sample_rows(count, HELD_OUT * SAMPLE, generator)
        rows = rows[held_out(rows)]
    else:
        rows = sample_rows(count, SAMPLE, generator)
    log_probs = layer.log_prob(read_rows(embeddings, rows)).cpu()
    total = torch.zeros(layer.embedding_dimension, dtype=torch.float64)
    for start in range(0, count, ROWS_AT_A_TIME):
        block = torch.as_tensor(np.array(embeddings[start : start + ROWS_AT_A_TIME], dtype=np.float32))
        total += block.sum(dim=0, dtype=torch.float64)
    layer.note_fit(total / count, log_probs)
