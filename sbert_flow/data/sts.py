"""Readers of sentence pairs with human similarity scores."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from sbert_flow.data.text import jsonl_rows

STS_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICK-R")
"""The seven English tasks that papers average over."""


@dataclass(frozen=True)
class SentencePairs:
    """Sentence pairs of one task.

    Attributes:
        name: the task.
        sentences1, sentences2: the two sides.
        scores: human similarity, usually 0 to 5.
        subsets: the subset of each pair; empty where unknown.
    """

    name: str
    sentences1: list[str]
    sentences2: list[str]
    scores: list[float]
    subsets: list[str] = field(default_factory=list)

    @property
    def sentences(self) -> list[str]:
        """The distinct sentences of both sides."""
        return list(dict.fromkeys([*self.sentences1, *self.sentences2]))

    def __len__(self) -> int:
        return len(self.scores)


def read_pairs(path: Path | Traversable, name: str) -> SentencePairs:
    """Read JSON Lines with ``sentence1``, ``sentence2``, ``score`` and perhaps ``subset``.

    Raises:
        ValueError: a line is not of that form, a score is not a finite number, or all scores are equal.
    """
    pairs = SentencePairs(name, [], [], [])
    for number, row in jsonl_rows(path):
        place = f"{path}, line {number}"
        missing = [key for key in ("sentence1", "sentence2", "score") if key not in row]
        if missing:
            raise ValueError(f"{place}: needs sentence1, sentence2 and score, but lacks {', '.join(missing)}.")
        first, second, score = row["sentence1"], row["sentence2"], row["score"]
        if not isinstance(first, str) or not isinstance(second, str):
            raise ValueError(f"{place}: sentence1 and sentence2 must be strings.")
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score):
            raise ValueError(f"{place}: score must be a number, but is {score!r}.")
        pairs.sentences1.append(first)
        pairs.sentences2.append(second)
        pairs.scores.append(float(score))
        if "subset" in row:
            pairs.subsets.append(str(row["subset"]))
    if len(set(pairs.scores)) < 2:
        raise ValueError(
            f"{path}: a rank correlation needs at least two different scores, but it has {len(set(pairs.scores))}."
        )
    return pairs


def read_sts(folder: str | Path, tasks: Iterable[str] | None = None, split: str = "test") -> list[SentencePairs]:
    """Read tasks from ``folder/<TASK>/<split>.jsonl``.

    Args:
        folder: the folder of the tasks.
        tasks: their names; None takes those of the seven that are there.
        split: which file of each.

    Raises:
        FileNotFoundError: the folder, a task or its split is missing.
        ValueError: unknown task, or a bad line.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}. It should hold <TASK>/{split}.jsonl for {', '.join(STS_TASKS)}.")
    if tasks is None:
        tasks = [task for task in STS_TASKS if (folder / task / f"{split}.jsonl").is_file()]
        missing = [task for task in STS_TASKS if task not in tasks]
        if tasks and missing:
            warnings.warn(
                f"{folder} has no {split} split of {', '.join(missing)}: averages are over {len(tasks)} of the "
                f"{len(STS_TASKS)} tasks.",
                stacklevel=2,
            )
        if not tasks:
            raise FileNotFoundError(f"{folder} holds no <TASK>/{split}.jsonl of {', '.join(STS_TASKS)}.")
    read = []
    for task in tasks:
        if task not in STS_TASKS:
            raise ValueError(f"task must be one of {', '.join(STS_TASKS)}, but got {task!r}.")
        path = folder / task / f"{split}.jsonl"
        if not path.is_file():
            there = ", ".join(sorted(p.stem for p in path.parent.glob("*.jsonl"))) or "none"
            raise FileNotFoundError(f"no {path}. Splits of {task} that are there: {there}.")
        read.append(read_pairs(path, task))
    return read


def sample_pairs() -> SentencePairs:
    """The graded pairs that ship with the package, for demonstrations."""
    return read_pairs(files("sbert_flow.data") / "samples" / "pairs.jsonl", "sample")


def sample_sentences() -> list[str]:
    """The plain sentences that ship with the package, for demonstrations."""
    return (files("sbert_flow.data") / "samples" / "sentences.txt").read_text("utf-8").splitlines()
