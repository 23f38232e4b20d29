"""The STS suite against scipy, by hand, and inside the library's training loops."""

from __future__ import annotations

import json

import numpy as np
import pytest
from datasets import Dataset
from scipy.stats import pearsonr, spearmanr
from sentence_transformers import (
    InputExample,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from torch.utils.data import DataLoader

from sbert_flow import FlowNLLLoss, build_model
from sbert_flow.data import SentencePairs, sample_pairs
from sbert_flow.evaluation import STSSuite, evaluate_sts
from sbert_flow.evaluation.sts import bootstrap_interval


class CountingEncoder:
    """Stands for a SentenceTransformer: a fixed random vector for each sentence."""

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def encode(self, sentences, **kwargs):
        self.encoded += sentences
        return np.stack([np.random.default_rng(sum(map(ord, s))).normal(size=8) for s in sentences])

    class model_card_data:
        @staticmethod
        def set_evaluation_metrics(*args):
            pass


def cosines(pairs: SentencePairs) -> np.ndarray:
    first, second = (CountingEncoder().encode(side) for side in (pairs.sentences1, pairs.sentences2))
    return (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)


def make_task(name: str, subsets: list[str] | None = None, n: int = 60, seed: int = 0) -> SentencePairs:
    rng = np.random.default_rng(seed)
    words = [f"word{i}" for i in range(40)]
    sides = [[" ".join(rng.choice(words, 3)) for _ in range(n)] for _ in range(2)]
    marks = [subsets[i % len(subsets)] if i % 5 else subsets[0] for i in range(n)] if subsets else []
    return SentencePairs(name, *sides, rng.integers(0, 6, n).astype(float).tolist(), marks)


def test_correlations_are_those_of_scipy():
    pairs = make_task("STS12", ["a", "b", "c"])
    score = STSSuite([pairs]).score(CountingEncoder())["STS12"]
    x, y = cosines(pairs), np.array(pairs.scores)
    assert score.spearman == pytest.approx(spearmanr(x, y)[0], abs=1e-6)
    assert score.pearson == pytest.approx(pearsonr(x, y)[0], abs=1e-6)
    marks = np.array(pairs.subsets)
    each = {mark: spearmanr(x[marks == mark], y[marks == mark])[0] for mark in "abc"}
    assert score.mean == pytest.approx(np.mean(list(each.values())), abs=1e-6)
    weighted = sum(each[mark] * (marks == mark).sum() for mark in "abc") / len(marks)
    assert score.wmean == pytest.approx(weighted, abs=1e-6)
    assert len({round(v, 4) for v in (score.spearman, score.mean, score.wmean)}) == 3  # they are different things


def test_each_sentence_of_all_tasks_is_encoded_once():
    encoder = CountingEncoder()
    shared = make_task("STS12")
    STSSuite([shared, SentencePairs("STS13", shared.sentences2, shared.sentences1, shared.scores)]).score(encoder)
    assert sorted(encoder.encoded) == sorted(set(shared.sentences))


def test_benchmark_and_sick_are_one_correlation_under_every_aggregation():
    tasks = [make_task("STSBenchmark", ["a", "b"]), make_task("SICK-R", seed=1)]
    suite = STSSuite(tasks, aggregation="wmean")
    for score in suite.score(CountingEncoder()).values():
        assert score.mean == score.wmean == score.spearman


def test_aggregations_need_subsets():
    with pytest.raises(ValueError, match="STS12 does not give"):
        STSSuite([make_task("STS12")], aggregation="mean")
    score = STSSuite([make_task("STS12")]).score(CountingEncoder())["STS12"]
    with pytest.raises(ValueError, match="'wmean' needs the subset"):
        score.aggregated("wmean")
    with pytest.raises(ValueError, match="all, mean, wmean"):
        score.aggregated("median")


def test_a_subset_of_equal_scores_costs_only_the_means():
    pairs = make_task("STS12", ["a", "b"])
    flat = [1.0 if mark == "b" else score for mark, score in zip(pairs.subsets, pairs.scores, strict=True)]
    flat_pairs = SentencePairs("STS12", pairs.sentences1, pairs.sentences2, flat, pairs.subsets)
    score = STSSuite([flat_pairs]).score(CountingEncoder())["STS12"]
    assert score.mean is None and np.isfinite(score.spearman)
    with pytest.raises(ValueError, match=r"STS12\.b"):
        STSSuite([flat_pairs], aggregation="mean").score(CountingEncoder())


def test_names_must_differ():
    with pytest.raises(ValueError, match="different names"):
        STSSuite([make_task("STS12"), make_task("STS12")])
    with pytest.raises(ValueError, match="at least one"):
        STSSuite([])


def test_equal_similarities_are_an_error_not_nan():
    class Constant(CountingEncoder):
        def encode(self, sentences, **kwargs):
            return np.ones((len(sentences), 4), dtype="f")

    with pytest.raises(ValueError, match="undefined"):
        STSSuite([make_task("STS12")]).score(Constant())


def test_bootstrap_interval_has_the_width_theory_gives():
    rng = np.random.default_rng(0)
    n, rho = 600, 0.6
    angle = rng.normal(size=n)
    names = [[f"{side}{i}" for i in range(n)] for side in "ab"]
    # Cosine to a fixed direction that grows with the score plus noise: a known correlation.
    cosine = np.tanh(rho * angle + np.sqrt(1 - rho**2) * rng.normal(size=n))
    embeddings = {a: np.array([1.0, 0.0], "f") for a in names[0]}
    embeddings |= {b: np.array([c, np.sqrt(1 - c * c)], "f") for b, c in zip(names[1], cosine, strict=True)}
    low, high = bootstrap_interval(SentencePairs("t", *names, angle.tolist()), embeddings)
    r = spearmanr(cosine, angle)[0]
    half = 1.96 * np.sqrt((1 + r * r / 2) / (n - 3))  # Bonett & Wright (2000), on Fisher's scale
    assert low == pytest.approx(np.tanh(np.arctanh(r) - half), abs=0.02)
    assert high == pytest.approx(np.tanh(np.arctanh(r) + half), abs=0.02)


def test_evaluate_sts_keeps_its_format_and_gives_more_on_demand():
    pairs = make_task("STS12", ["a", "b"])
    plain = evaluate_sts(CountingEncoder(), [pairs])
    assert plain["tasks"]["STS12"].keys() == {"pairs", "spearman"} and plain.keys() == {"tasks", "average"}
    more = evaluate_sts(CountingEncoder(), [pairs], detail=True, bootstrap=50)["tasks"]["STS12"]
    assert more["interval"][0] < more["spearman"] < more["interval"][1]
    json.dumps(more)


@pytest.fixture
def suite():
    pairs = sample_pairs()
    return STSSuite([SentencePairs("STS12", pairs.sentences1, pairs.sentences2, pairs.scores)])


def test_in_the_trainer(tiny_encoder, sentences, tmp_path, suite):
    model = build_model(tiny_encoder)
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path), max_steps=4, eval_strategy="steps", eval_steps=2, save_steps=2, use_cpu=True, report_to="none",
        load_best_model_at_end=True, metric_for_best_model="eval_sts_average", dataloader_pin_memory=False,
        per_device_train_batch_size=16, disable_tqdm=True,
    )  # fmt: skip
    loss = FlowNLLLoss(model, init_sentences=sentences[:64])
    trainer = SentenceTransformerTrainer(
        model, arguments, train_dataset=Dataset.from_dict({"text": sentences[:64]}), loss=loss, evaluator=suite
    )
    trainer.train()
    values = [entry["eval_sts_average"] for entry in trainer.state.log_history if "eval_sts_average" in entry]
    assert trainer.state.best_metric == max(values)
    assert evaluate_sts(model, suite.tasks)["average"] == pytest.approx(max(values), abs=1e-6)
    assert (tmp_path / "eval" / "similarity_evaluation_STS12_results.csv").is_file()


def test_in_fit_and_in_the_card(tiny_encoder, sentences, tmp_path, suite):
    model = build_model(tiny_encoder)
    loader = DataLoader([InputExample(texts=[s]) for s in sentences[:64]], batch_size=16)
    seen = []
    model.fit(
        [(loader, FlowNLLLoss(model, init_sentences=sentences[:64]))], evaluator=suite, epochs=1, warmup_steps=0,
        output_path=str(tmp_path / "best"), callback=lambda score, epoch, steps: seen.append(score),
        show_progress_bar=False,
    )  # fmt: skip
    assert len(seen) == 1
    card = (tmp_path / "best" / "README.md").read_text()
    # The library would print training sentences; text may be private.
    assert not any(sentence in card for sentence in sentences[:64] if len(sentence) > 20)
    assert "model-index" in card and "type: spearman_cosine" in card and "name: STS12" in card
    best = SentenceTransformer(str(tmp_path / "best"), trust_remote_code=True)
    assert suite(best)["sts_average"] == pytest.approx(seen[0], abs=1e-6)
