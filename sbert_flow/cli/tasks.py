"""The STS tasks that a command line names."""

from __future__ import annotations

from collections.abc import Sequence

from sbert_flow.data import SentencePairs, read_hub_sts, read_sts


def read_tasks(source: str, names: Sequence[str] | None, split: str = "test") -> list[SentencePairs]:
    """Read the tasks from the folder ``source``, or from the hub where it is "hub"."""
    return read_hub_sts(names or None, split) if source == "hub" else read_sts(source, names or None, split)
