"""Readers of text and of labelled pairs; the samples that ship."""

from __future__ import annotations

from sbert_flow.data.hub_sts import read_hub_sts
from sbert_flow.data.sts import SICK_FULL, STS_TASKS, SentencePairs, read_sts, sample_pairs, sample_sentences
from sbert_flow.data.text import read_numbered, read_sentences

__all__ = [
    "SICK_FULL",
    "STS_TASKS",
    "SentencePairs",
    "read_hub_sts",
    "read_numbered",
    "read_sentences",
    "read_sts",
    "sample_pairs",
    "sample_sentences",
]
