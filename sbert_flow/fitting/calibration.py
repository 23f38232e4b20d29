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

    The log densities are of rows that were held out of the fit, where there are 200 rows or more: it finds the others
    too likely.
    """
    numbers = sample_rows(len(embeddings), SAMPLE, torch.Generator().manual_seed(0))
    rows = read_rows(embeddings, numbers)
    apart = held_out(numbers).to(rows.device) if len(embeddings) >= HELD_OUT_FROM else None
    fitted = rows if apart is None else rows[~apart]
    center = fitted.mean(dim=0, dtype=torch.float64) if layer.affine is None else layer.affine.mean
    log_probs = layer.log_prob(rows if apart is None else rows[apart]).cpu()
    layer.note_fit(center, log_probs, 0 if apart is None else len(log_probs))
