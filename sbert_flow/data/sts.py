"""Readers of sentence pairs with human similarity scores."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from sbert_flow.data.text import jsonl_rows

COLUMNS = ("sentence1", "sentence2", "score")

STS_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICK-R")
"""The seven English tasks that papers average over."""

SICK_FULL = "SICK-R-full"
"""SICK-R's train, validation and test pairs together, 9,927: what MTEB scores under the name SICK-R."""


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


def read_pairs(paths: Path | Traversable | Iterable[Path], name: str) -> SentencePairs:
    """Read JSON Lines with ``sentence1``, ``sentence2``, ``score`` and perhaps ``subset``, of one file or several.

    Raises:
        ValueError: a line is not of that form, a score is not a finite number, or all scores are equal.
    """
    return pairs_from_rows(_json_lines([paths] if isinstance(paths, Traversable) else paths), name)


def _json_lines(paths: Iterable[Path | Traversable]) -> Iterator[tuple[str, Any]]:
    return ((f"{path}, line {number}", row) for path in paths for number, row in jsonl_rows(path))


def pairs_from_rows(rows: Iterable[tuple[str, Any]], name: str) -> SentencePairs:
    """Collect rows with ``sentence1``, ``sentence2``, ``score`` and perhaps ``subset``.

    Args:
        rows: the place of each row, for messages, and the row.
        name: the task.

    Raises:
        ValueError: a row is not of that form, a score is not a finite number, or all scores are equal.
    """
    pairs = SentencePairs(name, [], [], [])
    for place, row in rows:
        missing = [column for column in COLUMNS if column not in row]
        if missing:
            raise ValueError(f"{place}: needs {', '.join(COLUMNS)}, but lacks {', '.join(missing)}.")
        first, second, score = (row[column] for column in COLUMNS)
        if not isinstance(first, str) or not isinstance(second, str):
            raise ValueError(f"{place}: sentence1 and sentence2 must be strings.")
        try:
            (first + second).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{place}: a sentence holds a surrogate, half of a character. Mend the text.") from error
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score):
            raise ValueError(f"{place}: score must be a number, but is {score!r}.")
        pairs.sentences1.append(first)
        pairs.sentences2.append(second)
        pairs.scores.append(float(score))
        if "subset" in row:
            pairs.subsets.append(str(row["subset"]))
    different = len(set(pairs.scores))
    if different < 2:
        raise ValueError(f"{name}: a rank correlation needs at least two different scores, but it has {different}.")
    if pairs.subsets and len(pairs.subsets) != len(pairs):
        without = len(pairs) - len(pairs.subsets)
        raise ValueError(f"{name}: {without} of {len(pairs)} pairs have no subset, the others do.")
    return pairs


def read_sts(folder: str | Path, tasks: Iterable[str] | None = None, split: str = "test") -> list[SentencePairs]:
    """Read tasks from ``folder/<TASK>/<split>.jsonl``.

    Args:
        folder: the folder of the tasks.
        tasks: their names, of the seven or ``SICK-R-full``; None takes those of the seven that are there.
        split: which file of each; ``SICK-R-full`` takes all three of SICK-R.

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
        if task not in (*STS_TASKS, SICK_FULL):
            raise ValueError(f"task must be one of {', '.join((*STS_TASKS, SICK_FULL))}, but got {task!r}.")
        paths = [folder / task / f"{split}.jsonl"]
        if task == SICK_FULL:
            paths = [folder / "SICK-R" / f"{part}.jsonl" for part in ("train", "validation", "test")]
        for path in paths:
            if not path.is_file():
                there = ", ".join(sorted(p.stem for p in path.parent.glob("*.jsonl"))) or "none"
                raise FileNotFoundError(f"no {path}. Splits of {path.parent.name} that are there: {there}.")
        read.append(read_pairs(paths, task))
    return read


def sample_pairs() -> SentencePairs:
    """The graded pairs that ship with the package, for demonstrations."""
    return read_pairs(files("sbert_flow.data") / "samples" / "pairs.jsonl", "sample")


def sample_sentences() -> list[str]:
    """The plain sentences that ship with the package, for demonstrations."""
    return (files("sbert_flow.data") / "samples" / "sentences.txt").read_text("utf-8").splitlines()
