"""Semantic textual similarity, scored with the library's evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.util import pairwise_cos_sim

from sbert_flow.data import SICK_FULL, SentencePairs

AGGREGATIONS = ("all", "mean", "wmean")
"""One correlation over all pairs of a task; mean over its subsets; mean weighted by their numbers of pairs."""

WHOLE_TASKS = ("STSBenchmark", "SICK-R", SICK_FULL)
"""Tasks whose one correlation is over all pairs in every paper, whatever it does with the subsets of STS12 to 16."""


@dataclass(frozen=True)
class TaskScore:
    """Correlations, -1 to 1, of cosine similarity with the human scores of one task.

    Attributes:
        pairs: number of pairs.
        spearman, pearson: over all pairs ("all").
        mean, wmean: mean of the subsets' Spearman correlations, plain and weighted by their numbers of pairs; None
            where the subsets are not known.
        interval: 95 % bootstrap interval of ``spearman``, where asked for.
    """

    pairs: int
    spearman: float
    pearson: float
    mean: float | None = None
    wmean: float | None = None
    interval: tuple[float, float] | None = None

    def aggregated(self, aggregation: str) -> float:
        """The Spearman correlation under "all", "mean" or "wmean".

        Raises:
            ValueError: another aggregation, or one over subsets that are not known.
        """
        if aggregation not in AGGREGATIONS:
            raise ValueError(f"aggregation must be one of {', '.join(AGGREGATIONS)}, but got {aggregation!r}.")
        value = {"all": self.spearman, "mean": self.mean, "wmean": self.wmean}[aggregation]
        if value is None:
            raise ValueError(
                f"aggregation {aggregation!r} needs the subset of each pair, which these data do not give (the hub's "
                "never do). Use 'all', or files with a \"subset\" in each line."
            )
        return value


class EncodedOnceEvaluator(EmbeddingSimilarityEvaluator):
    """EmbeddingSimilarityEvaluator over embeddings that are already there.

    Args:
        pairs: the task.
        embeddings: embedding of each sentence of the task.
    """

    def __init__(self, pairs: SentencePairs, embeddings: dict[str, np.ndarray]) -> None:
        super().__init__(
            pairs.sentences1, pairs.sentences2, pairs.scores, main_similarity="cosine",
            similarity_fn_names=["cosine"], name=pairs.name,
        )  # fmt: skip
        self.embeddings = embeddings

    def embed_inputs(self, model: SentenceTransformer | None, sentences: Any, **kwargs: Any) -> np.ndarray:
        return np.stack([self.embeddings[sentence] for sentence in sentences])

    def store_metrics_in_model_card_data(
        self, model: Any, metrics: dict[str, Any], epoch: int = 0, step: int = 0
    ) -> None:
        if model is not None:
            super().store_metrics_in_model_card_data(model, metrics, epoch, step)


def encode_once(
    model: SentenceTransformer, tasks: Sequence[SentencePairs], batch_size: int = 32, show_progress_bar: bool = False
) -> dict[str, np.ndarray]:
    """Encode each distinct sentence of the tasks once."""
    sentences = list(dict.fromkeys(sentence for pairs in tasks for sentence in pairs.sentences))
    encoded = model.encode(sentences, batch_size=batch_size, show_progress_bar=show_progress_bar)
    return dict(zip(sentences, encoded.astype(np.float32, copy=False), strict=True))


def score_pairs(
    pairs: SentencePairs, embeddings: dict[str, np.ndarray], model: SentenceTransformer | None = None
) -> float:
    """Spearman correlation, -1 to 1, of cosine similarity with the scores; the model's card, if given, notes it.

    Raises:
        ValueError: it is undefined because all pairs have the same similarity.
    """
    return _scores(EncodedOnceEvaluator(pairs, embeddings)(model), len(pairs))[1]  # type: ignore[arg-type]


def _scores(metrics: dict[str, float], pairs: int) -> tuple[float, float]:
    """Pearson and Spearman correlation of one evaluator."""
    [name] = {key.rpartition("_spearman")[0] for key in metrics if "_spearman" in key}
    pearson, spearman = (float(metrics[f"{name}_{kind}_cosine"]) for kind in ("pearson", "spearman"))
    if np.isnan(spearman) or np.isnan(pearson):
        raise ValueError(
            f"all {pairs} pairs of {name} have the same similarity or score, or NaN: their correlation is undefined. "
            "Check that the model was fitted and that its embeddings are finite."
        )
    return pearson, spearman


def subset_pairs(pairs: SentencePairs) -> list[SentencePairs]:
    """The subsets of a task as tasks of their own, named ``<task>.<subset>``; none where they are not known."""
    rows: dict[str, list[int]] = {}
    for index, subset in enumerate(pairs.subsets):
        rows.setdefault(subset, []).append(index)
    return [
        SentencePairs(f"{pairs.name}.{subset}", *([column[i] for i in indices] for column in columns))  # type: ignore[arg-type]
        for columns in [(pairs.sentences1, pairs.sentences2, pairs.scores)]
        for subset, indices in rows.items()
    ]


def bootstrap_interval(
    pairs: SentencePairs, embeddings: dict[str, np.ndarray], resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the Spearman correlation over all pairs: pairs are drawn with replacement.

    It tells how much the score would vary with other pairs of the same kind, not with another fit.
    """
    first, second = (np.stack([embeddings[s] for s in side]) for side in (pairs.sentences1, pairs.sentences2))
    similarities = np.asarray(pairwise_cos_sim(first, second))
    scores = np.asarray(pairs.scores)
    rng = np.random.default_rng(seed)
    values = []
    for _ in range(resamples):
        rows = rng.integers(len(scores), size=len(scores))
        values.append(np.corrcoef(rankdata(similarities[rows]), rankdata(scores[rows]))[0, 1])
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return float(low), float(high)


