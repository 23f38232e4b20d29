from __future__ import annotations

import json
from collections import Counter
from functools import cache

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from sbert_flow import build_model, fit_flow
from sbert_flow.cli import app
from sbert_flow.data import SentencePairs, sample_pairs
from sbert_flow.evaluation import report
from sbert_flow.evaluation.analyze import analyze
from sbert_flow.evaluation.lexical import EntailmentPairs, auc, edit_distance, read_entailment
from sbert_flow.evaluation.words import count_tokens, frequency_bins, word_embeddings
from sbert_flow.modules import save
from sbert_flow.modules.pipeline import encoder_before_map


def textbook_distance(first: str, second: str) -> int:
    """Levenshtein's recursion as it stands in textbooks."""

    @cache
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        same = first[i - 1] == second[j - 1]
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, distance(i - 1, j - 1) + (not same))

    return distance(len(first), len(second))


def test_edit_distance_is_levenshteins():
    assert edit_distance("kitten", "sitting") == 3
    rng = np.random.default_rng(0)
    for _ in range(200):
        a, b = ("".join(rng.choice(list("abcä𝄞"), rng.integers(0, 12))) for _ in range(2))
        assert edit_distance(a, b) == edit_distance(b, a) == textbook_distance(a, b)


def test_auc_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 300)
    values = np.round(labels + rng.normal(size=300), 1)  # with ties
    assert auc(values, labels.tolist()) == pytest.approx(roc_auc_score(labels, values))


def test_bins_measure_norms_and_neighbours():
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(700, 8)).astype("f") * np.linspace(1, 3, 700)[:, None].astype("f")
    tokens = [f"w{i}" for i in range(700)]
    bins = frequency_bins(embeddings, tokens)
    assert [(part.first, part.last) for part in bins] == [(0, 99), (100, 499), (500, 699)]
    assert bins[0].norm == pytest.approx(np.linalg.norm(embeddings[:100], axis=1).mean(), rel=1e-5)
    nearest = NearestNeighbors(n_neighbors=8).fit(embeddings).kneighbors(embeddings[:100])[0][:, 1:]
    for k in (3, 5, 7):
        assert bins[0].distance[k] == pytest.approx(nearest[:, :k].mean(), rel=1e-3)
    turned = frequency_bins(embeddings, tokens, Counter({f"w{i}": i for i in range(700)}))
    assert turned[0].norm > turned[1].norm > turned[2].norm
    assert turned[-1].last == 698  # w0 does not occur
    with pytest.raises(ValueError, match="at least 16 words"):
        frequency_bins(embeddings, tokens, Counter({"w1": 3}))


def test_word_embeddings_leave_special_tokens_out(tiny_encoder):
    model = build_model(tiny_encoder)
    embeddings, tokens = word_embeddings(model)
    assert len(embeddings) == len(tokens) and not {"[PAD]", "[CLS]", "[MASK]"} & set(tokens)
    table = model[0].model.get_input_embeddings().weight.detach().numpy()
    index = model.tokenizer.get_vocab()[tokens[7]]
    np.testing.assert_array_equal(embeddings[7], table[index])
    assert count_tokens(model, ["the the a"])["the"] == 2


@pytest.fixture(scope="module")
def model(tiny_encoder, sentences):
    model = build_model(tiny_encoder)
    fit_flow(model, sentences, recipe="noise", show_progress_bar=False)
    return model


@pytest.fixture(scope="module")
def task() -> SentencePairs:
    pairs = sample_pairs()
    return SentencePairs("STSBenchmark", pairs.sentences1, pairs.sentences2, pairs.scores)


@pytest.fixture(scope="module")
def entailment(task) -> EntailmentPairs:
    return EntailmentPairs(task.sentences1[:40], task.sentences2[:40], [1, 0] * 20)


