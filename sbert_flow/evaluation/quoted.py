"""Rows that papers print, to be shown beside one's own and marked as quoted."""

from __future__ import annotations

from dataclasses import dataclass

TASK_ORDER = ("STSBenchmark", "SICK-R", "STS12", "STS13", "STS14", "STS15", "STS16")


@dataclass(frozen=True)
class QuotedRow:
    """Spearman correlations x 100 from a paper.

    Attributes:
        encoder, method: as the paper names them.
        source: where the figures stand.
        aggregation: "all" or "wmean" for STS12 to 16: rows of another aggregation must not be compared.
        spearman: by task.
    """

    encoder: str
    method: str
    source: str
    aggregation: str
    spearman: dict[str, float]


def _row(encoder: str, method: str, source: str, aggregation: str, *values: float) -> QuotedRow:
    return QuotedRow(encoder, method, source, aggregation, dict(zip(TASK_ORDER, values, strict=True)))


_BERT_FLOW = "Li et al., 2020, table 2"
_SIMCSE = "Gao et al., 2021, table 5"
_WHITENING = "Su et al., 2021"

QUOTED_ROWS = (
    _row("BERT-base", "raw, last layer", _BERT_FLOW, "wmean", 47.29, 58.21, 49.07, 55.92, 54.75, 62.75, 65.19),
    _row("BERT-base", "raw, last2avg", _BERT_FLOW, "wmean", 59.04, 63.75, 57.84, 61.95, 62.48, 70.95, 69.81),
    _row("BERT-base", "flow, NLI text", _BERT_FLOW, "wmean", 58.56, 65.44, 59.54, 64.69, 64.66, 72.92, 71.84),
    _row("BERT-base", "flow, target text", _BERT_FLOW, "wmean", 70.72, 63.11, 63.48, 72.14, 68.42, 73.77, 75.37),
    _row("BERT-large", "flow, target text", _BERT_FLOW, "wmean", 72.26, 62.50, 65.20, 73.39, 69.42, 74.92, 77.63),
    _row("BERT-base", "whitening 256, target text", _WHITENING, "wmean",
         71.43, 62.23, 63.90, 73.75, 69.09, 74.59, 74.42),
    _row("BERT-base", "flow", _SIMCSE, "all", 68.66, 64.47, 58.40, 67.10, 60.85, 75.16, 71.22),
)  # fmt: skip
"""Rows for BERT without labels."""


def quoted_rows(aggregation: str) -> list[QuotedRow]:
    """The quoted rows of one aggregation; papers print none for "mean"."""
    return [row for row in QUOTED_ROWS if row.aggregation == aggregation]
