"""The Python in the README runs as it is printed, but for the encoder's id, which needs a network."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_examples_run(minilm, sentences, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("sentences.txt").write_text("\n".join(sentences[:150]), "utf-8")
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), flags=re.S)
    assert len(blocks) == 2
    namespace: dict = {}
    for block in blocks:
        exec(block.replace("sentence-transformers/all-MiniLM-L6-v2", minilm), namespace)
    assert "surface because an edited sentence lies" in capsys.readouterr().out
    assert (tmp_path / "my-model" / "modules.json").is_file()
