"""advise, adapt, score and fit as advised, as a user calls them."""

from __future__ import annotations

import io
import json
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest

from sbert_flow import load
from sbert_flow.cli import main


def run(*arguments: object, code: int = 0) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["sbert-flow", *map(str, arguments)])
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # main replaces it
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == code, err.getvalue()
    return out.getvalue(), " ".join(err.getvalue().split())


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(sentences[:120]), "utf-8")
    return path


@pytest.fixture(scope="module")
def model(tiny_encoder: str, text, tmp_path_factory: pytest.TempPathFactory):
    output = tmp_path_factory.mktemp("models") / "surface"
    run("fit", tiny_encoder, "--text", text, "--output", output, "--recipe", "surface", "--quiet")
    return output


def test_advise_prints_and_writes(tiny_encoder: str, text, tmp_path) -> None:
    out, _ = run(
        "advise",
        tiny_encoder,
        "--text",
        text,
        "--pooling",
        "mean",
        "--pooling",
        "layer:0",
        "--json",
        tmp_path / "a.json",
    )
    report = json.loads((tmp_path / "a.json").read_text())
    assert set(report) == {"mean", "layer:0"}
    for name, advice in report.items():
        assert f"{name}: {advice['decision']}" in " ".join(out.split())
        assert advice["measures"]["sentences"] == 120 and "sentences 120," in " ".join(out.split())


def test_fit_auto_does_as_advised(tiny_encoder: str, minilm: str, text, tmp_path) -> None:
    _, err = run("fit", minilm, "--text", text, "--output", tmp_path / "good", "--quiet", code=2)
    assert "leave" in err and "Name a recipe" in err and not (tmp_path / "good").exists()


def test_score_writes_percentiles_in_order(model, text, tmp_path) -> None:
    run("score", model, "--text", text, "--output", tmp_path / "scores.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text("utf-8").splitlines()]
    assert [row["sentence"] for row in rows] == text.read_text("utf-8").splitlines()
    places, values = (np.array([row[key] for row in rows]) for key in ("percentile", "log_prob"))
    assert (np.diff(places[values.argsort()]) >= 0).all() and places.min() < 2 and places.max() > 98


def test_scores_never_overwrite_their_text(model, tmp_path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps({"sentence": "The ferry left the island at noon."}) + "\n", "utf-8")
    before = lines.read_bytes()
    assert "is one of the texts" in run("score", model, "--text", lines, "--output", lines, code=2)[1]
    assert lines.read_bytes() == before


def test_scores_say_where_a_sentence_stands(model, tmp_path) -> None:
    """Rows without text have no score, so that numbers of rows differ."""
    (tmp_path / "gaps.txt").write_text("A red boat.\n\n \nA blue boat.\n", "utf-8")
    (tmp_path / "gaps.jsonl").write_text('\n{"text": ""}\n{"text": "A green boat."}\n', "utf-8")
    files = [str(tmp_path / name) for name in ("gaps.txt", "gaps.jsonl")]
    out, _ = run("score", model, "--text", files[0], "--text", files[1])
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["file"], row["line"], row["sentence"]) for row in rows] == [
        (files[0], 1, "A red boat."), (files[0], 4, "A blue boat."), (files[1], 3, "A green boat."),
    ]  # fmt: skip


def test_adapt_and_reset(model, sentences: list[str], tmp_path) -> None:
    new = tmp_path / "new.txt"
    new.write_text("\n".join(sentences[200:280]), "utf-8")
    out, _ = run("adapt", model, "--text", new, "--output", tmp_path / "adapted")
    assert "bits per dimension" in out
    adapted = load(tmp_path / "adapted")
    probe = sentences[300:305]
    assert adapted[-1].adapted and not np.allclose(adapted.encode(probe), load(model).encode(probe), atol=1e-3)
    run("adapt", tmp_path / "adapted", "--reset", "--output", tmp_path / "again")
    np.testing.assert_array_equal(load(tmp_path / "again").encode(probe), load(model).encode(probe))


def test_adapt_bad_use(model, tiny_encoder: str, text, tmp_path) -> None:
    output = tmp_path / "out"
    assert "either --text, to adapt, or --reset" in run("adapt", model, "--output", output, code=2)[1]
    assert "not adapted" in run("adapt", model, "--reset", "--output", output, code=2)[1]
    few = tmp_path / "few.txt"
    few.write_text("\n".join(f"sentence of number {i}" for i in range(49)))
    assert "at least 50" in run("adapt", model, "--text", few, "--output", output, code=2)[1]
    assert "modules.json" in run("score", tiny_encoder, "--text", text, code=2)[1]
    assert not output.exists()
