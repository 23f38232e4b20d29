"""The flow's training objective as a sentence-transformers loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sbert_flow.flows import bits_per_dimension


class FlowNLLLoss(nn.Module):
    @staticmethod
    def compute_loss_from_embeddings(embeddings: Sequence[Tensor], log_dets: Sequence[Tensor]) -> Tensor:
        terms = [bits_per_dimension(z, log_det).mean() for z, log_det in zip(embeddings, log_dets, strict=True)]
        return torch.stack(terms).mean()
