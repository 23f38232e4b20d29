"""The layout of BERT-flow's table 2 for any encoder: raw, whitening and flows, fitted on target text and on a corpus.

    python benchmarks/paper_tables.py --encoder bert-base-uncased --sts STS_FOLDER \
        --text sentence-transformers/all-nli --subset pair

"target" fits a map on each task's own sentences, "text" one map on the corpus. Both aggregations of STS12 to 16 are
printed, because papers mix them up: "wmean" is BERT-flow's, "all" that of SimCSE and MTEB. Rows from the papers are
marked as quoted; they are for BERT and for nothing else. With --sts hub there are no subsets, hence no "wmean", and
SICK-R is all 9,927 pairs.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from sbert_flow.data import SentencePairs, read_hub_sts, read_sentences, read_sts
from sbert_flow.evaluation.compare import Comparison, compare
from sbert_flow.evaluation.quoted import TASK_ORDER, quoted_rows
from sbert_flow.evaluation.sts import WHOLE_TASKS
from sbert_flow.fitting.progress import Progress

METHODS = ("raw", "whitening", "whitening-k", "paper", "noise")


@dataclass(frozen=True)
class Run:
    """A comparison and what its maps were fitted on."""

    text: str
    comparison: Comparison


def table(runs: list[Run], tasks: list[str], aggregation: str) -> str:
    """One table in Markdown, Spearman x 100."""
    lines = [["pooling", "method", "fitted on", *tasks, "average"], ["---"] * 3 + ["---:"] * (len(tasks) + 1)]
    for run in runs:
        for row in run.comparison.rows:
            raw = row.method == "raw"
            if raw and run is not runs[0]:
                continue
            values = [100 * row.scores[task].aggregated(aggregation) for task in tasks]
            method = f"whitening {run.comparison.k}" if row.method == "whitening-k" else row.method
            shown = [f"{value:.2f}" for value in [*values, np.mean(values)]]
            lines.append([row.pooling, method, "" if raw else run.text, *shown])
    for paper in quoted_rows(aggregation):
        shown = [f"{paper.spearman[task]:.2f}" if task in paper.spearman else "" for task in tasks]
        lines.append([f"quoted: {paper.encoder}", f"{paper.method} ({paper.source})", "", *shown, ""])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", required=True, help="hub id or folder")
    parser.add_argument("--sts", required=True, help="folder of the tasks, or hub")
    parser.add_argument("--text", help="corpus for the second kind of fit: file or hub dataset")
    parser.add_argument("--subset", help="configuration of a hub dataset")
    parser.add_argument("--limit", type=int, help="sentences of the corpus; default all")
    parser.add_argument("--pooling", nargs="+", default=["mean", "first-last", "first-last-embedding"])
    parser.add_argument("--method", nargs="+", default=list(METHODS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--output", type=Path, help="also write the tables here")
    arguments = parser.parse_args()
    tasks: list[SentencePairs] = read_hub_sts() if arguments.sts == "hub" else read_sts(arguments.sts)
    options = {
        "poolings": arguments.pooling, "methods": arguments.method, "seed": arguments.seed,
        "batch_size": arguments.batch_size, "progress": Progress(),
    }  # fmt: skip
    runs = [Run("target", compare(arguments.encoder, tasks, each_task=True, **options))]
    if arguments.text:
        sentences = list(islice(read_sentences(arguments.text, subset=arguments.subset), arguments.limit))
        runs.append(Run(Path(arguments.text).name, compare(arguments.encoder, tasks, sentences, **options)))
    names = sorted((pairs.name for pairs in tasks), key=[*TASK_ORDER, *(p.name for p in tasks)].index)
    known = all(pairs.subsets or pairs.name in WHOLE_TASKS for pairs in tasks)
    sections = [
        f'{arguments.encoder}, Spearman x 100, aggregation "{aggregation}", seed {arguments.seed}\n\n'
        + table(runs, names, aggregation)
        for aggregation in (("wmean", "all") if known else ("all",))
    ]
    report = "\n\n".join(sections) + "\n"
    print(report)
    if not known:
        print('No "wmean": these data do not say which subset a pair is of.')
    if arguments.output:
        arguments.output.write_text(report, "utf-8")


if __name__ == "__main__":
    main()
