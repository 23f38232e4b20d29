"""BERT-flow's other measurements: the space before and after the map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import pairwise_cos_sim

from sbert_flow.data import SentencePairs
from sbert_flow.evaluation.lexical import EntailmentPairs, auc, edit_distance
from sbert_flow.evaluation.words import FrequencyBin, count_tokens, frequency_bins, word_embeddings
from sbert_flow.measures import effective_rank, eigenvalue_spectrum, iso_score, mean_cosine, participation_ratio
from sbert_flow.modules.map_layer import MapLayer
from sbert_flow.modules.pipeline import encoder_before_map, split_at_map

BATCH = 4096


@dataclass(frozen=True)
class SpaceReport:
    """One space.

    Attributes:
        mean_cosine, iso_score, effective_rank, participation_ratio: of the sentences' embeddings.
        human: Spearman correlation of the pairs' cosine with their human scores.
        edit: Spearman correlation of the pairs' cosine with their edit distance: the further below zero, the more the
            space goes by surface.
        qnli_auc: AUC of question-answer similarity; None where no such pairs were given.
        similarities: cosines of the pairs.
        spectrum: eigenvalues of the covariance as shares of their sum, largest first.
    """

    mean_cosine: float
    iso_score: float
    effective_rank: float
    participation_ratio: float
    human: float
    edit: float
    qnli_auc: float | None
    similarities: np.ndarray = field(repr=False)
    spectrum: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class Analysis:
    """What :func:`analyze` found.

    Attributes:
        spaces: "before" and "after" the map; only "embeddings" for a model without one.
        human_edit: Spearman correlation of the human scores with the edit distance, for scale.
        pairs, sentences, questions: how many went in.
        tasks: their names.
        words: bins of word frequency, None where the encoder has no word embeddings.
        frequency_from: what the words' frequency was taken from.
        edit_distances: of the pairs.
    """

    spaces: dict[str, SpaceReport]
    human_edit: float
    pairs: int
    sentences: int
    questions: int
    tasks: list[str]
    words: list[FrequencyBin] | None
    frequency_from: str
    edit_distances: np.ndarray = field(repr=False)


def analyze(
    model: SentenceTransformer,
    tasks: Sequence[SentencePairs],
    *,
    entailment: EntailmentPairs | None = None,
    text: Sequence[str] | None = None,
    batch_size: int = 32,
    show_progress_bar: bool = False,
) -> Analysis:
    """Measure a model's space before and after its map; every sentence is encoded once.

    Args:
        model: with a FlowLayer or WhiteningLayer, or without.
        tasks: pairs with human scores.
        entailment: question-answer pairs, see :func:`sbert_flow.evaluation.lexical.read_entailment`.
        text: sentences that word frequencies are counted in; None takes the order of the vocabulary.
        batch_size: of the encoder.
        show_progress_bar: of the encoder.

    Raises:
        ValueError: no pairs, or a space in which a correlation is undefined because all cosines are equal.
    """
    if not tasks:
        raise ValueError("at least one task with human scores is needed.")
    first = [sentence for pairs in tasks for sentence in pairs.sentences1]
    second = [sentence for pairs in tasks for sentence in pairs.sentences2]
    scores = np.array([score for pairs in tasks for score in pairs.scores])
    edits = np.array([edit_distance(a, b) for a, b in zip(first, second, strict=True)])
    sentences = list(dict.fromkeys([*first, *second]))
    asked = [] if entailment is None else [*entailment.questions, *entailment.sentences]
    everything = list(dict.fromkeys([*sentences, *asked]))
    row = {sentence: number for number, sentence in enumerate(everything)}
    spaces = {}
    for name, embeddings in _spaces(model, everything, batch_size, show_progress_bar).items():
        own = embeddings[: len(sentences)]
        cosines = _cosines(embeddings, row, first, second)
        answers = None
        if entailment is not None:
            answers = auc(_cosines(embeddings, row, entailment.questions, entailment.sentences), entailment.entailed)
        spectrum = eigenvalue_spectrum(own)
        spaces[name] = SpaceReport(
            mean_cosine(own), iso_score(own), effective_rank(own), participation_ratio(own),
            _spearman(cosines, scores, name), _spearman(cosines, edits, name), answers, cosines,
            spectrum / spectrum.sum(),
        )  # fmt: skip
    words, source = _words(model, text)
    return Analysis(
        spaces=spaces, human_edit=_spearman(scores, edits, "the human scores"), pairs=len(scores),
        sentences=len(sentences), questions=len(entailment.entailed) if entailment else 0,
        tasks=[pairs.name for pairs in tasks], words=words, frequency_from=source, edit_distances=edits,
    )  # fmt: skip


def _spaces(model: SentenceTransformer, sentences: list[str], batch_size: int, bar: bool) -> dict[str, np.ndarray]:
    options: dict[str, Any] = {"batch_size": batch_size, "show_progress_bar": bar}
    if not any(isinstance(module, MapLayer) for module in model):
        return {"embeddings": model.encode(sentences, **options)}
    before = encoder_before_map(model).encode(sentences, convert_to_tensor=True, **options)
    rest = list(model)[len(split_at_map(model)[0]) :]
    after = []
    with torch.inference_mode():
        for part in before.split(BATCH):
            features = {"sentence_embedding": part}
            for module in rest:
                features = module.eval()(features)
            after.append(features["sentence_embedding"].float().cpu())
    return {"before": before.float().cpu().numpy(), "after": torch.cat(after).numpy()}


def _cosines(embeddings: np.ndarray, row: dict[str, int], first: list[str], second: list[str]) -> np.ndarray:
    sides = (embeddings[[row[sentence] for sentence in side]] for side in (first, second))
    return np.asarray(pairwise_cos_sim(*sides))


def _spearman(x: np.ndarray, y: np.ndarray, name: str) -> float:
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        raise ValueError(f"all values of {name} are equal, or all pairs at the same edit distance: no correlation.")
    value = float(spearmanr(x, y)[0])
    if np.isnan(value):
        raise ValueError(f"{name} holds NaN, so it has no correlation. Check that the model's embeddings are finite.")
    return value


def _words(model: SentenceTransformer, text: Sequence[str] | None) -> tuple[list[FrequencyBin] | None, str]:
    try:
        embeddings, tokens = word_embeddings(model)
    except ValueError:
        return None, ""
    if text is None:
        return frequency_bins(embeddings, tokens), "the order of the vocabulary"
    return frequency_bins(embeddings, tokens, count_tokens(model, text)), f"{len(text):,} sentences of the given text"
