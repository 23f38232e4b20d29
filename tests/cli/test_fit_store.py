"""``sbert-flow fit`` with a store."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from sbert_flow import load
from sbert_flow.cli import main
from sbert_flow.fitting import progress


def fit(encoder, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys, "argv", ["sbert-flow", "fit", encoder, "--text", "text.txt", "--recipe", "noise", *arguments]
        )
        with pytest.raises(SystemExit) as ended:
            main()
    return ended.value.code


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, sentences):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(sentences), "utf-8")
    return tmp_path


def records(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_json_lines_and_the_store_used_again(tiny_encoder, folder, capfd, sentences):
    assert fit(tiny_encoder, "--output", "one", "--store", "store", "--json-lines") == 0
    captured = capfd.readouterr()
    assert captured.out == ""
    first = records(captured.err)
    assert {record.get("stage") for record in first} >= {"Encoding", "Fitting the flow"}
    assert first[-1]["message"] == "fitted" and first[-1]["sentences"] == len(sentences)
    assert fit(tiny_encoder, "--output", "two", "--store", "store", "--json-lines", "--seed", "1") == 0
    assert "Encoding" not in {record.get("stage") for record in records(capfd.readouterr().err)}
    texts = sentences[:3]
    assert (load(folder / "one").encode(texts) != load(folder / "two").encode(texts)).any()


def test_quiet(tiny_encoder, capfd):
    assert fit(tiny_encoder, "--output", "model", "--quiet") == 0
    captured = capfd.readouterr()
    assert captured.out == "" and "Fitting" not in captured.err and "Encoding" not in captured.err


def test_terminated_and_continued(tiny_encoder, folder, capfd, monkeypatch, sentences):
    advance = progress.Stage.advance

    def terminated(self, units, **measures):
        advance(self, units, **measures)
        if self.name == "Fitting the flow" and self.done == 100:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(progress.Stage, "advance", terminated)
        assert fit(tiny_encoder, "--output", "model", "--store", "store") == 130
    assert "The store store keeps what was done; the same command continues it." in capfd.readouterr().err
    assert not (folder / "model").exists()
    assert fit(tiny_encoder, "--output", "model", "--store", "store") == 0
    assert "Continuing the training at step 100 of 200." in capfd.readouterr().err
    assert fit(tiny_encoder, "--output", "whole", "--quiet") == 0
    assert (load(folder / "model").encode(sentences[:5]) == load(folder / "whole").encode(sentences[:5])).all()


def test_bad_dtype(tiny_encoder, capfd):
    assert fit(tiny_encoder, "--output", "model", "--store", "store", "--dtype", "int8") == 2
    assert "dtype must be one of 'float32', 'float16', but got 'int8'" in " ".join(capfd.readouterr().err.split())
