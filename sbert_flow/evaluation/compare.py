"""Raw embeddings, whitening and every recipe, on every pooling of an encoder, from one pass of it."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.util import pairwise_cos_sim

from sbert_flow.data import SentencePairs
from sbert_flow.evaluation.sts import STSSuite, TaskScore
from sbert_flow.fitting import fit_flow, fit_whitening, measure_shift, nuisance_moment
from sbert_flow.fitting.adapt import Shift
from sbert_flow.fitting.progress import Progress
from sbert_flow.fitting.store import EmbeddingStore
from sbert_flow.fitting.surface import viewed
from sbert_flow.measures import effective_rank, eigenvalue_spectrum, mean_cosine, participation_ratio
from sbert_flow.modules import FlowLayer
from sbert_flow.modules.build import build_model, load_encoder
from sbert_flow.modules.map_layer import MapLayer
from sbert_flow.modules.pipeline import encoder_before_map
from sbert_flow.modules.pooling import pooling_modules
from sbert_flow.modules.recipes import RECIPES
from sbert_flow.modules.validation import check_sentences

RAW, WHITENING, WHITENING_K = "raw", "whitening", "whitening-k"
METHODS = (RAW, WHITENING, WHITENING_K, *RECIPES)
POOLINGS = ("mean", "cls", "first-last", "first-last-embedding", "last-two")
HISTOGRAM_EDGES = np.linspace(-1, 1, 81)


@dataclass(frozen=True)
class Row:
    """One pooling under one method.

    Attributes:
        pooling, method: which.
        scores: of each task.
        average: Spearman correlation, mean of the tasks, under the comparison's aggregation.
        mean_cosine, effective_rank, participation_ratio: of the tasks' sentences.
        fit_seconds: time of fitting the map, encoding left out.
        shift: of the tasks' sentences from the text that the flow was fitted on; None where that was their own, or
            without a flow.
        histogram: shares of the tasks' pairs whose cosine lies between :data:`HISTOGRAM_EDGES`.
        spectrum: eigenvalues of the covariance of the tasks' sentences, as shares of their sum, largest first.
    """

    pooling: str
    method: str
    scores: dict[str, TaskScore]
    average: float
    mean_cosine: float
    effective_rank: float
    participation_ratio: float
    fit_seconds: float
    shift: Shift | None
    histogram: np.ndarray = field(repr=False)
    spectrum: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` found.

    Attributes:
        encoder: its name.
        fitted_on: what the maps were fitted on, in words.
        fit_sentences: number of distinct sentences that they were fitted on.
        aggregation: of the averages.
        k: directions that "whitening-k" keeps.
        seed: of the fits.
        encoded: distinct sentences that the encoder saw, in its one pass.
        encode_seconds: time of that pass.
        rows: pooling by pooling, method by method.
    """

    encoder: str
    fitted_on: str
    fit_sentences: int
    aggregation: str
    k: int
    seed: int
    encoded: int
    encode_seconds: float
    rows: list[Row]

    def row(self, pooling: str, method: str) -> Row:
        """The row of a pooling and a method."""
        return next(row for row in self.rows if (row.pooling, row.method) == (pooling, method))


@dataclass(frozen=True)
class _Fit:
    """Sentences that one map is fitted on, the tasks that it serves, and the edits of its text."""

    tasks: list[SentencePairs]
    sentences: list[str]
    edited: list[str]
    views: dict[str, list[str]]


