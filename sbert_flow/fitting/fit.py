"""fit_flow: encode once, train the flow on the embeddings."""

from __future__ import annotations

import hashlib
import json
import logging
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from sbert_flow.fitting import distributed
from sbert_flow.fitting.advise import LEAVE, Advice, advise_store
from sbert_flow.fitting.checkpoint import Checkpoint
from sbert_flow.fitting.embedding_set import EmbeddingSet, check_dtype
from sbert_flow.fitting.interrupt import resumable
from sbert_flow.fitting.progress import Progress, progress_of
from sbert_flow.fitting.store import EmbeddingStore
from sbert_flow.fitting.surface import check_nuisance, nuisance_of_store, surface_front
from sbert_flow.fitting.temporary import store_folder
from sbert_flow.fitting.train import train_flow
from sbert_flow.modules import FlowLayer
from sbert_flow.modules.pipeline import encoder_before_flow, replace_flow, split_at_flow
from sbert_flow.modules.recipes import AUTO, Recipe, get_recipe
from sbert_flow.modules.validation import MIN_ROWS, check_embeddings
from sbert_flow.views import Edit

logger = logging.getLogger(__name__)


WITHOUT_SENTENCES = "noise"
"""What "auto" stands for where there are embeddings only."""


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
        recipe: the recipe that was fitted.
        advice: what "auto" followed, or None.
    """

    layer: FlowLayer
    history: list[dict[str, Any]]
    rows: int
    encode_seconds: float
    train_seconds: float
    recipe: str
    advice: Advice | None = None


def fit_flow(
    model: SentenceTransformer | FlowLayer | None = None,
    sentences: Iterable[str] | None = None,
    *,
    embeddings: Any = None,
    nuisance: Any = None,
    edits: Mapping[str, Edit] | None = None,
    recipe: str = AUTO,
    epochs: int = 1,
    batch_size: int = 32,
    seed: int = 0,
    show_progress_bar: bool | None = None,
    store: str | Path | None = None,
    dtype: str = "float32",
    bf16: bool = False,
    progress: Progress | None = None,
) -> FitResult:
    """Fit the model's FlowLayer on unlabelled sentences, in place: encode them once, then train on the embeddings.

    What is fitted is what :func:`sbert_flow.advise` finds best for the model's embeddings of the text, in a new layer
    that takes the place of the model's; where it finds that the encoder should be left alone, the fit stops and says
    so. Name a recipe to fit that one instead: in the model's own layer, whatever its levels, steps and widths, unless
    that is another kind of map (front, linear, mixed) than the recipe fits; then in a new one.

    The layer is fitted from scratch, whatever it held, with the same result for the same seed on the same CPU. On an
    error or an interrupt it is left as it was. Memory does not grow with the text: sentences are read as a stream, and
    their embeddings lie on disk. Under ``torchrun`` or ``accelerate launch`` all ranks call it together.

    Args:
        model: a SentenceTransformer with one FlowLayer; with ``embeddings`` also a FlowLayer, or None for a new layer
            of the recipe's shape.
        sentences: the text, any iterable; duplicates count once. At least 50, or 16 for a recipe that is named;
            better a few hundred or more, of the domain of use.
        embeddings: embeddings as they come before the layer, shape (n, d), instead of ``sentences``: an array, a
            tensor or an :class:`~sbert_flow.fitting.embedding_set.EmbeddingSet`.
        nuisance: for the surface recipes with ``embeddings``: W, shape (d, d), from
            :func:`sbert_flow.fitting.nuisance_moment`. With sentences it is estimated from them.
        edits: for the surface recipes, edits of your own ``(sentence, rng) -> sentence`` by name instead of those of
            :func:`sbert_flow.views.surface_edits`.
        recipe: "auto" (default), what the advice names; or "noise", "paper", "surface", "surface-flow" or "mix", see
            :data:`sbert_flow.modules.recipes.RECIPES`. With ``embeddings`` there are no sentences to take advice on,
            and "auto" is "noise".
        epochs: passes over the embeddings; at least 200 steps are made in any case.
        batch_size: of the encoder.
        seed: of initial weights, order and noise.
        show_progress_bar: None shows it on a terminal.
        store: folder for text and embeddings (:class:`~sbert_flow.fitting.store.EmbeddingStore`). The same call again
            continues what was interrupted, and other settings use the same embeddings. None takes a temporary folder.
        dtype: "float32" or "float16", of the embeddings in the store.
        bf16: run the encoder in bfloat16 autocast; the flow stays in float32.
        progress: style and stream of the progress, instead of ``show_progress_bar``.

    Returns:
        The fitted layer, the history and the times.

    Raises:
        ValueError: no FlowLayer, neither or both of sentences and embeddings, too few sentences, items that are not
            strings, embeddings that are not finite, all equal or of another width, unknown recipe, epochs below 1, a
            store of a newer version; a surface recipe for a layer without a front, for text without sentences of four
            words, or with an edit that fails; "auto" where the advice is to leave the encoder alone.
        OSError: the store cannot be written, or its disk is full.
        KeyboardInterrupt: also for SIGTERM. What is in the store is kept.
    """
    if (sentences is None) == (embeddings is None):
        raise ValueError("give either sentences or embeddings, not both or neither.")
    if not isinstance(epochs, int) or epochs < 1:
        raise ValueError(f"epochs must be a whole number of at least 1, but got {epochs!r}.")
    check_dtype(dtype)
    if recipe != AUTO:
        named = get_recipe(recipe)  # a wrong name is found before any work
        if edits is not None and not named.front:
            raise ValueError(f"recipe {recipe!r} edits nothing: edits are for the surface recipes and 'mix'.")
    own = model if isinstance(model, FlowLayer) or model is None else split_at_flow(model)[1]
    progress = progress_of(progress, show_progress_bar)
    start = time.perf_counter()
    with ExitStack() as stack:
        checkpoint = None
        if embeddings is not None:
            ready = _from_embeddings(model, own, embeddings, nuisance, recipe)
        elif not isinstance(model, SentenceTransformer):
            raise ValueError("encoding sentences needs a SentenceTransformer with a FlowLayer; or give embeddings.")
        else:
            stack.enter_context(resumable(store))
            folder = stack.enter_context(store_folder(store))
            least = 1 if recipe == AUTO else MIN_ROWS  # the advice itself says what is too little, and what to do
            opened = EmbeddingStore.open(folder, sentences, least=least, progress=progress)  # type: ignore[arg-type]
            encoding = {"dtype": dtype, "batch_size": batch_size, "bf16": bf16}
            ready = _from_sentences(model, opened, recipe, nuisance, edits, seed, encoding)
            if store:
                checkpoint = _checkpoint(opened, ready, epochs, seed)
        settings = get_recipe(ready.recipe)
        _check_layer(ready, settings)
        encoded = time.perf_counter()
        front = None
        if settings.front:
            front = surface_front(
                ready.embeddings, check_nuisance(ready.nuisance, ready.layer), settings.nuisance_weight
            )
        history = train_flow(
            ready.layer,
            ready.embeddings,
            settings,
            front=front,
            epochs=epochs,
            seed=seed,
            progress=progress,
            checkpoint=checkpoint,
        )
        trained = time.perf_counter()
        if checkpoint:
            checkpoint.remove()
        rows = len(ready.embeddings)
    if isinstance(model, SentenceTransformer) and ready.layer is not own:
        replace_flow(model, ready.layer)
    logger.info("Fitted the flow on %d embeddings in %.1f s", rows, trained - encoded)
    return FitResult(ready.layer, history, rows, encoded - start, trained - encoded, ready.recipe, ready.advice)


@dataclass(frozen=True)
class _Ready:
    """What training needs."""

    layer: FlowLayer
    embeddings: Tensor | EmbeddingSet
    nuisance: Any
    recipe: str
    advice: Advice | None = None


def _from_embeddings(model: Any, layer: FlowLayer | None, embeddings: Any, nuisance: Any, recipe: str) -> _Ready:
    """Check the given embeddings, and make a layer if there is none that fits."""
    recipe = WITHOUT_SENTENCES if recipe == AUTO else recipe
    settings = get_recipe(recipe)
    if settings.front and nuisance is None:
        raise ValueError(f"recipe {recipe!r} edits sentences: give sentences, or embeddings with their nuisance.")
    if not isinstance(embeddings, EmbeddingSet):
        embeddings = check_embeddings(embeddings, layer.embedding_dimension if layer else None, min_rows=MIN_ROWS)
    if layer is None:
        layer = FlowLayer(embeddings.shape[1], **settings.shape)
    return _Ready(_layer_for(recipe, layer, model), embeddings, nuisance, recipe)


def _from_sentences(
    model: SentenceTransformer,
    store: EmbeddingStore,
    recipe: str,
    nuisance: Any,
    edits: Mapping[str, Edit] | None,
    seed: int,
    encoding: dict[str, Any],
) -> _Ready:
    """Ask for advice if it is wanted, and encode the sentences and, for a front, their views."""
    encoder = encoder_before_flow(model)
    advice: Advice | None = None
    if recipe == AUTO:
        advice = advise_store(store, encoder, seed, encoding["batch_size"])
        if advice.recipe is None:
            leave = advice.decision == LEAVE
            instead = "Use the encoder without a map. " if leave else ""
            other = "mix" if leave else WITHOUT_SENTENCES
            needs = "" if leave else f"; that needs {MIN_ROWS} different sentences"
            raise ValueError(
                f"nothing is fitted. {advice}\n{instead}Name a recipe (recipe={other!r}, --recipe {other}) to fit one "
                f"all the same{needs}."
            )
        recipe = advice.recipe
    layer = _layer_for(recipe, split_at_flow(model)[1], model, of_its_shape=advice is not None)
    if get_recipe(recipe).front and nuisance is None:  # first, since text without words is found out here
        nuisance = nuisance_of_store(store, encoder, edits, seed, **encoding)
    return _Ready(layer, store.embed(encoder, **encoding), nuisance, recipe, advice)


def _layer_for(recipe: str, layer: FlowLayer, model: Any, of_its_shape: bool = False) -> FlowLayer:
    """The layer itself, or for a model a new one of the recipe's shape where the layer is a map of another kind."""
    settings = get_recipe(recipe)
    kinds = [(x.front, x.steps_per_level > 0) for x in (layer, settings)]
    mixes = layer.raw_weight > 0 or settings.raw_weight == 0  # a weight of the user's is kept under any recipe
    if kinds[0] == kinds[1] and mixes and not of_its_shape:
        return layer
    if not isinstance(model, SentenceTransformer):
        raise ValueError(
            f"this FlowLayer is another kind of map (front, trained steps: {kinds[0]}, raw weight "
            f"{layer.raw_weight:g}) than recipe {recipe!r} fits ({kinds[1]}, {settings.raw_weight:g}). Leave it out "
            "for a new one of the recipe's shape."
        )
    return FlowLayer(layer.embedding_dimension, **settings.shape).to(layer.noise_unit.device).train(layer.training)


