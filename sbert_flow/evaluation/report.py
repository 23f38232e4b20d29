"""The report of an analysis: Markdown, and HTML with its figures inside."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any

import numpy as np

from sbert_flow.evaluation.analyze import Analysis, SpaceReport
from sbert_flow.evaluation.plots import new_figure

COLOURS = {"before": "#7f7f7f", "after": "#d62728", "embeddings": "#1f77b4"}

MEASURES = (
    ("mean cosine of two sentences", "mean_cosine", ".3f", "0: no common direction; near 1: a narrow cone"),
    ("IsoScore", "iso_score", ".3f", "1: all directions vary alike; 0: a line"),
    ("effective rank", "effective_rank", ".1f", "directions in use, by the spectrum's entropy"),
    ("participation ratio", "participation_ratio", ".1f", "directions that share the variance"),
    ("correlation with human scores x 100", "human", "%", "higher is better"),
    ("correlation with edit distance x 100", "edit", "%", "further below the human value: goes by surface"),
    ("AUC of question and answer x 100", "qnli_auc", "%", "50 is chance"),
)


def _rows(analysis: Analysis) -> list[list[str]]:
    rows = [["measure", *analysis.spaces, "reading"]]
    for label, key, form, reading in MEASURES:
        values = [getattr(space, key) for space in analysis.spaces.values()]
        if None in values:
            continue
        if key == "edit":
            reading = f"human scores themselves: {100 * analysis.human_edit:.1f}; {reading}"
        rows.append([label, *(f"{100 * v:.1f}" if form == "%" else format(v, form) for v in values), reading])
    return rows


def _word_rows(analysis: Analysis) -> list[list[str]]:
    if analysis.words is None:
        return []
    ks = list(analysis.words[0].distance)
    rows = [["frequency rank", "words", "mean norm", *(f"mean distance to {k} nearest" for k in ks)]]
    for part in analysis.words:
        distances = [f"{part.distance[k]:.3f}" for k in ks]
        rows.append([f"{part.first:,} to {part.last:,}", f"{part.words:,}", f"{part.norm:.3f}", *distances])
    return rows


def summary(analysis: Analysis) -> str:
    """The findings in a few sentences."""
    if "after" not in analysis.spaces:
        return "The model has no map, so there is one space to look at."
    before, after = analysis.spaces["before"], analysis.spaces["after"]
    gain = 100 * (after.human - before.human)
    verdict = "gains" if gain > 0 else "loses"
    return (
        f"With the map the mean cosine goes from {before.mean_cosine:.2f} to {after.mean_cosine:.2f}, and the "
        f"correlation with human scores {verdict} {abs(gain):.1f} points ({100 * before.human:.1f} to "
        f"{100 * after.human:.1f}). The correlation with edit distance goes from {100 * before.edit:.1f} to "
        f"{100 * after.edit:.1f}; that of the human scores is {100 * analysis.human_edit:.1f}."
    )


def _given(analysis: Analysis) -> str:
    asked = f", {analysis.questions:,} question-answer pairs" if analysis.questions else ""
    return (
        f"{analysis.pairs:,} pairs of {', '.join(analysis.tasks)} ({analysis.sentences:,} distinct sentences){asked}."
    )


def as_markdown(analysis: Analysis, title: str, figure: str | None = None) -> str:
    """The report in Markdown.

    Args:
        analysis: the findings.
        title: usually the model's name.
        figure: path of the figure, relative to the file.
    """
    parts = [f"# {title}: the space of its embeddings", summary(analysis), _given(analysis), _table(_rows(analysis))]
    if words := _word_rows(analysis):
        parts += ["## Word embeddings by frequency", _word_note(analysis), _table(words)]
    if figure:
        parts.append(f"![similarities, spectrum, edit distance, words]({figure})")
    return "\n\n".join(parts) + "\n"


def _word_note(analysis: Analysis) -> str:
    return (
        f"Frequency from {analysis.frequency_from}, most frequent first. In raw BERT frequent words lie near the "
        "origin and close together (Li et al., 2020). The map does not touch these."
    )


def _table(rows: list[list[str]]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def as_html(analysis: Analysis, title: str, png: bytes | None = None) -> str:
    """The report as one HTML file without scripts, the figure inside."""

    def table(rows: list[list[str]]) -> str:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in rows[0])
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    name = html.escape(title)
    parts = [f"<h1>{name}: the space of its embeddings</h1>", f'<p class="lead">{html.escape(summary(analysis))}</p>']
    parts.append(table(_rows(analysis)))
    if png is not None:
        data = base64.b64encode(png).decode()
        parts.append(f'<img alt="similarities, spectrum, edit distance, words" src="data:image/png;base64,{data}">')
    if words := _word_rows(analysis):
        parts += ["<h2>Word embeddings by frequency</h2>", f"<p>{html.escape(_word_note(analysis))}</p>", table(words)]
    parts.append(f'<p class="small">Measured on {html.escape(_given(analysis))} By sbert-flow analyze.</p>')
    return _PAGE.format(title=name, body="\n".join(parts))


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.15rem; margin-top: 2rem; }}
.lead {{ font-size: 1.05rem; }} .small {{ color: #666; font-size: .85rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; width: 100%; }}
th, td {{ padding: .35rem .7rem; border-bottom: 1px solid #ddd; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }} th {{ border-bottom: 2px solid #999; }}
img {{ max-width: 100%; }}
</style></head><body>
{body}
</body></html>
"""