def test_spaces_are_those_of_the_model_with_and_without_the_map(model, task, entailment):
    analysis = analyze(model, [task], entailment=entailment)
    edits = [textbook_distance(a, b) for a, b in zip(task.sentences1, task.sentences2, strict=True)]
    assert analysis.human_edit == pytest.approx(spearmanr(task.scores, edits)[0])
    for name, alone in {"before": encoder_before_map(model), "after": model}.items():
        first, second = (alone.encode(side) for side in (task.sentences1, task.sentences2))
        cosine = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
        space = analysis.spaces[name]
        np.testing.assert_allclose(space.similarities, cosine, atol=1e-4)
        assert space.human == pytest.approx(spearmanr(cosine, task.scores)[0], abs=2e-3)
        assert space.edit == pytest.approx(spearmanr(cosine, edits)[0], abs=2e-3)
        assert space.qnli_auc == pytest.approx(roc_auc_score([1, 0] * 20, cosine[:40]), abs=1e-2)
    assert analysis.spaces["after"].mean_cosine < analysis.spaces["before"].mean_cosine


def test_a_model_without_a_map_has_one_space(model, task):
    assert list(analyze(encoder_before_map(model), [task]).spaces) == ["embeddings"]


def test_the_report_holds_its_figures_and_escapes_names(model, task, entailment):
    analysis = analyze(model, [task], entailment=entailment)
    page = report.as_html(analysis, "<b>model</b>", b"png")
    assert "&lt;b&gt;model" in page and "<b>model" not in page
    assert "data:image/png;base64," in page and "http" not in page
    text = report.as_markdown(analysis, "model")
    for value in (f"{analysis.spaces['after'].mean_cosine:.3f}", f"{100 * analysis.spaces['before'].qnli_auc:.1f}"):
        assert value in page and value in text
    assert "AUC" not in report.as_markdown(analyze(model, [task]), "model")


def test_command(model, task, tmp_path):
    (tmp_path / "sts" / "STSBenchmark").mkdir(parents=True)
    rows = zip(task.sentences1, task.sentences2, task.scores, strict=True)
    lines = [json.dumps({"sentence1": a, "sentence2": b, "score": y}) for a, b, y in rows]
    (tmp_path / "sts" / "STSBenchmark" / "test.jsonl").write_text("\n".join(lines))
    save(model, tmp_path / "model")
    app(
        ["analyze", str(tmp_path / "model"), "--sts", str(tmp_path / "sts"), "--output", str(tmp_path / "out")],
        standalone_mode=False,
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "report.md", "report.png"}


QNLI = [{"question": "q", "sentence": "s", "label": "entailment"}, {"question": "q", "sentence": "t", "label": 0}]


def test_entailment_files(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, QNLI)))
    (tmp_path / "a.tsv").write_text(
        'index\tquestion\tsentence\tlabel\n0\tq\t"s\tentailment\n1\tq\tt\tnot_entailment\n'
    )
    assert read_entailment(tmp_path / "a.jsonl").entailed == [1, 0]
    assert read_entailment(tmp_path / "a.tsv").sentences == ['"s', "t"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}\n", "line 1: needs question"),
        (json.dumps(QNLI[0]) + "\nnot json", "line 2: not JSON"),
        (json.dumps({**QNLI[0], "label": "maybe"}), "line 1: needs"),
        (json.dumps({**QNLI[0], "question": 3}), "must be strings"),
        (json.dumps(QNLI[0]), "both labels"),
    ],
)
def test_bad_entailment_files(tmp_path, content, message):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_entailment(tmp_path / "a.jsonl")


def test_missing_entailment_data(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_entailment(tmp_path / "none.jsonl")
    with pytest.raises(OSError, match="glue"):
        read_entailment("hub")  # offline


def test_bad_input(model, task):
    with pytest.raises(ValueError, match="at least one task"):
        analyze(model, [])
    flat = SentencePairs("STS12", task.sentences1, task.sentences2, [1.0] * len(task))
    with pytest.raises(ValueError, match="are equal"):
        analyze(model, [flat])
