"""Advice, without labels, on whether a map would help a space of embeddings, and which."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from sbert_flow.fitting import distributed
from sbert_flow.fitting.files import write_json
from sbert_flow.fitting.fingerprint import encoder_fingerprint
from sbert_flow.fitting.room import mapped_separation
from sbert_flow.fitting.sampling import sample_rows
from sbert_flow.fitting.statistics import moments
from sbert_flow.fitting.store import EmbeddingStore
from sbert_flow.fitting.surface import nuisance_moment, viewed
from sbert_flow.fitting.variety import variety
from sbert_flow.flows import live_dimensions
from sbert_flow.measures import effective_rank, iso_score, mean_cosine, population_participation_ratio, view_separation
from sbert_flow.modules.pipeline import encoder_of
from sbert_flow.modules.recipes import RECIPES
from sbert_flow.modules.validation import check_embeddings, check_sentences, iterate_sentences

SAMPLE = 1000
"""Sentences that are measured; their views number at most 300 an edit."""

VIEWED = 300
LEAST_TEXT = 50
"""Distinct sentences below which a map is not worth its risk."""

FLOW_TEXT = 2000
FLOW_CONCENTRATION = 0.0025
"""Distinct sentences from which on, and concentration up to which, a flow is trained behind the surface map."""

MOST_OVERLAP = 0.2
"""Share of words in common above which a text is too narrow; general text and STS have .02 to .12."""

LEAVE_BELOW = 1.7
MIX_BELOW = 2.1
"""Bounds of the room: in the spaces tried, maps lost below the first, and those that replace lost below the second."""

MIX_CENTRED = 1.9
MIX_RATIO = 60
"""Centred room below which, and participation ratio above which, mixing gained more than replacing."""

NARROW_OVERLAP = 0.1
NARROW_LEAVE = 2.4
"""Share of words in common from which on a text is of a narrow domain, and the bound of the room there."""

LEAST_SEPARATION = 0.01
"""Below it a space tells an edited sentence from another no better than chance, and a quotient says nothing."""

LEAVE = "leave"

RULE = (
    5, SAMPLE, VIEWED, LEAST_TEXT, MOST_OVERLAP, FLOW_TEXT, FLOW_CONCENTRATION, LEAVE_BELOW, MIX_BELOW, MIX_CENTRED,
    MIX_RATIO, NARROW_OVERLAP, NARROW_LEAVE, RECIPES["surface"].nuisance_weight,
)  # fmt: skip
"""Advice that a store keeps is given again while these are the same."""


@dataclass(frozen=True)
class Advice:
    """What to do with a space of embeddings.

    Attributes:
        decision: "leave", "mix", "flow" or "too little text".
        recipe: the recipe to fit, or None.
        reason: one or two sentences, for people.
        measures: what was measured on the raw embeddings and the text.
    """

    decision: str
    recipe: str | None
    reason: str
    measures: dict[str, float]

    def __str__(self) -> str:
        return f"{self.decision}: {self.reason}"


def advise(model: SentenceTransformer, sentences: Iterable[str], *, seed: int = 0, batch_size: int = 32) -> Advice:
    """Measure the model's raw embeddings of a sample of the sentences, and say whether to fit a map on them.

    It looks at how well the space tells an edited sentence from another (:func:`sbert_flow.measures.view_separation`),
    and how much better it does behind the surface map, and takes no labels. About 2,500 short texts are encoded. The
    bounds come from the spaces of docs/should-i-use-it.md.

    Args:
        model: a SentenceTransformer; if it has a map of ours, what comes before it is judged.
        sentences: text of the domain of use; duplicates count once.
        seed: of the sample and of the edits.
        batch_size: of the encoder.

    Raises:
        ValueError: no sentences, items that are not strings, embeddings that are all alike.
    """
    listed = list(iterate_sentences(sentences))
    distinct = check_sentences(listed, least=1)
    drawn = sample_rows(len(distinct), SAMPLE, torch.Generator().manual_seed(seed)).sort().values
    sample = [distinct[index] for index in drawn.tolist()]
    random.Random(seed).shuffle(sample)  # as _kept_advice does: the same sentences are edited
    advice = advise_sample(encoder_of(model), sample, len(distinct), seed=seed, batch_size=batch_size)
    return replace(advice, measures={**advice.measures, "duplicates": len(listed) - len(distinct)})


def advise_sample(
    encoder: SentenceTransformer, sample: list[str], sentences: int, *, seed: int = 0, batch_size: int = 32
) -> Advice:
    """The advice of :func:`advise` from distinct sentences in random order, drawn from a text of ``sentences``."""
    if sentences < LEAST_TEXT:
        return Advice(
            "too little text",
            None,
            f"there are {sentences} different sentences; advice needs {LEAST_TEXT}, 300 give most of the gain.",
            {"sentences": sentences},
        )
    try:
        chosen, views = viewed(sample, None, seed, count=VIEWED)
    except ValueError as error:
        return Advice("too little text", None, str(error), {"sentences": sentences})
    sample = list(dict.fromkeys([*chosen, *sample]))  # those that were edited come first
    text = {"sentences": sentences, **variety(chosen, sample)}
    overlap = text["word_overlap"]
    if overlap > MOST_OVERLAP:
        return Advice(
            "too little text",
            None,
            f"two random sentences share {overlap:.0%} of their words, so that an edited one cannot be told from "
            f"another: near-duplicates, or a handful of words. {MOST_OVERLAP:.0%} are the most; give other text.",
            text,
        )
    texts = list(dict.fromkeys([*sample, *(text for view in views.values() for text in view)]))
    encoded = encoder.encode(texts, batch_size=batch_size, convert_to_numpy=True, show_progress_bar=False)
    encoded = check_embeddings(encoded, min_rows=2).numpy()
    place = {text: index for index, text in enumerate(texts)}

    def rows(block: list[str]) -> np.ndarray:
        return encoded[[place[text] for text in block]]

    measures = measure(rows(sample), {name: rows(block) for name, block in views.items()})
    return decide({**measures, **text, "truncated": _truncated(encoder, sample)})


def advise_store(store: EmbeddingStore, encoder: SentenceTransformer, seed: int, batch_size: int) -> Advice:
    """The advice of :func:`advise` on a store's text; kept in the store, and the same on every rank."""
    return distributed.decided_by_first(lambda: _kept_advice(store, encoder, seed, batch_size))