def _checkpoint(store: EmbeddingStore, ready: _Ready, epochs: int, seed: int) -> Checkpoint:
    """The checkpoint of this fit: another one for other embeddings, views, settings or shapes."""
    views = None
    if ready.nuisance is not None:
        views = hashlib.sha256(torch.as_tensor(ready.nuisance).cpu().numpy().tobytes()).hexdigest()
    key, shape = ready.embeddings.key, ready.layer.get_config_dict()  # type: ignore[union-attr]
    settings = [key, views, shape, asdict(get_recipe(ready.recipe)), epochs, seed, torch.__version__]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    return Checkpoint(store.folder / f"training-{distributed.from_first(digest)}.safetensors")


def _check_layer(ready: _Ready, recipe: Recipe) -> None:
    """Refuse embeddings of another width than the layer's; warn where its shape is not the recipe's."""
    layer, embeddings, name = ready.layer, ready.embeddings, ready.recipe
    if embeddings.shape[1] != layer.embedding_dimension:
        raise ValueError(
            f"the embeddings have width {embeddings.shape[1]}, but the layer has {layer.embedding_dimension}. "
            f"Make it FlowLayer({embeddings.shape[1]}), or leave the model out for a new one."
        )
    if len(embeddings) < MIN_ROWS:
        raise ValueError(f"at least {MIN_ROWS} embeddings are needed, but got {len(embeddings)}. Give more sentences.")
    shape = {key: getattr(layer, key) for key in recipe.shape}
    if shape != recipe.shape:
        warnings.warn(
            f"the layer's shape {shape} is not that of recipe {name!r}, {recipe.shape}: it is trained with the "
            f"recipe's settings all the same. build_model(encoder, pooling, recipe={name!r}) makes one of its shape.",
            stacklevel=3,
        )
