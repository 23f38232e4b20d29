"""The commands as a shell runs them."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import warnings

import numpy as np
import pytest

from sbert_flow import load
from sbert_flow.cli import main
from sbert_flow.data import sample_pairs


def run(*arguments, check=True):
    """Run the command in this process: starting Python and torch for each case would take most of the time."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["sbert-flow", *map(str, arguments)])
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # main replaces it
        with pytest.raises(SystemExit) as ended:
            main()
    assert not check or ended.value.code == 0, err.getvalue()
    assert check or (err.getvalue().count("Error:") == 1 and "Traceback" not in err.getvalue())
    return ended.value.code, " ".join(out.getvalue().split()), " ".join(err.getvalue().split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory, sentences):
    folder = tmp_path_factory.mktemp("user")
    (folder / "a.txt").write_text("\n".join(sentences[:200]), "utf-8")
    (folder / "b.jsonl").write_text("\n".join(json.dumps({"body": s}) for s in sentences[150:]), "utf-8")
    (folder / "sts" / "STS12").mkdir(parents=True)
    pairs = sample_pairs()
    rows = zip(pairs.sentences1, pairs.sentences2, pairs.scores, strict=True)
    lines = [json.dumps({"sentence1": a, "sentence2": b, "score": s}) for a, b, s in rows]
    (folder / "sts" / "STS12" / "test.jsonl").write_text("\n".join(lines), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def fitted(folder, minilm):
    _, out, _ = run(
        "fit",
        minilm,
        "--text",
        "a.txt",
        "b.jsonl",
        "--column",
        "body",
        "--pooling",
        "layer:0",
        "--recipe",
        "noise",
        "--output",
        "model",
    )
    assert "Fitted noise on 400 sentences" in out
    return folder / "model"


def test_fit_and_use(fitted):
    assert np.isfinite(load(fitted).encode(["A red boat."])).all()


def test_evaluate(fitted, folder):
    _, out, _ = run("evaluate", "model", "--sts", "sts", "--json", "scores.json")
    scores = json.loads((folder / "scores.json").read_text())
    assert set(scores) == {"model", "tasks", "average"} and scores["model"] == "model"
    task = scores["tasks"]["STS12"]
    assert task["pairs"] == len(sample_pairs()) and task["spearman"] == scores["average"]
    assert f"{100 * task['spearman']:.2f}" in out


def test_evaluate_a_plain_model(minilm, folder):
    assert "STS12" in run("evaluate", minilm, "--sts", "sts")[1]


@pytest.mark.parametrize(
    "command",
    [
        ["advise", "ENCODER", "--json", "out"],
        ["score", "model", "--output", "out"],
        ["adapt", "model", "--output", "out"],
        ["compare", "ENCODER", "--sts", "sts", "--task", "STS12", "--output", "out"],
        ["analyze", "model", "--sts", "sts", "--task", "STS12", "--output", "out"],
    ],
)
def test_every_command_takes_several_files_after_one_text(command, fitted, minilm, folder):
    """As a shell's ``--text *.txt`` gives them: the last one is read too, here found missing."""
    command = [minilm if a == "ENCODER" else a for a in command]
    assert "no such file: none.txt" in run(*command, "--text", "a.txt", "none.txt", check=False)[2]


def test_score_of_several_files(fitted, folder):
    out = run("score", "model", "--text", "a.txt", "b.jsonl", "--column", "body")[1]
    assert out.count('"file": "a.txt"') == 200 and out.count('"file": "b.jsonl"') == 250


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "ENCODER", "a.txt", "--sts", "sts"], "unexpected argument 'a.txt'. Name text files after --text"),
        (["fit", "ENCODER", "--text", "none.txt", "--output", "x"], "no such file: none.txt"),
        (["fit", "ENCODER", "--text", "b.jsonl", "--output", "x"], "no column that is known to hold text"),
        (["fit", "ENCODER", "--text", "a.txt", "--output", "sts"], "holds something else than a model"),
        (["fit", "ENCODER", "--text", "a.txt", "--output", "x", "--pooling", "layer:9"], "'layer:9' is out of range"),
        (["fit", "ENCODER", "--text", "a.txt", "--output", "x", "--recipe", "magic"], "recipe must be one of"),
        (["fit", "./none", "--text", "a.txt", "--output", "x"], "no encoder folder './none'"),
        (["evaluate", "ENCODER", "--sts", "nowhere"], "no folder nowhere"),
        (["evaluate", "ENCODER", "--sts", "sts", "--task", "STS99"], "task must be one of"),
        (["evaluate", "./none", "--sts", "sts"], "./none"),
        (["evaluate", "ENCODER", "--sts", "sts", "--json", "sts"], "sts is a folder. Name a file for the scores"),
    ],
)
def test_errors_are_one_line(arguments, message, minilm, folder):
    code, _, err = run(*[minilm if a == "ENCODER" else a for a in arguments], check=False)
    assert code == 2
    assert message in err
    assert not (folder / "x").exists()


def test_notes_of_an_error_are_shown(monkeypatch):
    def app():
        error = OSError("the disk is full")
        error.add_note("Go on with --resume.")
        raise error

    monkeypatch.setattr("sbert_flow.cli.app", app)
    assert "the disk is full Go on with --resume." in run("train", check=False)[2]


def test_as_a_module(folder):
    done = subprocess.run(
        [sys.executable, "-m", "sbert_flow", "fit", "--help"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "--pooling" in done.stdout
