"""The Python on the page about training runs as it is printed, but for the encoder's id."""

from __future__ import annotations

import re
from pathlib import Path

from sentence_transformers import SentenceTransformer

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_example_runs(tiny_encoder, sentences, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.S)
    exec(block.replace("bert-base-uncased", tiny_encoder), {"sentences": sentences[:130]})
    assert len(list(SentenceTransformer("trained").children())) == 2
