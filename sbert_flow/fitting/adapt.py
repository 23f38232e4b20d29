"""Shift of new text against the fitted text, and adaptation to it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import t as student_t
from sentence_transformers import SentenceTransformer

from sbert_flow.fitting.advise import LEAVE, Advice, advise
from sbert_flow.fitting.statistics import StreamingMoments, moments, shrunk
from sbert_flow.modules import FlowLayer
from sbert_flow.modules.pipeline import encoder_before_flow, split_at_flow
from sbert_flow.modules.recipes import RECIPES
from sbert_flow.modules.validation import check_embeddings, check_sentences

MIN_SENTENCES = 50
COVARIANCE_SENTENCES = 300
"""Sentences from which on part of the covariance is adapted too."""

LARGE_SHIFT = 0.1
"""Bits per dimension from which on a shift is called large: on STS, maps began to lose there."""


RAW_WEIGHTS = {"flow": 0.0, "mix": RECIPES["mix"].raw_weight, LEAVE: 1.0}
"""Weight of the raw embedding by the decision on the new text; with too little of it, the weight stays as fitted."""


@dataclass(frozen=True)
class Shift:
    """How far new text lies from the text that a flow was fitted on.

    Attributes:
        bits_per_dimension: by how much the new text is less likely, in bits per dimension.
        interval: 95 % confidence interval of it, from the spread over both texts' sentences.
        distance: between the means in the latent space, in units of the root mean square latent, per dimension.
        large: whether the whole interval lies above .1 bits per dimension.
        sentences: how many were measured.
    """

    bits_per_dimension: float
    interval: tuple[float, float]
    distance: float
    sentences: int

    @property
    def large(self) -> bool:
        return self.interval[0] > LARGE_SHIFT


@dataclass(frozen=True)
class AdaptResult:
    """What an adaptation found.

    Attributes:
        shift: how far the new text lay from the fitted text.
        advice: that of :func:`sbert_flow.advise` on the new text.
        raw_weight: weight of the raw embedding in what the model writes now; None where it is as fitted.
    """

    shift: Shift
    advice: Advice
    raw_weight: float | None


def measure_shift(layer: FlowLayer, embeddings: Any) -> Shift:
    """Compare embeddings (n, d), as they come before the layer, with those that the layer was fitted on.

    Fitted on 200 sentences or more, the layer is compared with those that were held out of its fit. Fitted on fewer,
    it finds its own text too likely, by an amount that is not known: the interval is infinite. Otherwise it is
    Student's, of the held-out rows (one in 20): where these are few and their densities skewed, it misses more often
    than it says.

    Raises:
        ValueError: fewer than two rows, or a layer that does not know its own text.
    """
    x = check_embeddings(embeddings, layer.embedding_dimension, min_rows=2)
    if not layer.log_prob_moments.any():
        raise ValueError("this flow does not know how likely its own text was. Fit it with sbert_flow.fit_flow.")
    to_bits = 1 / (layer.embedding_dimension * math.log(2))
    own_mean, own_variance = layer.log_prob_moments.double().tolist()
    bits = (own_mean - layer.log_prob(x).double()) * to_bits
    mean, known = bits.mean().item(), int(layer.log_prob_rows)
    margin = math.inf
    if known > 1:  # the held-out rows are few, so that their variance is uncertain too: Student's t
        error = math.sqrt(bits.var().item() / len(x) + own_variance * to_bits**2 / known)
        margin = float(student_t.ppf(0.975, known - 1)) * error
    center = layer.latents(layer.center[None])[0]
    moved = layer.latents(x.mean(dim=0)[None])[0] - center
    return Shift(mean, (mean - margin, mean + margin), moved.square().mean().sqrt().item(), len(x))


def adapt(model: SentenceTransformer, sentences: Iterable[str], *, batch_size: int = 32) -> AdaptResult:
    """Adapt a fitted model to new text, in place, without labels and without training.

    The mean of the embeddings is taken from the new text, and from 300 sentences on also half of the covariance that
    the surface map divides by (layers with a front). How much of the raw embedding the model writes follows
    :func:`sbert_flow.advise` on the new text: none where the advice is "flow"; the share of recipe "mix" where it is
    "mix"; all of it, with a warning, where it is "leave"; as much as fitted where it is "too little text".

    What was fitted is kept: adapting again replaces the adaptation, and ``model[-1].reset_adaptation()`` undoes it.
    Likelihoods stay those of the fitted text.

    Args:
        model: a SentenceTransformer with one fitted FlowLayer.
        sentences: unlabelled text of the new domain; at least 50 different ones.
        batch_size: of the encoder.

    Raises:
        ValueError: no FlowLayer, one that was never fitted, fewer than 50 different sentences, items that are not
            strings.
    """
    _, layer = split_at_flow(model)
    if not layer.initialized:
        raise ValueError("the flow was never fitted, so there is nothing to adapt. Call sbert_flow.fit_flow first.")
    distinct = check_sentences(sentences, least=MIN_SENTENCES)
    encoder = encoder_before_flow(model)
    x = encoder.encode(distinct, batch_size=batch_size, convert_to_tensor=True, show_progress_bar=False)
    x = check_embeddings(x, layer.embedding_dimension, min_rows=MIN_SENTENCES)
    shift = _shift_of_fit(layer, x)
    advice = advise(encoder, distinct, batch_size=batch_size)
    adapt_layer(layer, moments(x), advice.decision)
    if advice.decision == LEAVE:
        warnings.warn(
            f"on this text the encoder without the map is likely better, so the model writes the raw embedding now: "
            f"{advice.reason} layer.reset_adaptation() or sbert-flow adapt --reset returns to the map as fitted.",
            stacklevel=2,
        )
    return AdaptResult(shift, advice, layer.adapted_raw_weight)


def adapt_layer(layer: FlowLayer, seen: StreamingMoments, decision: str) -> None:
    """Adapt a layer to embeddings of these moments, and to the decision of the advice on their text."""
    # Of few sentences a covariance is too uncertain.
    covariance = shrunk(seen.covariance, seen.count) if seen.count >= COVARIANCE_SENTENCES else None
    layer.adapt(seen.mean, covariance, raw_weight=RAW_WEIGHTS.get(decision))


def warn_if_shifted(model: SentenceTransformer, sentences: Sequence[str], *, batch_size: int = 32) -> None:
    """Warn when text on which a fitted model is used lies far from the text it was fitted on.

    A sample of 300 sentences is encoded. Nothing is said of models without a flow, or adapted ones, or where the layer
    does not know its own text.
    """
    layers = [module for module in model.children() if isinstance(module, FlowLayer)]
    if len(layers) != 1 or layers[0].adapted or not layers[0].log_prob_moments.any():
        return
    order = torch.randperm(len(sentences), generator=torch.Generator().manual_seed(0))[:COVARIANCE_SENTENCES]
    sample = [sentences[index] for index in order.tolist()]
    x = encoder_before_flow(model).encode(
        sample, batch_size=batch_size, convert_to_tensor=True, show_progress_bar=False
    )
    shift = measure_shift(layers[0], x)
    if shift.large:
        warnings.warn(
            f"this text takes {shift.bits_per_dimension:.2f} bits per dimension more than the text the flow was "
            "fitted on: another domain, on which it can fall below the raw encoder. Adapt it: sbert-flow adapt.",
            stacklevel=2,
        )


def _shift_of_fit(layer: FlowLayer, x: torch.Tensor) -> Shift:
    """The shift against the map as fitted, whatever it is adapted to now."""
    earlier, layer.adaptation = layer.adaptation, None
    try:
        return measure_shift(layer, x)
    finally:
        layer.adaptation = earlier
