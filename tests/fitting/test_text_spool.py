from __future__ import annotations

import tracemalloc
from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_flow.fitting import text_spool
from sbert_flow.fitting.text_spool import TextSpool, spool_text


def spooled(sentences, folder, monkeypatch, bucket_rows=5, chunk_rows=3):
    monkeypatch.setattr(text_spool, "BUCKET_ROWS", bucket_rows)
    monkeypatch.setattr(text_spool, "CHUNK_ROWS", chunk_rows)
    summary = spool_text(iter(sentences), folder)
    return TextSpool(folder, summary["rows"], summary["digest"])


texts = st.lists(st.text(max_size=4), max_size=40)


@given(texts)
def test_first_occurrences_in_their_order(tmp_path_factory, sentences: list[str]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        spool = spooled(sentences, tmp_path_factory.mktemp("spool") / "text", monkeypatch)
    expected = list(dict.fromkeys(sentences))
    assert spool.read() == expected
    assert spool.read(1, 3) == expected[1:3]
    rows = list(range(len(expected)))[::-2]
    assert spool.read_rows(rows) == [expected[row] for row in rows]


def test_any_character_survives(tmp_path, monkeypatch) -> None:
    sentences = ["line\nbreak", "", "nul\0", "\ufeffmark", "\U0001f600", "\ufffd"]
    assert spooled(sentences, tmp_path / "text", monkeypatch).read() == sentences


def test_a_spool_of_before_with_surrogates_can_be_read(tmp_path, monkeypatch) -> None:
    spool = spooled(["a???b", "c"], tmp_path / "text", monkeypatch)
    text = tmp_path / "text" / "text.utf8"
    text.write_bytes(text.read_bytes().replace(b"???", "\ud800".encode("utf-8", "surrogatepass")))
    assert spool.read(1) == ["c"]
    assert spool.read(0, 1)[0].encode()


@pytest.mark.parametrize("other", [["b", "a"], ["a"], ["a", "b", "c"], ["ab", ""]])
def test_digest_knows_sentences_and_order(tmp_path, monkeypatch, other) -> None:
    first = spooled(["a", "b"], tmp_path / "1", monkeypatch)
    assert spooled(["a", "b", "a"], tmp_path / "2", monkeypatch).digest == first.digest
    assert spooled(other, tmp_path / "3", monkeypatch).digest != first.digest


def test_sizes_of_buckets_make_no_difference(tmp_path, monkeypatch) -> None:
    sentences = [f"{index * 7919 % 50}" for index in range(200)]
    one = spooled(sentences, tmp_path / "1", monkeypatch, bucket_rows=1000, chunk_rows=1000)
    many = spooled(sentences, tmp_path / "2", monkeypatch, bucket_rows=1, chunk_rows=7)
    assert (one.digest, one.read()) == (many.digest, many.read())


def test_memory_does_not_grow_with_duplicates(tmp_path, monkeypatch) -> None:
    few = [f"sentence {index}" for index in range(100)]
    sentences = chain(few, repeat("x" * 200, 50_000), ["last"])  # 10 MB of text, 1.2 MB of hashes
    tracemalloc.start()
    try:
        spool = spooled(sentences, tmp_path / "text", monkeypatch, bucket_rows=1000, chunk_rows=1000)
        assert tracemalloc.get_traced_memory()[1] < 600_000
        tracemalloc.reset_peak()
        assert spool.read() == [*few, "x" * 200, "last"]
        assert tracemalloc.get_traced_memory()[1] < 600_000
    finally:
        tracemalloc.stop()


def test_nothing_else_is_left(tmp_path, monkeypatch) -> None:
    spooled(["a", "b", "a"] * 10, tmp_path / "text", monkeypatch)
    assert sorted(path.name for path in (tmp_path / "text").iterdir()) == ["spans.npy", "text.json", "text.utf8"]
