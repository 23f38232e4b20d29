from __future__ import annotations

import json

import pytest

from sbert_flow.data import read_sts, sample_pairs, sample_sentences


def write(folder, task, rows, split="test"):
    (folder / task).mkdir(exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / task / f"{split}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


def row(score, **more):
    return {"sentence1": "a", "sentence2": "b", "score": score, **more}


def test_tasks_that_are_there(tmp_path):
    write(tmp_path, "STS12", [row(1, subset="x"), row(2.5, subset="y")])
    write(tmp_path, "SICK-R", [row(4), row(3)])
    write(tmp_path, "SICK-R", [row(5), row(0)], split="validation")
    with pytest.warns(UserWarning, match="no test split of STS13, .* averages are over 2 of the 7 tasks"):
        tasks = read_sts(tmp_path)
    assert [t.name for t in tasks] == ["STS12", "SICK-R"]
    assert tasks[0].scores == [1.0, 2.5] and tasks[0].subsets == ["x", "y"] and tasks[0].sentences == ["a", "b"]
    assert read_sts(tmp_path, ["SICK-R"], "validation")[0].scores == [5.0, 0.0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(1), "{"], r"test\.jsonl, line 2: not JSON"),
        ([row(1), {"sentence1": "a", "score": 1}], "line 2: needs .* lacks sentence2"),
        ([row(1), row("high")], "line 2: score must be a number, but is 'high'"),
        ([row(1), row(None)], "line 2: score must be a number, but is None"),
        ([row(1), row(float("nan"))], "score must be a number, but is nan"),
        ([row(1), {**row(2), "sentence1": 5}], "line 2: sentence1 and sentence2 must be strings"),
        ([row(1), {**row(2), "sentence1": "half: \ud800"}], "line 2: a sentence holds a surrogate"),
        ([row(3), row(3)], "needs at least two different scores"),
    ],
)
def test_bad_lines(tmp_path, rows, message):
    write(tmp_path, "STS12", rows)
    with pytest.raises(ValueError, match=message):
        read_sts(tmp_path, ["STS12"])


def test_missing_and_unknown(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_sts(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"holds no <TASK>/test.jsonl"):
        read_sts(tmp_path)
    write(tmp_path, "STS12", [row(1), row(2)])
    with pytest.raises(FileNotFoundError, match=r"Splits of STS12 that are there: test"):
        read_sts(tmp_path, ["STS12"], "train")
    with pytest.raises(ValueError, match=r"task must be one of STS12.*but got 'STS99'"):
        read_sts(tmp_path, ["STS99"])


def test_samples_are_what_the_documentation_says():
    pairs, sentences = sample_pairs(), sample_sentences()
    assert len(pairs) >= 150 and len(sentences) >= 600
    assert all(0 <= score <= 5 for score in pairs.scores)
    everything = [*pairs.sentences, *sentences]
    assert len(set(everything)) == len(everything)
    assert all(s == s.strip() and s for s in everything)


def test_encoding_of_the_file(tmp_path):
    (tmp_path / "STS12").mkdir()
    path = tmp_path / "STS12" / "test.jsonl"
    lines = [json.dumps(row(k, sentence1="a\u2028b"), ensure_ascii=False) for k in (1, 2)]
    path.write_text("\ufeff" + "\n".join(lines), "utf-8")
    assert read_sts(tmp_path, ["STS12"])[0].sentences1 == ["a\u2028b"] * 2
    path.write_bytes("näher".encode("latin-1"))
    with pytest.raises(ValueError, match=r"test\.jsonl, line 1: not UTF-8"):
        read_sts(tmp_path, ["STS12"])
