from __future__ import annotations

import csv
import io
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from sbert_flow import build_model, fit_flow, fit_whitening
from sbert_flow.cli import app
from sbert_flow.data import SentencePairs, sample_pairs
from sbert_flow.evaluation import tables
from sbert_flow.evaluation.compare import METHODS, Comparison, compare
from sbert_flow.evaluation.quoted import quoted_rows
from sbert_flow.fitting.store import EmbeddingStore
from sbert_flow.modules.pipeline import encoder_before_map
from sbert_flow.modules.pooling import pooling_modules


def named(name: str, part: slice = slice(None)) -> SentencePairs:
    pairs = sample_pairs()
    subsets = ["odd" if i % 2 else "even" for i in range(len(pairs.scores[part]))]
    return SentencePairs(name, pairs.sentences1[part], pairs.sentences2[part], pairs.scores[part], subsets)


def sentences_of(tasks: list[SentencePairs]) -> list[str]:
    return list(dict.fromkeys(sentence for pairs in tasks for sentence in pairs.sentences))


def spearman(first: np.ndarray, second: np.ndarray, scores: list[float]) -> float:
    cosine = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    return spearmanr(cosine, scores)[0]


@pytest.fixture(scope="module")
def tasks():
    return [named("STS12", slice(0, 120)), named("STS13", slice(120, None))]


@pytest.fixture(scope="module")
def comparison(tiny_encoder, tasks) -> Comparison:
    return compare(tiny_encoder, tasks, poolings=["mean", "layer:1"], k=8)


def test_has_every_pooling_method_and_task(comparison):
    assert [(row.pooling, row.method) for row in comparison.rows] == [
        (pooling, method) for pooling in ("mean", "layer:1") for method in METHODS
    ]
    assert {*METHODS} > {"raw", "whitening", "whitening-k", "noise", "paper", "surface"}
    assert all(list(row.scores) == ["STS12", "STS13"] for row in comparison.rows)


@pytest.mark.parametrize("pooling", ["mean", "layer:1"])
def test_rows_are_what_the_models_score_by_themselves(comparison, tiny_encoder, tasks, pooling):
    model = build_model(tiny_encoder, pooling, "whitening")
    fit_whitening(model, sentences_of(tasks), show_progress_bar=False)
    for method, alone in {"whitening": model, "raw": encoder_before_map(model)}.items():
        for pairs in tasks:
            first, second = (alone.encode(side) for side in (pairs.sentences1, pairs.sentences2))
            score = comparison.row(pooling, method).scores[pairs.name].spearman
            assert score == pytest.approx(spearman(first, second, pairs.scores), abs=2e-3)


def test_flow_rows_come_from_fit_flow_and_the_store_is_kept(tiny_encoder, tasks, tmp_path):
    result = compare(tiny_encoder, tasks, poolings=["mean"], methods=["noise"], store=tmp_path, seed=3)
    text = sentences_of(tasks)
    transformer = SentenceTransformer(tiny_encoder)[0]
    stored = EmbeddingStore.open(tmp_path, text).embed_poolings(
        transformer, {"mean": pooling_modules(transformer, "mean")}, device="cpu"
    )["mean"]
    layer = fit_flow(embeddings=np.array(stored.array), seed=3, show_progress_bar=False).layer
    z = dict(zip(text, layer.outputs(np.array(stored.array)).numpy(), strict=True))
    for pairs in tasks:
        first, second = (np.stack([z[s] for s in side]) for side in (pairs.sentences1, pairs.sentences2))
        score = result.rows[0].scores[pairs.name].spearman
        assert score == pytest.approx(spearman(first, second, pairs.scores), abs=2e-3)


