"""Figures of a comparison and of an analysis, with matplotlib (extra ``plot``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sbert_flow.evaluation.compare import HISTOGRAM_EDGES, Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {
    "raw": "#7f7f7f",
    "whitening": "#1f77b4",
    "whitening-k": "#17becf",
    "paper": "#ff7f0e",
    "noise": "#d62728",
    "surface": "#2ca02c",
    "surface-flow": "#9467bd",
    "mix": "#8c564b",
}
"""One colour a method, in every figure."""


def require_matplotlib() -> None:
    """Raise an ImportError with the pip line where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("figures need matplotlib. Install it with: pip install 'sbert-flow[plot]'") from error


def new_figure(width: float, height: float) -> Figure:
    """A figure that no screen and no other figure has to do with."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def plot_comparison(comparison: Comparison, path: str | Path) -> None:
    """Write a PNG: bars of the averages, then the similarities' histogram and the spectrum of each pooling.

    Raises:
        ImportError: matplotlib is not installed (with the pip line).
        OSError: the file cannot be written.
    """
    poolings = list(dict.fromkeys(row.pooling for row in comparison.rows))
    methods = list(dict.fromkeys(row.method for row in comparison.rows))
    figure = new_figure(max(7.0, 2.6 * len(poolings)), 9.0)
    grid = figure.add_gridspec(3, len(poolings), height_ratios=[1.3, 1, 1])
    _bars(figure.add_subplot(grid[0, :]), comparison, poolings, methods)
    first: dict[int, Any] = {}
    for column, pooling in enumerate(poolings):
        for line, draw in ((1, _histogram), (2, _spectrum)):
            share = {"sharex": first[line], "sharey": first[line]} if line in first else {}
            axes = figure.add_subplot(grid[line, column], **share)
            first.setdefault(line, axes)
            for method in methods:
                draw(axes, comparison.row(pooling, method), COLOURS.get(method, "black"))
            axes.set_title(pooling, fontsize=10)
            axes.tick_params(labelleft=column == 0, labelsize=8)
            axes.spines[["top", "right"]].set_visible(False)
    first[1].set_ylabel("share of the pairs")
    first[2].set_ylabel("share of the variance")
    figure.supxlabel("middle: cosine of the tasks' pairs; below: eigenvalue number, both axes logarithmic", fontsize=9)
    figure.suptitle(f"{comparison.encoder}, maps fitted on {comparison.fitted_on}", fontsize=11)
    figure.savefig(path, dpi=110)


def _bars(axes: Any, comparison: Comparison, poolings: list[str], methods: list[str]) -> None:
    width = 0.8 / len(methods)
    for index, method in enumerate(methods):
        values = [100 * comparison.row(pooling, method).average for pooling in poolings]
        label = f"whitening {comparison.k}" if method == "whitening-k" else method
        places = np.arange(len(poolings)) + (index - (len(methods) - 1) / 2) * width
        axes.bar(places, values, width, label=label, color=COLOURS.get(method, "black"))
        for place, value in zip(places, values, strict=True):
            axes.text(place, value + 0.2, f"{value:.1f}", ha="center", va="bottom", fontsize=7, rotation=90)
    averages = [100 * row.average for row in comparison.rows]
    span = max(averages) - min(averages)
    axes.set_ylim(min(averages) - 0.25 * span - 1, max(averages) + 0.3 * span + 1)
    axes.set_xticks(np.arange(len(poolings)), poolings)
    axes.set_ylabel(f"Spearman x 100, average of {len(comparison.rows[0].scores)} tasks")
    axes.legend(ncols=len(methods), fontsize=8, frameon=False, loc="upper center")
    axes.spines[["top", "right"]].set_visible(False)


def _histogram(axes: Any, row: Any, colour: str) -> None:
    axes.stairs(row.histogram, HISTOGRAM_EDGES, color=colour, linewidth=1.2)
    axes.set(xlim=(-0.5, 1), xticks=(-0.5, 0, 0.5, 1))


def _spectrum(axes: Any, row: Any, colour: str) -> None:
    live = row.spectrum[row.spectrum > 1e-6]
    axes.loglog(np.arange(1, len(live) + 1), live, color=colour, linewidth=1.2)
