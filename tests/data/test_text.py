from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbert_flow.data import read_sentences

ROWS = [
    {"id": 1, "sentence1": "One boat.", "sentence2": "Två båtar."},
    {"id": 2, "sentence1": " Three ", "sentence2": None},
]
EXPECTED = ["One boat.", "Två båtar.", "Three"]  # empty and missing fields are left out


def write(folder, ending):
    path = folder / f"text{ending}"
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif ending == ".jsonl":
        path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n\n", "utf-8")
    elif ending == ".txt":
        path.write_text("\ufeffOne boat.\n\n  Två båtar.\r\nThree\n", "utf-8")
    else:
        comma = "\t" if ending == ".tsv" else ","
        lines = [comma.join(["id", "sentence1", "sentence2"]), comma.join(["1", "One boat.", "Två båtar."])]
        path.write_text("\n".join([*lines, comma.join(["2", " Three ", ""])]) + "\n", "utf-8")
    return path


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".csv", ".tsv", ".parquet"])
def test_every_format(tmp_path, ending):
    path = write(tmp_path, ending)
    assert list(read_sentences(path)) == EXPECTED
    assert list(read_sentences([str(path), path])) == EXPECTED * 2


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_named_columns(tmp_path, ending):
    path = write(tmp_path, ending)
    assert list(read_sentences(path, columns=["sentence1"])) == ["One boat.", "Three"]
    with pytest.raises(ValueError, match=r"row \d: no column 'body'. Its columns: id, sentence1, sentence2"):
        list(read_sentences(path, columns=["body"]))


def test_a_stream_is_not_read_ahead(tmp_path):
    path = tmp_path / "long.txt"
    path.write_bytes(b"first\n" + b"second\n" * 10 + b"\xff\xfe\n")
    stream = read_sentences(path)
    assert next(stream) == "first"
    with pytest.raises(ValueError, match=r"long\.txt, line 12: not UTF-8"):
        list(stream)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": ', "line 2: not JSON"),
        ("b.jsonl", b'["x"]\n', "line 1: must be a JSON object"),
        ("c.jsonl", b'{"text": 3}\n', "row 1: column 'text' holds 3, not text"),
        ("d.csv", b"a,b\n1,2\n", "no column that is known to hold text. Its columns: a, b"),
        ("d1.csv", b"text\nHello, world, again\n", "line 2: has not as many fields as the first line has names"),
        ("d2.csv", b'text,b\n"no end,1\n', r"d2\.csv, near line \d: malformed"),
        ("d3.csv", b"", "d3.csv is empty"),
        ("d4.tsv", b"text\tb\nonly one\n", "line 2: has not as many fields"),
        ("d5.csv", b"text\n" + b"x" * 200_000 + b"\n", "near line .: malformed .field larger than field limit"),
        ("e.parquet", b"PAR1 not really", "not a Parquet file, or damaged"),
        ("f.txt", "näher".encode("latin-1"), "not UTF-8.*Convert the file to UTF-8"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(read_sentences(tmp_path / name))


def test_what_is_missing_is_said_before_anything_is_read(tmp_path):
    path = write(tmp_path, ".txt")
    for missing in ("none.txt", "./none", str(tmp_path / "none"), tmp_path):
        with pytest.raises(FileNotFoundError):
            read_sentences([path, missing])
    with pytest.raises(FileNotFoundError, match="neither a file nor a dataset that can be read from the hub"):
        read_sentences("acme/no-such-dataset")


def test_quotes_in_tsv_are_characters(tmp_path):
    (tmp_path / "a.tsv").write_text('text\tb\n"Hello there\tx\nlast "quote"\ty\n', "utf-8")
    assert list(read_sentences(tmp_path / "a.tsv")) == ['"Hello there', 'last "quote"']


def test_quotes_in_csv_hold_commas(tmp_path):
    (tmp_path / "a.csv").write_text('text\n"Hello, world"\n', "utf-8")
    assert list(read_sentences(tmp_path / "a.csv")) == ["Hello, world"]


def test_json_is_json_lines(tmp_path):
    (tmp_path / "a.json").write_text('{"text": "hi"}\n{"text": "line\u2028separator"}\n', "utf-8")
    assert list(read_sentences(tmp_path / "a.json")) == ["hi", "line\u2028separator"]


def test_hub_ids_may_have_a_dot(monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", lambda *args, **kwargs: iter([{"text": "hi"}]))
    assert list(read_sentences("acme/corpus-v1.5")) == ["hi"]


def test_hub_dataset(monkeypatch):
    def load_dataset(name, subset, split, streaming):
        assert (name, subset, split, streaming) == ("acme/nli", "pair", "train", True)
        return iter([{"premise": "A.", "hypothesis": "B.", "label": 0}])

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    assert list(read_sentences("acme/nli", subset="pair")) == ["A.", "B."]
