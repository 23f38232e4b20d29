from __future__ import annotations

import json

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from transformers import AutoTokenizer
from typer.testing import CliRunner

from sbert_flow.cli import app
from sbert_flow.data import sample_pairs


@pytest.fixture
def text(sentences, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(sentences[:96]), "utf-8")
    return str(path)


@pytest.fixture
def sts(tmp_path):
    pairs = sample_pairs()
    folder = tmp_path / "sts" / "STSBenchmark"
    folder.mkdir(parents=True)
    rows = zip(pairs.sentences1, pairs.sentences2, pairs.scores, strict=True)
    lines = [json.dumps({"sentence1": a, "sentence2": b, "score": score}) for a, b, score in rows]
    (folder / "validation.jsonl").write_text("\n".join(lines), "utf-8")
    return str(folder.parent)


def run(encoder, *options):
    return CliRunner().invoke(app, ["train", str(encoder), *map(str, options)])


def test_trains_evaluates_and_saves(tiny_encoder, text, sts, tmp_path):
    output = tmp_path / "trained"
    result = run(
        tiny_encoder, "--text", text, "--output", output, "--sts", sts, "--steps", 4, "--eval-steps", 2,
        "--batch-size", 16, "--learning-rate", 1e-3,
    )  # fmt: skip
    assert result.exit_code == 0, result.exception
    shown = [line.split(":")[0] for line in result.stdout.splitlines() if "STSBenchmark validation" in line]
    assert shown == ["step 0", "step 2", "step 4"]
    assert "Trained with ptbert: 4 steps" in result.stdout
    modules = [type(module).__name__ for module in SentenceTransformer(str(output)).children()]
    assert modules == ["Transformer", "Pooling"]
    assert not (tmp_path / "trained-checkpoints").exists()


def test_without_a_terminal_there_are_lines(tiny_encoder, text, sts, tmp_path, monkeypatch):
    monkeypatch.setattr("sbert_flow.fitting.progress.SECONDS_BETWEEN_LINES", 0)
    output = tmp_path / "trained"
    result = run(
        tiny_encoder, "--text", text, "--output", output, "--sts", sts, "--steps", 4, "--eval-steps", 2,
        "--batch-size", 16,
    )  # fmt: skip
    lines = [line for line in result.stderr.splitlines() if line.startswith("Training: ")]
    assert [line.split(",")[0] for line in lines] == [f"Training: {step} of 4" for step in range(1, 5)]
    assert "steps/s" in lines[0] and ", score " in lines[-1]


def test_a_home_folder_that_the_shell_left_unexpanded(tiny_encoder, text, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    result = run(tiny_encoder, "--text", text, "--output=~/trained", "--steps", 1, "--batch-size", 16)
    assert result.exit_code == 0, result.exception
    assert (tmp_path / "trained" / "modules.json").is_file() and not (tmp_path / "trained-checkpoints").exists()


@pytest.mark.parametrize("pooling", [[], ["--pooling", "mean"]])
def test_static_embeddings(pooling, tiny_encoder, text, tmp_path):
    static = SentenceTransformer(modules=[StaticEmbedding(AutoTokenizer.from_pretrained(tiny_encoder), None, 8)])
    static.save_pretrained(str(tmp_path / "static"))
    result = run(tmp_path / "static", "--text", text, "--output", tmp_path / "trained", "--batch-size", 16, *pooling)
    assert isinstance(result.exception, ValueError) and "StaticEmbedding" in str(result.exception)
    assert not (tmp_path / "trained-checkpoints").exists()


def test_resumes_after_an_interruption(tiny_encoder, text, sentences, tmp_path, monkeypatch):
    options = ("--text", text, "--output", tmp_path / "trained", "--steps", 4, "--eval-steps", 2, "--batch-size", 16)
    monkeypatch.setattr("sbert_flow.modules.save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    stopped = run(tiny_encoder, *options)
    assert stopped.exit_code == 130
    assert "trained-checkpoints/checkpoint-4 keeps what was done; the same command with --resume" in stopped.stderr
    monkeypatch.undo()
    again = run(tiny_encoder, *options)
    assert isinstance(again.exception, FileExistsError) and "checkpoints of an earlier training" in str(
        again.exception
    )
    resumed = run(tiny_encoder, *options, "--resume")
    assert resumed.exit_code == 0, resumed.exception
    assert (tmp_path / "trained" / "modules.json").is_file()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (["--text", "missing.txt"], FileNotFoundError, "no such file: missing.txt"),
        (["--recipe", "bert"], ValueError, "recipe must be one of"),
        (["--pooling", "first-last"], ValueError, "begin with Transformer and Pooling"),
        (["--sts", "nowhere"], FileNotFoundError, "no folder nowhere"),
        (["--resume"], FileNotFoundError, "no checkpoint to resume from"),
    ],
)
def test_errors_before_any_training(options, kind, message, tiny_encoder, text, tmp_path):
    result = run(tiny_encoder, "--text", text, "--output", tmp_path / "trained", "--batch-size", 16, *options)
    assert isinstance(result.exception, kind) and message in str(result.exception)
    assert not (tmp_path / "trained").exists()
