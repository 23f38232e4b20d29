"""What a fitted layer keeps of its text, so that other text can be compared with it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sbert_flow.fitting.embedding_set import EmbeddingSet
from sbert_flow.modules import FlowLayer

ROWS_AT_A_TIME = 8192


def note_fit(layer: FlowLayer, embeddings: Tensor | EmbeddingSet) -> None:
    """Give the layer the mean of the embeddings (n, d) that it was fitted on, and their log densities."""
    total = torch.zeros(layer.embedding_dimension, dtype=torch.float64)
    log_probs = []
    for start in range(0, len(embeddings), ROWS_AT_A_TIME):
        rows = torch.as_tensor(np.array(embeddings[start : start + ROWS_AT_A_TIME], dtype=np.float32))
        total += rows.sum(dim=0, dtype=torch.float64)
        log_probs.append(layer.log_prob(rows).cpu())
    layer.note_fit(total / len(embeddings), torch.cat(log_probs))
