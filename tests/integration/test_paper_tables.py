from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from sbert_flow.data import sample_pairs

ROOT = Path(__file__).parents[2]


def test_prints_both_aggregations_in_the_papers_order(tiny_encoder, sentences, tmp_path):
    pairs = sample_pairs()
    for task in ("STS13", "STSBenchmark"):
        (tmp_path / "sts" / task).mkdir(parents=True)
        rows = enumerate(zip(pairs.sentences1, pairs.sentences2, pairs.scores, strict=True))
        lines = [
            json.dumps({"sentence1": a, "sentence2": b, "score": y, "subset": f"s{i % 3}"}) for i, (a, b, y) in rows
        ]
        (tmp_path / "sts" / task / "test.jsonl").write_text("\n".join(lines))
    (tmp_path / "corpus.txt").write_text("\n".join(sentences))
    printed = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "paper_tables.py"), "--encoder", tiny_encoder,
         "--sts", str(tmp_path / "sts"), "--text", str(tmp_path / "corpus.txt"), "--pooling", "mean",
         "--method", "raw", "whitening", "noise"],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ).stdout  # fmt: skip
    wmean, whole = printed.split('aggregation "all"')
    assert 'aggregation "wmean"' in wmean
    for part, quoted in ((wmean, "72.14"), (whole, "67.10")):
        assert "| pooling | method | fitted on | STSBenchmark | STS13 | average |" in part
        assert [line.split(" | ")[1:3] for line in part.splitlines() if line.startswith("| mean ")] == [
            ["raw", ""], ["whitening", "target"], ["noise", "target"], ["whitening", "corpus.txt"],
            ["noise", "corpus.txt"],
        ]  # fmt: skip
        assert quoted in part
    first, second = (next(x for x in part.splitlines() if x.startswith("| mean | raw")) for part in (wmean, whole))
    assert first.split(" | ")[3] == second.split(" | ")[3]  # the benchmark is one correlation under both
    assert first.split(" | ")[4] != second.split(" | ")[4]
