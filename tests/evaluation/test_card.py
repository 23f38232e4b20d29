from __future__ import annotations

import json

import pytest
from huggingface_hub import ModelCard

from sbert_flow import build_model, fit_flow, load
from sbert_flow.cli import app
from sbert_flow.data import sample_pairs
from sbert_flow.evaluation.card import write_scores
from sbert_flow.modules import save


@pytest.fixture
def folder(tiny_encoder, sentences, tmp_path):
    model = build_model(tiny_encoder)
    fit_flow(model, sentences, recipe="noise", show_progress_bar=False)
    return save(model, tmp_path / "model")


def scores(value: float) -> dict:
    return {"tasks": {"STS12": {"pairs": 3108, "spearman": value}}, "average": value}


def test_table_and_index_replace_earlier_ones(folder):
    write_scores(folder, scores(0.5), scores(0.6))
    write_scores(folder, scores(0.5), scores(0.7123))
    card = ModelCard.load(folder / "README.md")
    assert card.text.count("## Scores on semantic textual similarity") == 1
    assert "| STS12 | 3,108 | 50.00 | 71.23 |" in card.text
    assert card.text.index("## Scores") < card.text.index("## Training Details")
    [result] = card.data.eval_results
    assert (result.dataset_name, result.metric_type, result.metric_value) == ("STS12", "spearman_cosine", 0.7123)
    assert "bert-flow" in card.data.tags and "trust_remote_code=True" in card.text  # the rest is kept
    load(folder)


def test_the_command_writes_both_columns(folder, tmp_path):
    (tmp_path / "sts" / "STS12").mkdir(parents=True)
    pairs = sample_pairs()
    rows = zip(pairs.sentences1, pairs.sentences2, pairs.scores, strict=True)
    lines = [json.dumps({"sentence1": a, "sentence2": b, "score": y}) for a, b, y in rows]
    (tmp_path / "sts" / "STS12" / "test.jsonl").write_text("\n".join(lines))
    app(
        ["evaluate", str(folder), "--sts", str(tmp_path / "sts"), "--json", str(tmp_path / "scores.json"), "--card"],
        standalone_mode=False,
    )
    written = json.loads((tmp_path / "scores.json").read_text())
    assert written.keys() == {"model", "tasks", "average"}
    [line] = [x for x in (folder / "README.md").read_text().splitlines() if x.startswith("| STS12 | ")]
    before, after = map(float, line.strip("| ").split(" | ")[2:4])
    assert after == pytest.approx(100 * written["tasks"]["STS12"]["spearman"], abs=0.006) and before != after


def test_no_card(tmp_path):
    with pytest.raises(FileNotFoundError, match="no model card"):
        write_scores(tmp_path, scores(0.5), scores(0.6))


def test_training_text_stays_out_of_the_card(tiny_encoder, sentences, folder):
    text = (folder / "README.md").read_text()
    assert not any(sentence in text for sentence in sentences if len(sentence) > 20)


def test_the_card_says_what_the_map_was_fitted_on(tiny_encoder, sentences, tmp_path):
    (tmp_path / "news.txt").write_text("\n".join(sentences))
    cited = {"noise": "li-etal-2020-sentence", "whitening": "su-etal-2021-whitening"}
    for recipe, entry in cited.items():
        app(
            ["fit", tiny_encoder, "--text", str(tmp_path / "news.txt"), "--output", str(tmp_path / recipe),
             "--recipe", recipe],
            standalone_mode=False,
        )  # fmt: skip
        text = (tmp_path / recipe / "README.md").read_text()
        assert f"{len(set(sentences)):,} distinct sentences of news.txt" in text and str(tmp_path) not in text
        assert "index a vector store anew" in text
        assert [other for other in cited.values() if other in text] == [entry]
