"""The STS tasks from the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterable

from sbert_flow.data.sts import SICK_FULL, STS_TASKS, SentencePairs, pairs_from_rows

HUB_DATASETS = {
    "STS12": ("mteb/sts12-sts", "a0d554a64d88156834ff5ae9920b964011b16384"),
    "STS13": ("mteb/sts13-sts", "7e90230a92c190f1bf69ae9002b8cea547a64cca"),
    "STS14": ("mteb/sts14-sts", "6031580fec1f6af667f0bd2da0a551cf4f0b2375"),
    "STS15": ("mteb/sts15-sts", "ae752c7c21bf194d8b67fd573edf7ae58183cbe3"),
    "STS16": ("mteb/sts16-sts", "4d8694f8f0e0100860b497b999b3dbed754a0513"),
    "STSBenchmark": ("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831"),
    SICK_FULL: ("mteb/sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d"),
}
"""Dataset and revision of each task: those that MTEB records. They do not say which subset a pair is of."""


def read_hub_sts(tasks: Iterable[str] | None = None, split: str = "test") -> list[SentencePairs]:
    """Download tasks from the hub (or read them from its cache).

    Args:
        tasks: their names; None takes STS12 to STS16, STSBenchmark and SICK-R-full.
        split: the split of each.

    Raises:
        OSError: a dataset or split is neither in the cache nor can be downloaded.
        ValueError: a task that the hub does not have, or a bad row.
    """
    from datasets import load_dataset

    tasks = list(HUB_DATASETS) if tasks is None else list(tasks)
    for task in tasks:
        if task in STS_TASKS and task not in HUB_DATASETS:
            raise ValueError(
                f"the hub's {task} is all 9,927 pairs in one split, without a mark for the 4,927 of the test set. "
                f"Ask for {SICK_FULL!r}, or give a folder of the tasks."
            )
        if task not in HUB_DATASETS:
            raise ValueError(f"task must be one of {', '.join(HUB_DATASETS)}, but got {task!r}.")
    read = []
    for task in tasks:
        path, revision = HUB_DATASETS[task]
        try:
            rows = load_dataset(path, revision=revision, split=split)
        except Exception as error:  # the library has a dozen kinds for "not there" and "no network"
            raise OSError(
                f"{task} ({path}, split {split!r}) is not in the cache of datasets and cannot be downloaded "
                f"({type(error).__name__}: {error}). Without a network, give a folder with {task}/{split}.jsonl."
            ) from error
        read.append(pairs_from_rows(((f"{path}, row {n}", row) for n, row in enumerate(rows, start=1)), task))
    return read
