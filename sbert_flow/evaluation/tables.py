"""A comparison as JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from typing import Any

from sbert_flow.evaluation.compare import Comparison
from sbert_flow.evaluation.quoted import QuotedRow

NOTES = {
    "all": "one correlation over all pairs of a task",
    "mean": "mean of the correlations of a task's subsets",
    "wmean": "mean of the correlations of a task's subsets, weighted by their numbers of pairs",
}


def as_json(comparison: Comparison, quoted: list[QuotedRow]) -> dict[str, Any]:
    """All figures but the histograms and spectra; correlations from -1 to 1, quoted rows x 100 as printed."""
    content = asdict(comparison)
    for row in content["rows"]:
        del row["histogram"], row["spectrum"]
    return {**content, "quoted": [asdict(row) for row in quoted]}


def table(comparison: Comparison, quoted: list[QuotedRow]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: correlations x 100 under the comparison's aggregation, quoted rows last."""
    tasks = list(comparison.rows[0].scores)
    headings = ["pooling", "method", *tasks, "average", "mean cosine", "effective rank"]
    cells = [
        [
            row.pooling,
            f"whitening {comparison.k}" if row.method == "whitening-k" else row.method,
            *(f"{100 * row.scores[task].aggregated(comparison.aggregation):.2f}" for task in tasks),
            f"{100 * row.average:.2f}",
            f"{row.mean_cosine:.2f}",
            f"{row.effective_rank:.0f}",
        ]
        for row in comparison.rows
    ]
    for paper in quoted:
        values = [paper.spearman.get(task) for task in tasks]
        known = [value for value in values if value is not None]
        average = f"{sum(known) / len(known):.2f}" if len(known) == len(tasks) else ""
        shown = ["" if value is None else f"{value:.2f}" for value in values]
        cells.append([f"quoted: {paper.encoder}", f"{paper.method} ({paper.source})", *shown, average, "", ""])
    return headings, cells


def caption(comparison: Comparison) -> str:
    """One sentence on what the table shows."""
    return (
        f'{comparison.encoder}: Spearman x 100, aggregation "{comparison.aggregation}" '
        f"({NOTES[comparison.aggregation]}); maps fitted without labels on {comparison.fitted_on} "
        f"({comparison.fit_sentences:,} distinct sentences), seed {comparison.seed}."
    )


def as_csv(comparison: Comparison, quoted: list[QuotedRow]) -> str:
    """The table with a header line."""
    headings, cells = table(comparison, quoted)
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([headings, *cells])
    return out.getvalue()


def as_markdown(comparison: Comparison, quoted: list[QuotedRow]) -> str:
    """The table under its caption, the best measured average of each pooling in bold."""
    headings, cells = table(comparison, quoted)
    average = headings.index("average")
    best: dict[str, float] = {}
    for row in comparison.rows:
        best[row.pooling] = max(row.average, best.get(row.pooling, -1.0))
    for line, row in zip(cells, comparison.rows, strict=False):
        if row.average == best[row.pooling]:
            line[average] = f"**{line[average]}**"
    rule = ["---", "---", *["---:"] * (len(headings) - 2)]
    lines = ["| " + " | ".join(line) + " |" for line in (headings, rule, *cells)]
    return f"{caption(comparison)}\n\n" + "\n".join(lines) + "\n"
