"""fit_flow: encode once, train the flow on the embeddings."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sentence_transformers import SentenceTransformer

from sbert_flow.fitting.surface import check_nuisance, estimate_nuisance, surface_front
from sbert_flow.fitting.train import train_flow
from sbert_flow.modules import FlowLayer
from sbert_flow.modules.pipeline import encoder_before_flow, split_at_flow
from sbert_flow.modules.recipes import get_recipe
from sbert_flow.modules.validation import MIN_ROWS, check_embeddings, check_sentences
from sbert_flow.views import Edit

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FitResult:
    """What a fit did.

    Attributes:
        layer: the fitted layer, also in the model.
        history: ``{"step", "bits_per_dimension"}`` every 20 steps, with the recipe's noise on the embeddings; empty
            where nothing is trained.
        rows: embeddings that the flow was fitted on.
        encode_seconds: time spent encoding.
        train_seconds: time spent training.
    """

    layer: FlowLayer
    history: list[dict[str, Any]]
    rows: int
    encode_seconds: float
    train_seconds: float


def fit_flow(
    model: SentenceTransformer | FlowLayer | None = None,
    sentences: Iterable[str] | None = None,
    *,
    embeddings: Any = None,
    nuisance: Any = None,
    edits: Mapping[str, Edit] | None = None,
    recipe: str = "noise",
    epochs: int = 1,
    batch_size: int = 32,
    seed: int = 0,
    show_progress_bar: bool | None = None,
) -> FitResult:
    """Fit the model's FlowLayer on unlabelled sentences, in place: encode them once, then train on the embeddings.

    The layer is fitted from scratch, whatever it held, with the same result for the same seed on the same CPU. On an
    error or an interrupt it is left as it was.

    Args:
        model: a SentenceTransformer with one FlowLayer; with ``embeddings`` also a FlowLayer, or None for a new layer
            of the recipe's shape.
        sentences: the text; duplicates count once. At least 16, better a few hundred or more, of the domain of use.
        embeddings: embeddings as they come before the layer, shape (n, d), instead of ``sentences``.
        nuisance: for the surface recipes with ``embeddings``: W, shape (d, d), from
            :func:`sbert_flow.fitting.nuisance_moment`. With sentences it is estimated from them.
        edits: for the surface recipes, edits of your own ``(sentence, rng) -> sentence`` by name instead of those of
            :func:`sbert_flow.views.surface_edits`.
        recipe: "noise" (default), "paper", "surface", "surface-flow" or "mix", see
            :data:`sbert_flow.modules.recipes.RECIPES`.
        epochs: passes over the embeddings; at least 200 steps are made in any case.
        batch_size: of the encoder.
        seed: of initial weights, order and noise.
        show_progress_bar: None shows it on a terminal.

    Returns:
        The fitted layer, the history and the times.

    Raises:
        ValueError: no FlowLayer, neither or both of sentences and embeddings, too few sentences, items that are not
            strings, embeddings that are not finite, all equal or of another width, unknown recipe, epochs below 1; a
            surface recipe for a layer without a front, without sentences of four words, or with an edit that fails.
    """
    settings = get_recipe(recipe)
    if (sentences is None) == (embeddings is None):
        raise ValueError("give either sentences or embeddings, not both or neither.")
    if not isinstance(epochs, int) or epochs < 1:
        raise ValueError(f"epochs must be a whole number of at least 1, but got {epochs!r}.")
    if show_progress_bar is None:
        show_progress_bar = sys.stderr.isatty()
    layer = model if isinstance(model, FlowLayer) or model is None else split_at_flow(model)[1]
    if settings.front and layer is not None and not layer.front:
        raise ValueError(
            f"recipe {recipe!r} needs a FlowLayer with a front. Make the model with "
            f"build_model(encoder, pooling, recipe={recipe!r})."
        )
    if settings.front and embeddings is not None and nuisance is None:
        raise ValueError(f"recipe {recipe!r} edits sentences: give sentences, or embeddings with their nuisance.")
    start = time.perf_counter()
    if embeddings is None:
        if not isinstance(model, SentenceTransformer):
            raise ValueError(
                "a SentenceTransformer with a FlowLayer is needed to encode sentences; or give embeddings."
            )
        encoder, sentences = encoder_before_flow(model), check_sentences(sentences)
        if settings.front and nuisance is None:  # first, since text without words is found out here
            nuisance = estimate_nuisance(
                encoder, sentences, edits, seed=seed, batch_size=batch_size, show_progress_bar=show_progress_bar
            )
        embeddings = encoder.encode(
            sentences,
            batch_size=batch_size,
            convert_to_tensor=True,
            show_progress_bar=show_progress_bar,
        ).clone()  # encode returns inference tensors, which training cannot use
    embeddings = check_embeddings(embeddings, layer.embedding_dimension if layer else None, min_rows=MIN_ROWS)
    if layer is None:
        layer = FlowLayer(embeddings.shape[1], **settings.shape)
    shape = {key: getattr(layer, key) for key in settings.shape}
    if shape != settings.shape:
        warnings.warn(
            f"the layer's shape {shape} is not that of recipe {recipe!r}, {settings.shape}: it is trained with the "
            f"recipe's settings all the same. build_model(..., recipe={recipe!r}) makes one of its shape.",
            stacklevel=2,
        )
    encoded = time.perf_counter()
    front = None
    if settings.front:
        nuisance = check_nuisance(nuisance, embeddings.shape[1])
        front = surface_front(embeddings, nuisance, settings.nuisance_weight)
    history = train_flow(
        layer, embeddings, settings, front=front, epochs=epochs, seed=seed, show_progress_bar=show_progress_bar
    )
    trained = time.perf_counter()
    logger.info("Fitted the flow on %d embeddings in %.1f s", len(embeddings), trained - encoded)
    return FitResult(layer, history, len(embeddings), encoded - start, trained - encoded)