class STSSuite(BaseEvaluator):
    """Several STS tasks as one evaluator: each distinct sentence is encoded once.

    Use it as ``evaluator`` in ``model.fit`` and ``SentenceTransformerTrainer`` (``metric_for_best_model=
    "eval_sts_average"``), or call :meth:`score`. Each task goes into the model's card.

    Args:
        tasks: the tasks, see :func:`sbert_flow.data.read_sts` and :func:`sbert_flow.data.read_hub_sts`.
        aggregation: "all", "mean" or "wmean", of the values that the average is over.
        batch_size: of the encoder.
        show_progress_bar: of the encoder.

    Raises:
        ValueError: no task, two of the same name, an unknown aggregation, or one over subsets that are not known.
    """

    def __init__(
        self,
        tasks: Sequence[SentencePairs],
        aggregation: str = "all",
        batch_size: int = 32,
        show_progress_bar: bool = False,
    ) -> None:
        super().__init__()
        names = [pairs.name for pairs in tasks]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"the tasks need different names, and at least one task, but got {names}.")
        if aggregation not in AGGREGATIONS:
            raise ValueError(f"aggregation must be one of {', '.join(AGGREGATIONS)}, but got {aggregation!r}.")
        for pairs in tasks:
            if aggregation != "all" and pairs.name not in WHOLE_TASKS and not pairs.subsets:
                raise ValueError(
                    f"aggregation {aggregation!r} needs the subset of each pair, which {pairs.name} does not give "
                    "(the hub's data never do). Use 'all', or files with a \"subset\" in each line."
                )
        self.tasks = list(tasks)
        self.aggregation = aggregation
        self.batch_size = batch_size
        self.show_progress_bar = show_progress_bar
        self.primary_metric = "sts_average"
        # Kept from call to call: the model's card has one entry for each evaluator.
        self._evaluators = [EncodedOnceEvaluator(pairs, {}) for pairs in self.tasks]
        self._subsets = [
            [] if pairs.name in WHOLE_TASKS else [EncodedOnceEvaluator(subset, {}) for subset in subset_pairs(pairs)]
            for pairs in self.tasks
        ]

    @property
    def sentences(self) -> list[str]:
        """The distinct sentences of all tasks."""
        return list(dict.fromkeys(sentence for pairs in self.tasks for sentence in pairs.sentences))

    def __call__(  # type: ignore[override]
        self, model: SentenceTransformer, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Score the model; return ``{"<task>_spearman_cosine", "<task>_pearson_cosine", ..., "sts_average"}``."""
        scores = self.score(model, output_path, epoch, steps)
        metrics = {f"{name}_spearman_cosine": score.aggregated(self.aggregation) for name, score in scores.items()}
        metrics |= {f"{name}_pearson_cosine": score.pearson for name, score in scores.items()}
        return {**metrics, "sts_average": self.average(scores)}

    def average(self, scores: dict[str, TaskScore]) -> float:
        """Mean of the tasks' Spearman correlations under the suite's aggregation."""
        return float(np.mean([score.aggregated(self.aggregation) for score in scores.values()]))

    def score(
        self, model: SentenceTransformer, output_path: str | None = None, epoch: int = -1, steps: int = -1,
        bootstrap: int = 0,
    ) -> dict[str, TaskScore]:  # fmt: skip
        """Encode the sentences and score every task.

        Raises:
            ValueError: a correlation is undefined because the model gives all pairs of a task the same similarity.
        """
        embeddings = encode_once(model, self.tasks, self.batch_size, self.show_progress_bar)
        return self.score_embeddings(embeddings, model, output_path, epoch, steps, bootstrap)

    def score_embeddings(
        self,
        embeddings: dict[str, np.ndarray],
        model: SentenceTransformer | None = None,
        output_path: str | None = None,
        epoch: int = -1,
        steps: int = -1,
        bootstrap: int = 0,
    ) -> dict[str, TaskScore]:
        """Score every task on embeddings that are already there.

        Args:
            embeddings: embedding of each of :attr:`sentences`.
            model: the model whose card notes the scores; None notes nothing.
            output_path: folder for the evaluators' CSV files.
            epoch, steps: for those files.
            bootstrap: resamples of the 95 % interval; 0 leaves it out.

        Raises:
            ValueError: as :meth:`score`.
        """
        scores = {}
        for pairs, whole, parts in zip(self.tasks, self._evaluators, self._subsets, strict=True):
            pearson, spearman = self._run(whole, embeddings, model, output_path, epoch, steps)
            mean = wmean = spearman if pairs.name in WHOLE_TASKS else None
            if parts:
                mean, wmean = self._over_subsets(parts, embeddings)
            interval = bootstrap_interval(pairs, embeddings, bootstrap) if bootstrap else None
            scores[pairs.name] = TaskScore(len(pairs), spearman, pearson, mean, wmean, interval)
        return scores

    def _over_subsets(
        self, parts: list[EncodedOnceEvaluator], embeddings: dict[str, np.ndarray]
    ) -> tuple[float | None, float | None]:
        try:
            values = [self._run(part, embeddings, None, None, -1, -1)[1] for part in parts]
        except ValueError:  # a subset of equal scores: it must not cost the correlation over all pairs
            if self.aggregation != "all":
                raise
            return None, None
        return float(np.mean(values)), float(np.average(values, weights=[len(part.scores) for part in parts]))

    @staticmethod
    def _run(
        evaluator: EncodedOnceEvaluator, embeddings: dict[str, np.ndarray], model: SentenceTransformer | None,
        output_path: str | None, epoch: int, steps: int,
    ) -> tuple[float, float]:  # fmt: skip
        evaluator.embeddings = embeddings
        try:
            metrics = evaluator(model, output_path, epoch, steps)  # type: ignore[arg-type]
            return _scores(metrics, len(evaluator.scores))
        finally:
            evaluator.embeddings = {}  # a suite outlives its scores; the embeddings need not


def evaluate_sts(
    model: SentenceTransformer,
    tasks: Sequence[SentencePairs],
    *,
    detail: bool = False,
    bootstrap: int = 0,
    batch_size: int = 32,
    show_progress_bar: bool = False,
) -> dict[str, Any]:
    """Spearman correlation of cosine similarity with human scores, over all pairs of each task ("all").

    Args:
        model: any SentenceTransformer.
        tasks: the tasks, see :func:`sbert_flow.data.read_sts`.
        detail: also give everything else of :class:`TaskScore`.
        bootstrap: with ``detail``: resamples of the 95 % interval; 0 leaves it out.
        batch_size: of the encoder.
        show_progress_bar: of the encoder.

    Returns:
        ``{"tasks": {name: {"pairs": int, "spearman": float}}, "average": float}``, correlations from -1 to 1.

    Raises:
        ValueError: a correlation is undefined because the model gives all pairs of a task the same similarity.
    """
    suite = STSSuite(tasks, batch_size=batch_size, show_progress_bar=show_progress_bar)
    scores = suite.score(model, bootstrap=bootstrap if detail else 0)
    keys = ("pairs", "spearman", *(("pearson", "mean", "wmean", "interval") if detail else ()))
    return {
        "tasks": {name: {key: asdict(score)[key] for key in keys} for name, score in scores.items()},
        "average": suite.average(scores),
    }
