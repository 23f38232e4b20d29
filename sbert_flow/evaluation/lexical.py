"""Similarity against edit distance (Li et al., 2020, section 5.3) and question answering by similarity (QNLI)."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

QNLI_DATASET = ("nyu-mll/glue", "qnli", "validation")
ENTAILED = {"entailment": 1, "not_entailment": 0, "1": 1, "0": 0}


def edit_distance(first: str, second: str) -> int:
    """Levenshtein distance in characters: insertions, deletions and substitutions, each at cost 1."""
    if len(first) < len(second):
        first, second = second, first
    codes = np.frombuffer(second.encode("utf-32-le"), dtype=np.uint32)
    steps = np.arange(len(codes) + 1)
    row = steps
    for number, character in enumerate(first, start=1):
        candidate = np.empty_like(row)
        candidate[0] = number
        candidate[1:] = np.minimum(row[1:] + 1, row[:-1] + (codes != ord(character)))
        # Insertions run along the row: cell j is the least of candidate[i] + (j - i) over i <= j.
        row = np.minimum.accumulate(candidate - steps) + steps
    return int(row[-1])


@dataclass(frozen=True)
class EntailmentPairs:
    """Questions with sentences that answer them or not.

    Attributes:
        questions, sentences: the two sides.
        entailed: 1 where the sentence holds the answer.
    """

    questions: list[str]
    sentences: list[str]
    entailed: list[int]


def read_entailment(source: str | Path) -> EntailmentPairs:
    """Read QNLI-like pairs: ``question``, ``sentence`` and ``label``.

    Args:
        source: JSON Lines or TSV (GLUE's own file), or "hub" for GLUE's validation split. The label is "entailment" or
            "not_entailment" or, in files, 1 or 0; the hub's labels are 0 for entailment and are turned.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a bad line (file and line are named), or only one of the two labels.
        OSError: the hub's data are neither cached nor to be downloaded.
    """
    if str(source) == "hub":
        rows = _hub_rows()
    else:
        path = Path(source).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"no such file: {source}. Give JSON Lines or TSV of question, sentence and label.")
        rows = _file_rows(path)
    pairs = EntailmentPairs([], [], [])
    for place, row in rows:
        try:
            question, sentence, label = row["question"], row["sentence"], ENTAILED[str(row["label"])]
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{place}: needs question, sentence and label, the label one of {', '.join(ENTAILED)} ({error})."
            ) from error
        if not isinstance(question, str) or not isinstance(sentence, str):
            raise ValueError(f"{place}: question and sentence must be strings.")
        pairs.questions.append(question)
        pairs.sentences.append(sentence)
        pairs.entailed.append(label)
    if len(set(pairs.entailed)) < 2:
        raise ValueError(f"{source}: an AUC needs pairs of both labels, but there are {len(set(pairs.entailed))}.")
    return pairs


def _file_rows(path: Path) -> list[tuple[str, Any]]:
    lines = path.read_text("utf-8").split("\n")
    if path.suffix.lower() == ".tsv":
        reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(f"{path}, line {reader.line_num}", row) for row in reader]
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append((f"{path}, line {number}", json.loads(line)))
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error.msg}).") from error
    return rows


def _hub_rows() -> list[tuple[str, Any]]:
    from datasets import load_dataset

    path, name, split = QNLI_DATASET
    try:
        rows = load_dataset(path, name, split=split)
    except Exception as error:  # of a dozen kinds
        raise OSError(
            f"{path} ({name}, {split}) is not in the cache of datasets and cannot be downloaded "
            f"({type(error).__name__}: {error}). Give a file with question, sentence and label."
        ) from error
    return [(f"{path}, row {n}", {**row, "label": 1 - row["label"]}) for n, row in enumerate(rows, start=1)]


def auc(similarities: np.ndarray, entailed: list[int]) -> float:
    """Area under the ROC curve: the chance that an entailed pair is more similar than another one; ties count half."""
    labels = np.asarray(entailed, dtype=bool)
    ranks = rankdata(similarities)
    positive = int(labels.sum())
    negative = len(labels) - positive
    return float((ranks[labels].sum() - positive * (positive + 1) / 2) / (positive * negative))
