"""Readers of text and of labelled pairs; the samples that ship."""

from __future__ import annotations

from sbert_flow.data.sts import STS_TASKS, SentencePairs, read_sts, sample_pairs, sample_sentences
from sbert_flow.data.text import read_sentences

__all__ = ["STS_TASKS", "SentencePairs", "read_sentences", "read_sts", "sample_pairs", "sample_sentences"]