def compare(
    encoder: str | Path | SentenceTransformer,
    tasks: Sequence[SentencePairs],
    text: Sequence[str] | None = None,
    *,
    poolings: Sequence[str] = POOLINGS,
    methods: Sequence[str] = METHODS,
    aggregation: str = "all",
    each_task: bool = False,
    fitted_on: str | None = None,
    k: int | None = None,
    seed: int = 0,
    batch_size: int = 32,
    store: str | Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Score raw embeddings, whitening and flows on every pooling; the encoder sees each sentence once.

    Args:
        encoder: hub id, folder or model; its own pooling is left out.
        tasks: the tasks, see :func:`sbert_flow.data.read_sts`.
        text: unlabelled sentences to fit the maps on; None takes those of the tasks, without their scores.
        poolings: names as in :func:`sbert_flow.build_model`.
        methods: of :data:`METHODS`.
        aggregation: "all", "mean" or "wmean", of the averages.
        each_task: with ``text`` None: fit a map for each task, on its own sentences, as BERT-flow's paper does
            ("target"); otherwise one map serves all tasks.
        fitted_on: what the report calls the text.
        k: directions that "whitening-k" keeps; None takes a third of the width.
        seed: of the fits and edits.
        batch_size: of the encoder.
        store: folder for the embeddings, kept for the next run; None takes a temporary one.
        progress: how it is shown; None is quiet.

    Warns where the tasks' sentences lie far from the ``text``, see :func:`sbert_flow.fitting.measure_shift`.

    Raises:
        ValueError: unknown pooling, method or aggregation, a layer that the encoder does not have, too little text.
        OSError: the encoder cannot be loaded, or the disk is full.
    """
    for method in methods:
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, but got {method!r}.")
    for kind, names in (("poolings", poolings), ("methods", methods)):
        if not names or len(set(names)) < len(names):
            raise ValueError(f"{kind} must be different names, at least one, but got {', '.join(names) or 'none'}.")
    if text is not None and each_task:
        raise ValueError("each_task fits on each task's own sentences: leave the text out.")
    suite = STSSuite(tasks, aggregation)
    text = None if text is None else check_sentences(text)
    name = "encoder"
    if isinstance(encoder, (str, Path)):
        name = Path(encoder).name if Path(encoder).is_dir() else str(encoder)  # tables are shown to others
    progress = progress or Progress("quiet")
    model = load_encoder(str(encoder)) if isinstance(encoder, (str, Path)) else encoder
    embed = _embedder(model, poolings, batch_size)
    edits_needed = any(method in RECIPES and RECIPES[method].front for method in methods)
    fits = list(_fits(suite, text, each_task, edits_needed, seed))
    everything = dict.fromkeys(suite.sentences)
    for fit in fits:
        for part in (fit.sentences, fit.edited, *fit.views.values()):
            everything.update(dict.fromkeys(part))
    start = time.perf_counter()
    with _folder(store) as folder:
        opened = EmbeddingStore.open(folder, everything, progress=progress)
        sets = embed(opened)
        encode_seconds = time.perf_counter() - start
        place = {sentence: row for row, sentence in enumerate(opened.sentences())}
        rows, kept = [], 0
        with progress.stage("Fitting and scoring", len(poolings) * len(methods), "maps") as stage:
            for pooling in poolings:
                space = _Space(sets[pooling], place)
                kept = k or max(1, space.width // 3)
                for method in methods:
                    rows.append(_row(pooling, method, suite, space, fits, kept, seed, text is not None))
                    stage.advance(1)
    _warn_of_shifts(rows)
    return Comparison(
        encoder=name,
        fitted_on=fitted_on or ("the given text" if text is not None else "the tasks' own sentences"),
        fit_sentences=len({sentence for fit in fits for sentence in fit.sentences}),
        aggregation=aggregation, k=kept, seed=seed, encoded=len(everything), encode_seconds=encode_seconds, rows=rows,
    )  # fmt: skip


class _Space:
    """Embeddings of one pooling, by sentence."""

    def __init__(self, embeddings: Any, place: dict[str, int]) -> None:
        self._embeddings, self._place = embeddings, place
        self.width: int = embeddings.shape[1]

    def __getitem__(self, sentences: Sequence[str]) -> torch.Tensor:
        rows = np.fromiter((self._place[sentence] for sentence in sentences), dtype=np.int64, count=len(sentences))
        return torch.from_numpy(np.array(self._embeddings[rows], dtype=np.float32))


@contextmanager
def _folder(store: str | Path | None) -> Iterator[str | Path]:
    if store is not None:
        yield store
    else:
        with tempfile.TemporaryDirectory(prefix="sbert-flow-") as folder:
            yield folder


def _embedder(
    model: SentenceTransformer, poolings: Sequence[str], batch_size: int
) -> Callable[[EmbeddingStore], Mapping[str, Any]]:
    transformer = next(model.children())
    if isinstance(transformer, Transformer):
        modules = {name: pooling_modules(transformer, name) for name in poolings}
        device = str(model.device)
        return lambda store: store.embed_poolings(transformer, modules, batch_size=batch_size, device=device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The encoder's own")
        [alone] = [encoder_before_map(build_model(model, pooling)) for pooling in poolings]
    return lambda store: {poolings[0]: store.embed(alone, batch_size=batch_size)}


def _fits(
    suite: STSSuite, text: Sequence[str] | None, each_task: bool, edits_needed: bool, seed: int
) -> Iterator[_Fit]:
    for served in [[pairs] for pairs in suite.tasks] if each_task else [suite.tasks]:
        own = list(dict.fromkeys(sentence for pairs in served for sentence in pairs.sentences))
        sentences = own if text is None else list(text)
        edited, views = viewed(sentences, None, seed) if edits_needed else ([], {})
        yield _Fit(served, sentences, edited, views)


def _fit(method: str, space: _Space, fit: _Fit, k: int, seed: int) -> MapLayer:
    embeddings = space[fit.sentences]
    if method in (WHITENING, WHITENING_K):
        return fit_whitening(embeddings=embeddings, k=k if method == WHITENING_K else None).layer
    nuisance = None
    if RECIPES[method].front:
        nuisance = nuisance_moment(space[fit.edited], {name: space[views] for name, views in fit.views.items()})
    return fit_flow(embeddings=embeddings, nuisance=nuisance, recipe=method, seed=seed, show_progress_bar=False).layer


def _row(
    pooling: str, method: str, suite: STSSuite, space: _Space, fits: list[_Fit], k: int, seed: int, other_text: bool
) -> Row:
    scores: dict[str, TaskScore] = {}
    shift: Shift | None = None
    outputs, cosines, seconds = [], [], 0.0
    for fit in fits:
        part = STSSuite(fit.tasks, suite.aggregation)
        sentences = part.sentences
        z = space[sentences]
        if method != RAW:
            start = time.perf_counter()
            layer = _fit(method, space, fit, k, seed)
            seconds += time.perf_counter() - start
            if other_text and isinstance(layer, FlowLayer):
                shift = measure_shift(layer, z)
            z = layer.outputs(z)
        array = z.numpy()
        embeddings = dict(zip(sentences, array, strict=True))
        scores |= part.score_embeddings(embeddings)
        outputs.append(array)
        for pairs in fit.tasks:
            sides = (np.stack([embeddings[s] for s in side]) for side in (pairs.sentences1, pairs.sentences2))
            cosines.append(np.asarray(pairwise_cos_sim(*sides)))
    together = np.concatenate(outputs)
    spectrum = eigenvalue_spectrum(together)
    counts = np.histogram(np.concatenate(cosines), HISTOGRAM_EDGES)[0]
    return Row(
        pooling, method, scores, suite.average(scores), mean_cosine(together), effective_rank(together),
        participation_ratio(together), seconds, shift, counts / counts.sum(), spectrum / spectrum.sum(),
    )  # fmt: skip


def _warn_of_shifts(rows: list[Row]) -> None:
    """One warning for all flows that the tasks' sentences lie far from."""
    shifted = [
        f"{row.method} on {row.pooling} {row.shift.bits_per_dimension:.2f}"
        for row in rows
        if row.shift is not None and row.shift.large
    ]
    if shifted:
        warnings.warn(
            "the tasks' sentences take more bits per dimension than the text that these flows were fitted on: "
            f"{', '.join(shifted)}. It is another domain, on which a map can fall below the raw encoder. Fit on text "
            "of the domain, or adapt the fitted model: sbert-flow adapt.",
            stacklevel=3,
        )