def test_each_sentence_passes_the_encoder_once(tiny_encoder, tasks, monkeypatch):
    seen = []
    original = Transformer.forward
    monkeypatch.setattr(
        Transformer,
        "forward",
        lambda self, f, **kwargs: (seen.append(len(f["input_ids"])), original(self, f, **kwargs))[1],
    )
    result = compare(tiny_encoder, tasks, poolings=["mean", "cls", "layer:0"])
    assert sum(seen) == result.encoded
    text = sentences_of(tasks)
    assert result.encoded > len(text)  # the edited sentences of the surface recipes too
    seen.clear()
    plain = compare(tiny_encoder, tasks, poolings=["mean", "cls"], methods=["raw", "noise"])
    assert sum(seen) == plain.encoded == len(text)


def test_a_map_for_each_task_is_fitted_on_its_sentences_alone(tiny_encoder, tasks):
    both = compare(tiny_encoder, tasks, poolings=["mean"], methods=["whitening"], each_task=True)
    alone = compare(tiny_encoder, tasks[:1], poolings=["mean"], methods=["whitening"])
    other = compare(tiny_encoder, tasks, poolings=["mean"], methods=["whitening"])
    score = both.rows[0].scores["STS12"].spearman
    assert score == pytest.approx(alone.rows[0].scores["STS12"].spearman, abs=1e-3)
    assert score != pytest.approx(other.rows[0].scores["STS12"].spearman, abs=1e-3)


def test_measures_and_figures_describe_the_space(comparison):
    for pooling in ("mean", "layer:1"):
        raw, white = comparison.row(pooling, "raw"), comparison.row(pooling, "whitening")
        assert raw.mean_cosine > 0.3 > abs(white.mean_cosine)
        assert white.effective_rank > raw.effective_rank
        assert comparison.row(pooling, "whitening-k").effective_rank <= 8
    for row in comparison.rows:
        assert row.histogram.sum() == pytest.approx(1) and row.spectrum.sum() == pytest.approx(1)


def test_tables_say_the_same(comparison):
    quoted = quoted_rows("all")
    content = json.loads(json.dumps(tables.as_json(comparison, quoted)))
    assert content["rows"][0]["scores"]["STS12"]["spearman"] == comparison.rows[0].scores["STS12"].spearman
    lines = list(csv.DictReader(io.StringIO(tables.as_csv(comparison, quoted))))
    assert float(lines[0]["STS13"]) == pytest.approx(100 * comparison.rows[0].scores["STS13"].spearman, abs=0.006)
    assert lines[-1]["pooling"] == "quoted: BERT-base" and lines[-1]["STS12"] == "58.40"
    markdown = tables.as_markdown(comparison, quoted)
    assert markdown.count("**") == 4 and "whitening 8" in markdown
    best = max((row for row in comparison.rows if row.pooling == "mean"), key=lambda row: row.average)
    [bold] = [line for line in markdown.splitlines() if "**" in line and line.startswith("| mean ")]
    assert f"**{100 * best.average:.2f}**" in bold


def test_quoted_rows_are_those_of_the_aggregation():
    assert {row.aggregation for row in quoted_rows("wmean")} == {"wmean"}
    assert quoted_rows("mean") == []
    flow = next(row for row in quoted_rows("wmean") if row.method == "flow, target text")
    assert flow.spearman == {
        "STSBenchmark": 70.72, "SICK-R": 63.11, "STS12": 63.48, "STS13": 72.14, "STS14": 68.42, "STS15": 73.77,
        "STS16": 75.37,
    }  # fmt: skip


def test_an_encoder_without_token_states(tasks):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = sorted({w for pairs in tasks for s in pairs.sentences for w in s.split()})
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["[UNK]", *words])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    weights = np.random.default_rng(0).normal(1, 1, (len(words) + 1, 16)).astype("f")
    encoder = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=weights)])
    result = compare(encoder, tasks, poolings=["mean"], methods=["raw", "noise"])
    assert result.row("mean", "noise").mean_cosine < result.row("mean", "raw").mean_cosine


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": ["bleach"]}, "method must be one of raw"),
        ({"methods": []}, "at least one"),
        ({"poolings": ["mean", "mean"]}, "different names"),
        ({"poolings": ["layer:9"]}, "out of range"),
        ({"aggregation": "median"}, "all, mean, wmean"),
        ({"text": ["a"], "each_task": True}, "leave the text out"),
        ({"text": ["a b c d"], "methods": ["noise"]}, "at least 16"),
    ],
)
def test_bad_arguments(tiny_encoder, tasks, arguments, message):
    with pytest.raises(ValueError, match=message):
        compare(tiny_encoder, tasks, **{"poolings": ["mean"], **arguments})