def draw(analysis: Analysis, path: str | Path) -> None:
    """Write the report's figure as a PNG.

    Raises:
        ImportError: matplotlib is not installed (with the pip line).
    """
    figure = new_figure(10.0, 7.0)
    histogram, spectrum, edit, words = figure.subplots(2, 2).flatten()
    for name, space in analysis.spaces.items():
        colour = COLOURS[name]
        histogram.hist(space.similarities, bins=60, range=(-0.5, 1), histtype="step", color=colour, label=name)
        live = space.spectrum[space.spectrum > 1e-6]
        spectrum.loglog(np.arange(1, len(live) + 1), live, color=colour, label=name)
    histogram.set(title="cosine of the pairs", xlabel="cosine", ylabel="pairs")
    spectrum.set(title="eigenvalue spectrum", xlabel="eigenvalue number", ylabel="share of the variance")
    _by_edit_distance(edit, analysis)
    if analysis.words is None:
        words.set_axis_off()
    else:
        _by_frequency(words, analysis)
    for axes in (histogram, spectrum, edit):
        axes.legend(frameon=False)
    for axes in (histogram, spectrum, edit, words):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _by_edit_distance(axes: Any, analysis: Analysis) -> None:
    distances = analysis.edit_distances
    edges = np.unique(np.quantile(distances, np.linspace(0, 1, 11)))
    middle = (edges[:-1] + edges[1:]) / 2
    member = np.clip(np.digitize(distances, edges[1:-1]), 0, len(middle) - 1)
    for name, space in analysis.spaces.items():
        ranks = _rank_shares(space)
        means = [ranks[member == part].mean() for part in range(len(middle))]
        axes.plot(middle, means, "o-", color=COLOURS[name], label=name)
    axes.set(title="similarity by edit distance", xlabel="edit distance, tenths of the pairs",
             ylabel="mean rank of the cosine, 0 to 1")  # fmt: skip


def _rank_shares(space: SpaceReport) -> np.ndarray:
    return space.similarities.argsort().argsort() / len(space.similarities)


def _by_frequency(axes: Any, analysis: Analysis) -> None:
    assert analysis.words is not None
    places = np.arange(len(analysis.words))
    axes.plot(places, [part.norm for part in analysis.words], "s-", color="#1f77b4", label="mean norm")
    for k, style in zip(analysis.words[0].distance, ("-", "--", ":"), strict=True):
        values = [part.distance[k] for part in analysis.words]
        axes.plot(places, values, style, marker="o", color="#ff7f0e", label=f"distance, {k} nearest")
    axes.set_xticks(places, [f"{part.first:,}-\n{part.last:,}" for part in analysis.words], fontsize=8)
    axes.set(title="word embeddings by frequency", xlabel="frequency rank")
    axes.legend(frameon=False, fontsize=8)
