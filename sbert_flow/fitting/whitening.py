"""fit_whitening: mean and covariance in a stream, then the whitening map."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from sbert_flow.fitting.interrupt import resumable
from sbert_flow.fitting.progress import Progress, progress_of
from sbert_flow.fitting.statistics import moments
from sbert_flow.fitting.store import EmbeddingStore
from sbert_flow.fitting.temporary import store_folder
from sbert_flow.flows import live_dimensions
from sbert_flow.modules import WhiteningLayer
from sbert_flow.modules.build import WHITENING
from sbert_flow.modules.model_card import describe_fit
from sbert_flow.modules.pipeline import encoder_before_map, split_at_map
from sbert_flow.modules.validation import MIN_ROWS, check_embeddings


@dataclass(frozen=True)
class WhiteningResult:
    """What a fit of a whitening did.

    Attributes:
        layer: the fitted layer, also in the model.
        rows: embeddings that it was fitted on.
        shrinkage: weight of the identity in the covariance, 0 to 1.
        encode_seconds: time spent encoding, the streamed moments with it.
        train_seconds: time spent on the map.
        history: empty: there are no steps.
        recipe: "whitening".
        advice: None: nothing was asked.
    """

    layer: WhiteningLayer
    rows: int
    shrinkage: float
    encode_seconds: float
    train_seconds: float
    history: list[dict[str, Any]] = field(default_factory=list)
    recipe: str = WHITENING
    advice: None = None


def fit_whitening(
    model: SentenceTransformer | WhiteningLayer | None = None,
    sentences: Iterable[str] | None = None,
    *,
    embeddings: Any = None,
    k: int | None = None,
    shrinkage: float | None = None,
    batch_size: int = 32,
    show_progress_bar: bool | None = None,
    store: str | Path | None = None,
    dtype: str = "float32",
    bf16: bool = False,
    progress: Progress | None = None,
) -> WhiteningResult:
    r"""Fit the model's WhiteningLayer on unlabelled sentences, in place, in one pass over their embeddings on disk.

    The covariance is shrunk towards a multiple of the identity,
    :math:`(1 - \rho) \Sigma + \rho \operatorname{tr}(\Sigma) / d \cdot I`, which whitening needs where there are fewer
    sentences than dimensions and which vanishes where there are many. By default rho is the oracle approximating
    shrinkage (OAS; Chen, Wiesel, Eldar & Hero, 2010); 0 is the published whitening.

    Args:
        model: a SentenceTransformer with one WhiteningLayer; with ``embeddings`` also a WhiteningLayer, or None for a
            new one.
        sentences: the text, any iterable, read as a stream; duplicates count once.
        embeddings: embeddings as they come before the layer, shape (n, d), instead of ``sentences``.
        k: of a new layer, where ``model`` is None.
        shrinkage: rho, 0 to 1; None takes OAS.
        batch_size: of the encoder.
        show_progress_bar: None shows it on a terminal.
        store, dtype, bf16, progress: as for :func:`sbert_flow.fit_flow`.

    Raises:
        ValueError: no WhiteningLayer, neither or both of sentences and embeddings, too few sentences, items that are
            not strings, embeddings that are not finite or all equal, shrinkage outside 0 to 1, a singular covariance
            without shrinkage.
    """
    if (sentences is None) == (embeddings is None):
        raise ValueError("give either sentences or embeddings, not both or neither.")
    if shrinkage is not None and not 0 <= shrinkage <= 1:
        raise ValueError(f"shrinkage must be from 0 to 1, or None for OAS, but got {shrinkage!r}.")
    if k is not None and model is not None:
        raise ValueError("k is a property of the layer: give it to WhiteningLayer, or leave the model out.")
    layer = model if isinstance(model, WhiteningLayer) or model is None else split_at_map(model, WhiteningLayer)[1]
    start = time.perf_counter()
    if embeddings is not None:
        embeddings = check_embeddings(embeddings, layer.embedding_dimension if layer else None, min_rows=MIN_ROWS)
        seen = moments(embeddings)
    elif isinstance(model, SentenceTransformer):
        progress = progress_of(progress, show_progress_bar)
        with resumable(store), store_folder(store) as folder:
            opened = EmbeddingStore.open(folder, sentences, progress=progress)  # type: ignore[arg-type]
            if len(opened) < MIN_ROWS:
                raise ValueError(f"at least {MIN_ROWS} different sentences are needed, but got {len(opened)}.")
            seen = moments(opened.embed(encoder_before_map(model), dtype=dtype, batch_size=batch_size, bf16=bf16))
    else:
        raise ValueError("a SentenceTransformer with a WhiteningLayer is needed to encode sentences.")
    if layer is None:
        layer = WhiteningLayer(embeddings.shape[1], k)
    encoded = time.perf_counter()
    covariance = seen.covariance
    live = live_dimensions(covariance.diagonal().sqrt())
    block = covariance[live][:, live]
    rho = oas_shrinkage(block, seen.count) if shrinkage is None else float(shrinkage)
    # In live dimensions only: shrinkage would raise the dead ones from the dead.
    towards = live.double() * (block.diagonal().mean() if len(block) else 0.0)
    layer.set_moments(seen.mean, (1 - rho) * covariance + rho * torch.diag(towards))
    if isinstance(model, SentenceTransformer):
        describe_fit(model, None, seen.count)
    return WhiteningResult(layer, seen.count, rho, encoded - start, time.perf_counter() - encoded)


def oas_shrinkage(covariance: Tensor, rows: int) -> float:
    r"""Oracle approximating shrinkage of a covariance, 0 to 1 (Chen, Wiesel, Eldar & Hero, 2010, eq. 23):

    .. math:: \rho = \min\left(1, \frac{\operatorname{tr} \Sigma^2 + (\operatorname{tr} \Sigma)^2}
              {(n + 1) (\operatorname{tr} \Sigma^2 - (\operatorname{tr} \Sigma)^2 / d)}\right)

    without the paper's 2/d terms, as in scikit-learn: they matter for a handful of dimensions only.

    Args:
        covariance: shape (d, d).
        rows: number n of rows it was computed from.
    """
    square, trace = float(covariance.square().sum()), float(covariance.trace())
    distance = (rows + 1) * (square - trace**2 / max(1, len(covariance)))
    return 1.0 if distance <= 0 else min(1.0, (square + trace**2) / distance)