def write_tasks(folder, tasks):
    for pairs in tasks:
        (folder / pairs.name).mkdir(parents=True)
        rows = zip(pairs.sentences1, pairs.sentences2, pairs.scores, pairs.subsets, strict=True)
        lines = [
            json.dumps({"sentence1": a, "sentence2": b, "score": y, "subset": subset}) for a, b, y, subset in rows
        ]
        (folder / pairs.name / "test.jsonl").write_text("\n".join(lines))
    return str(folder)


def test_command_writes_all_its_files(tiny_encoder, tasks, tmp_path):
    app(
        ["compare", tiny_encoder, "--sts", write_tasks(tmp_path / "sts", tasks), "--pooling", "mean",
         "--pooling", "cls", "--method", "raw", "--method", "whitening", "--aggregation", "wmean", "--quoted",
         "--output", str(tmp_path / "out")],
        standalone_mode=False,
    )  # fmt: skip
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"comparison.{ending}" for ending in ("json", "csv", "md", "png")
    }
    assert (tmp_path / "out" / "comparison.png").read_bytes().startswith(b"\x89PNG")
    table = (tmp_path / "out" / "comparison.md").read_text()
    assert "quoted: BERT-large" in table
    assert Path(tiny_encoder).name in table and tiny_encoder not in table  # others need not know where it lay


@pytest.mark.parametrize(
    ("terminal", "width", "tasks_shown"), [(False, 30, True), (True, 30, False), (True, 200, True)]
)
def test_no_figure_is_cut_in_a_narrow_terminal(comparison, terminal, width, tasks_shown):
    from rich.console import Console

    from sbert_flow.cli.compare import _show

    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    _show(console, *tables.table(comparison, []), tables.caption(comparison))
    shown = f"{100 * comparison.rows[0].scores['STS12'].spearman:.2f}"
    assert (shown in out.getvalue()) is tasks_shown
    assert ("too narrow" in out.getvalue()) is not tasks_shown


def test_missing_matplotlib_gives_the_pip_line(comparison, tmp_path, monkeypatch):
    from sbert_flow.evaluation.plots import plot_comparison

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'sbert-flow\[plot\]'"):
        plot_comparison(comparison, tmp_path / "x.png")


def test_text_of_another_domain_gives_one_warning(tiny_encoder, tasks):
    code = [f"def f{i}(x): return x[{i}] * {i % 7} + y{i % 5} ** {i % 3}" for i in range(300)]
    with pytest.warns(UserWarning, match=r"surface on mean \d.*another domain") as caught:
        result = compare(tiny_encoder, tasks, code, poolings=["mean"], methods=["raw", "surface", "mix"])
    assert sum("another domain" in str(warning.message) for warning in caught) == 1
    assert result.row("mean", "raw").shift is None and result.row("mean", "surface").shift.large


def test_text_of_the_same_domain_gives_none(tiny_encoder, tasks):
    sentences = sentences_of(tasks)
    half = [SentencePairs(p.name, p.sentences1[::2], p.sentences2[::2], p.scores[::2], p.subsets[::2]) for p in tasks]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        result = compare(tiny_encoder, half, sentences, poolings=["mean"], methods=["surface"])
    assert abs(result.row("mean", "surface").shift.bits_per_dimension) < 0.1
    assert compare(tiny_encoder, half, poolings=["mean"], methods=["surface"]).rows[0].shift is None