def _kept_advice(store: EmbeddingStore, encoder: SentenceTransformer, seed: int, batch_size: int) -> Advice:
    key = hashlib.sha256(json.dumps([encoder_fingerprint(encoder), seed, RULE]).encode()).hexdigest()[:16]
    path = store.folder / f"advice-{key}.json"
    if path.is_file():
        return Advice(**json.loads(path.read_text("utf-8")))
    sample = store.at(store.sample(SAMPLE, seed))
    random.Random(seed).shuffle(sample)  # it comes in the text's order
    advice = advise_sample(encoder, sample, len(store), seed=seed, batch_size=batch_size)
    write_json(path, asdict(advice))
    return advice


def measure(embeddings: np.ndarray, views: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The measures behind the advice.

    Args:
        embeddings: of the sample, shape (n, d); the first k are of the sentences that were edited.
        views: for each edit, embeddings of their views, shape (k, d).
    """
    seen = moments(embeddings)
    originals, center = embeddings[: len(next(iter(views.values())))], embeddings.mean(axis=0)
    separation = view_separation(originals, views)
    centred = view_separation(originals - center, {name: view - center for name, view in views.items()})
    mapped = mapped_separation(embeddings, views)
    nuisance = nuisance_moment(torch.from_numpy(originals), {k: torch.from_numpy(v) for k, v in views.items()})
    return {
        "view_separation": separation,
        "mapped_separation": mapped,
        "room": mapped / max(separation, LEAST_SEPARATION),
        "centred_room": mapped / max(centred, LEAST_SEPARATION),
        "participation_ratio": population_participation_ratio(embeddings),
        "mean_cosine": mean_cosine(embeddings),
        "iso_score": iso_score(embeddings),
        "effective_rank": effective_rank(embeddings),
        "nuisance_share": float(nuisance.trace() / seen.covariance.trace()),
        "dead_dimensions": int((~live_dimensions(seen.std)).sum()),
        "dimensions": embeddings.shape[1],
    }


def decide(measures: dict[str, float]) -> Advice:
    """The rule, from "room", "centred_room", "participation_ratio", "sentences", "word_overlap" and "concentration".

    The room is how many times the surface map raises the view separation. Below 1.7 leave the space alone. Below 2.1,
    or where the map adds less than 1.9 times to what centring alone gives and many directions share the variance
    (participation ratio above 60), mix both spaces. Otherwise replace it; the flow behind the surface map is for 2,000
    sentences or more, of which it learns less by heart, on topics enough (concentration up to .0025): where there are
    few, it evens out what the text is about. Text of a narrow domain, in which two sentences share a tenth of their
    words, teaches a map less: there leave the space alone below 2.4, and otherwise mix.
    """
    room, centred, ratio = measures["room"], measures["centred_room"], measures["participation_ratio"]
    overlap = measures.get("word_overlap", 0.0)
    separation, mapped = measures["view_separation"], measures["mapped_separation"]
    start = (
        f"an edited sentence lies {separation:.1f} standard deviations above random pairs, and {mapped:.1f} behind "
        "the surface map"
    )
    if mapped < LEAST_SEPARATION:
        reason = f"{start}: neither tells it from another sentence. Look at the encoder and its pooling."
        return Advice(LEAVE, None, reason, measures)
    if separation >= LEAST_SEPARATION:
        start += f", {room:.2f} times as many"
    if overlap > NARROW_OVERLAP:
        start += f"; the text is narrow (two sentences share {overlap:.0%} of their words)"
        if room < NARROW_LEAVE:
            reason = f"{start}, and below {NARROW_LEAVE:g} times maps lost there. The encoder is better as it is."
            return Advice(LEAVE, None, reason, measures)
        return Advice("mix", "mix", f"{start}, where 'mix' gained and replacing lost.", measures)
    if room < LEAVE_BELOW:
        reason = f"{start}. Below {LEAVE_BELOW:g} times maps lost. The encoder is good as it is."
        return Advice(LEAVE, None, reason, measures)
    if room < MIX_BELOW:
        reason = f"{start}. Between {LEAVE_BELOW:g} and {MIX_BELOW:g} times 'mix' gained up to 2 points."
        return Advice("mix", "mix", reason, measures)
    if centred < MIX_CENTRED and ratio > MIX_RATIO:
        reason = (
            f"{start}, but only {centred:.2f} times as many as centring alone gives, and {ratio:.0f} directions share "
            "the variance: there 'mix' gained 2 to 5 points, and more than replacing."
        )
        return Advice("mix", "mix", reason, measures)
    concentration = measures.get("concentration", 0.0)
    few, concentrated = measures["sentences"] < FLOW_TEXT, concentration > FLOW_CONCENTRATION
    recipe = "surface" if few or concentrated else "surface-flow"
    reason = (
        f"{start}; there maps that replace the embedding gained 12 points in the median, on average of seven STS "
        f"tasks. Fit recipe {recipe!r} on text of the domain of use"
    )
    if concentrated:
        reason += f": the text keeps to few topics (concentration {concentration:.4f}), where a flow lost."
    else:
        reason += f" (from {FLOW_TEXT:,} sentences on 'surface-flow')." if few else "."
    return Advice("flow", recipe, reason, measures)


def _truncated(encoder: SentenceTransformer, sentences: list[str]) -> int:
    """How many of the sentences are longer than the encoder reads."""
    limit, tokenizer = encoder.max_seq_length, getattr(encoder, "tokenizer", None)
    if limit is None or not callable(tokenizer):
        return 0
    lengths: Any = tokenizer(sentences, truncation=False, verbose=False)["input_ids"]
    return sum(len(ids) > limit for ids in lengths)
