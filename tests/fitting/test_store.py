from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from sbert_flow.fitting import embedding_set, files, fit_flow, matrix_file
from sbert_flow.fitting.embedding_set import EmbeddingSet
from sbert_flow.fitting.fingerprint import encoder_fingerprint
from sbert_flow.fitting.store import EmbeddingStore
from sbert_flow.modules.pooling import pooling_modules
from tests.fitting.quick_encoder import quick_encoder, quick_sentences

SENTENCES = quick_sentences(100)


@pytest.fixture
def encoder() -> SentenceTransformer:
    return quick_encoder()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddingStore:
    monkeypatch.setattr(embedding_set, "WINDOW_ROWS", 16)
    return EmbeddingStore.open(tmp_path / "store", iter(SENTENCES + SENTENCES[:50]))


def count_encoded(encoder: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    encoded: list[str] = []
    encode = type(encoder).encode

    def counting(self, texts, **kwargs):
        encoded.extend(texts)
        return encode(self, texts, **kwargs)

    monkeypatch.setattr(type(encoder), "encode", counting)
    return encoded


def test_holds_what_encode_gives(store, encoder) -> None:
    embeddings = store.embed(encoder)
    assert store.sentences() == SENTENCES
    np.testing.assert_array_equal(embeddings.array, encoder.encode(SENTENCES))
    assert embeddings.array.dtype == np.float32 and not embeddings.array.flags.writeable
    assert torch.equal(torch.cat(list(embeddings.blocks(7))), torch.from_numpy(encoder.encode(SENTENCES)))


def test_second_time_nothing_is_encoded(store, encoder, monkeypatch, tmp_path) -> None:
    key = store.embed(encoder).key
    encoded = count_encoded(encoder, monkeypatch)
    again = EmbeddingStore.open(tmp_path / "store", (s for s in SENTENCES))
    assert again.embed(quick_encoder()).key == key
    assert encoded == []


def test_other_text_or_encoder_is_another_set(store, encoder, tmp_path) -> None:
    keys = {
        store.embed(encoder).key,
        store.embed(quick_encoder(seed=1)).key,
        store.embed(encoder, dtype="float16").key,
    }
    assert len(keys) == 3
    other = EmbeddingStore.open(tmp_path / "store", SENTENCES[1:])
    np.testing.assert_array_equal(other.embed(encoder).array, encoder.encode(SENTENCES[1:]))
    np.testing.assert_array_equal(store.embed(encoder).array, encoder.encode(SENTENCES))


def test_float16(store, encoder) -> None:
    embeddings = store.embed(encoder, dtype="float16")
    np.testing.assert_array_equal(embeddings.array, encoder.encode(SENTENCES).astype(np.float16))
    assert next(embeddings.blocks()).dtype == torch.float32


def test_views_are_aligned_with_their_rows(store, encoder) -> None:
    def reverse(sentence: str) -> str:
        return " ".join(sentence.split()[:2])

    rows = store.sample(40, seed=1)
    assert len(set(rows.tolist())) == 40 and (np.diff(rows) > 0).all()
    views = store.embed(encoder, name="two words", edit=reverse, rows=rows)
    np.testing.assert_array_equal(views.array, encoder.encode([reverse(SENTENCES[row]) for row in rows]))
    assert store.embed(encoder, name="two words", edit=reverse, rows=rows[:-1]).key != views.key


def test_interrupted_and_continued(store, encoder, monkeypatch) -> None:
    def stop_at_50(sentence: str) -> str:
        if sentence == SENTENCES[50]:
            raise KeyboardInterrupt
        return sentence

    with pytest.raises(KeyboardInterrupt):
        store.embed(encoder, name="same", edit=stop_at_50)
    encoded = count_encoded(encoder, monkeypatch)
    embeddings = store.embed(encoder, name="same", edit=lambda sentence: sentence)
    assert encoded == SENTENCES[48:]  # three windows of 16 were there
    np.testing.assert_array_equal(embeddings.array, encoder.encode(SENTENCES))


def test_several_poolings_in_one_pass(tiny_encoder, sentences, tmp_path) -> None:
    transformer = SentenceTransformer(tiny_encoder, device="cpu")[0]
    store = EmbeddingStore.open(tmp_path / "store", sentences[:60])
    poolings = {name: pooling_modules(transformer, name) for name in ("cls", "layer:1", "first-last")}
    sets = store.embed_poolings(transformer, poolings)
    for name, modules in poolings.items():
        alone = SentenceTransformer(modules=[transformer, *modules], device="cpu")
        np.testing.assert_allclose(sets[name].array, alone.encode(store.sentences()), atol=1e-6)
        assert store.embed(alone, name=name).key == sets[name].key


def test_poolings_that_were_begun_with_other_windows(tiny_encoder, sentences, tmp_path, monkeypatch) -> None:
    transformer = SentenceTransformer(tiny_encoder, device="cpu")[0]
    poolings = {name: pooling_modules(transformer, name) for name in ("cls", "layer:1", "first-last", "mean")}
    alone = {
        name: SentenceTransformer(modules=[transformer, *modules], device="cpu") for name, modules in poolings.items()
    }
    store = EmbeddingStore.open(tmp_path / "store", sentences[:60])
    write = EmbeddingSet.write

    def first_window_only(self, number, embeddings) -> None:
        if number:
            raise KeyboardInterrupt
        write(self, number, embeddings)

    monkeypatch.setattr(embedding_set, "WINDOW_ROWS", 32)
    whole = store.embed(alone["cls"], name="cls")
    with monkeypatch.context() as patch:
        patch.setattr(EmbeddingSet, "write", first_window_only)
        for name, rows in (("layer:1", 16), ("first-last", 20)):
            patch.setattr(embedding_set, "WINDOW_ROWS", rows)
            with pytest.raises(KeyboardInterrupt):
                store.embed(alone[name], name=name)
    sets = store.embed_poolings(transformer, poolings)
    assert {name: made.info["window_rows"] for name, made in sets.items()} == {
        "cls": 32, "layer:1": 16, "first-last": 16, "mean": 16,
    }  # fmt: skip
    np.testing.assert_array_equal(sets["cls"].array, whole.array)
    for name, encoder in alone.items():
        np.testing.assert_allclose(sets[name].array, encoder.encode(store.sentences()), atol=1e-6)


class TestFingerprint:
    def test_what_counts(self, tiny_encoder) -> None:
        def encoder(**changes) -> str:
            model = SentenceTransformer(tiny_encoder, device="cpu")
            for name, value in changes.items():
                setattr(model, name, value)
            return encoder_fingerprint(model)

        plain = encoder()
        assert encoder() == plain
        assert encoder(max_seq_length=17) != plain
        assert encoder(prompts={"p": "query: "}, default_prompt_name="p") != plain
        model = SentenceTransformer(tiny_encoder, device="cpu")
        model.encode(["a call sets the tokenizer's padding"])
        assert encoder_fingerprint(model) == plain
        assert encoder_fingerprint(model.to(torch.bfloat16)) != plain
        with torch.no_grad():
            next(model.float().parameters())[0, 0] += 1
        assert encoder_fingerprint(model) != plain

    def test_pooling_counts(self, tiny_encoder) -> None:
        transformer = SentenceTransformer(tiny_encoder, device="cpu")[0]
        prints = {
            encoder_fingerprint(SentenceTransformer(modules=[transformer, *pooling_modules(transformer, name)]))
            for name in ("mean", "cls", "layer:1", "layer:2", "last-two")
        }
        assert len(prints) == 5


class TestBadInput:
    def test_too_few(self, tmp_path) -> None:
        with pytest.raises(ValueError, match="at least 16 different sentences are needed, but got 2"):
            EmbeddingStore.open(tmp_path / "store", ["a", "b", "a"])
        assert EmbeddingStore.open(tmp_path / "store", SENTENCES).sentences() == SENTENCES

    @pytest.mark.parametrize("bad", [None, 3, b"bytes"])
    def test_not_strings(self, tmp_path, bad) -> None:
        with pytest.raises(ValueError, match="item 100"):
            EmbeddingStore.open(tmp_path / "store", [*SENTENCES, bad])

    def test_single_string(self, tmp_path) -> None:
        with pytest.raises(ValueError, match="must be a list of strings"):
            EmbeddingStore.open(tmp_path / "store", "a sentence")

    def test_newer_version(self, store, tmp_path) -> None:
        (tmp_path / "store" / "store.json").write_text(json.dumps({"format": 2}))
        with pytest.raises(ValueError, match=r"format 2.*up to 1.*pip install -U"):
            EmbeddingStore.open(tmp_path / "store", SENTENCES)

    def test_folder_of_something_else(self, tmp_path) -> None:
        (tmp_path / "letter.txt").write_text("dear")
        with pytest.raises(FileExistsError, match="holds something else than a store"):
            EmbeddingStore.open(tmp_path, SENTENCES)
        with pytest.raises(FileExistsError, match="is a file"):
            EmbeddingStore.open(tmp_path / "letter.txt", SENTENCES)

    def test_leftovers_of_a_kill_and_of_a_fresh_disk(self, tmp_path, encoder) -> None:
        (tmp_path / "store.json.123.tmp").write_text('{"form')
        (tmp_path / "lost+found").mkdir()
        store = EmbeddingStore.open(tmp_path, SENTENCES)
        assert sorted(path.name for path in tmp_path.iterdir())[:3] == ["lock", "lost+found", "store.json"]
        (store.folder / "embeddings-0.json.123.tmp").write_text("{")
        store.embed(encoder)
        assert not list(tmp_path.rglob("*.tmp"))

    def test_tmp_files_of_others_are_not_touched(self, tmp_path) -> None:
        (tmp_path / "thesis.1.tmp").write_text("dear")
        with pytest.raises(FileExistsError, match=r"something else than a store, such as 'thesis.1.tmp'"):
            EmbeddingStore.open(tmp_path, SENTENCES)
        assert (tmp_path / "thesis.1.tmp").is_file() and not (tmp_path / "lock").exists()

    @pytest.mark.parametrize("content", ["", "{", "[]", "null", "\xff"])
    def test_damaged_files_are_named(self, store, encoder, content) -> None:
        embeddings = store.embed(encoder)
        root = store.folder.parent
        for path, remedy in (
            (embeddings.path, "encoded anew"),
            (store.folder / "text.json", "Delete the folder"),
            (root / "store.json", "If the folder is a store"),
        ):
            before = path.read_bytes()
            path.write_bytes(content.encode("latin-1"))
            with pytest.raises(OSError, match=f"{path.name} is damaged.*{remedy}"):
                EmbeddingStore.open(root, SENTENCES).embed(encoder)
            path.write_bytes(before)
        assert EmbeddingStore.open(root, SENTENCES).embed(encoder).complete

    def test_in_use(self, store, encoder, tmp_path) -> None:
        import multiprocessing

        finished = store.embed(quick_encoder(seed=1)).key
        context = multiprocessing.get_context("spawn")
        ready, done = context.Event(), context.Event()
        process = context.Process(target=hold_lock, args=(store.folder / "lock", ready, done))
        process.start()
        ready.wait(60)
        try:
            assert store.embed(quick_encoder(seed=1)).key == finished  # reading needs no lock
            with pytest.raises(OSError, match="being written by another process"):
                store.embed(encoder)
        finally:
            done.set()
            process.join()
        assert store.embed(encoder).complete

    def test_finished_sets_can_be_read_where_nothing_can_be_written(self, store, encoder, monkeypatch) -> None:
        expected = store.embed(encoder).array
        before = sorted(store.folder.parent.rglob("*"))
        for path in before:
            path.chmod(0o500 if path.is_dir() else 0o400)  # root may write all the same, hence:
        monkeypatch.setattr("sbert_flow.fitting.store.FileLock", None)
        np.testing.assert_array_equal(EmbeddingStore(store.folder).embed(encoder).array, expected)
        assert sorted(store.folder.parent.rglob("*")) == before

    def test_unfinished_sets_cannot_be_read(self, store, encoder) -> None:
        def stop_at_50(sentence: str) -> str:
            if sentence == SENTENCES[50]:
                raise KeyboardInterrupt
            return sentence

        with pytest.raises(KeyboardInterrupt):
            store.embed(encoder, name="half", edit=stop_at_50)
        half = EmbeddingSet(next(store.folder.glob("half-*.json")))
        assert not half.complete
        for read in (lambda: half.array, lambda: half[:3], lambda: fit_flow(embeddings=half, show_progress_bar=False)):
            with pytest.raises(ValueError, match=r"52 of the 100 embeddings in .*half-.* are not written yet.*embed"):
                read()
        store.embed(encoder, name="half", edit=str)
        np.testing.assert_array_equal(half.array, encoder.encode(SENTENCES))

    def test_not_finite(self, store) -> None:
        encoder = quick_encoder()
        with torch.no_grad():
            encoder[0].embedding.weight[7] = float("nan")
        with pytest.raises(ValueError, match=r"hold NaN or infinity, first that of sentence \d+"):
            store.embed(encoder)

    def test_too_large_for_float16(self, store) -> None:
        encoder = quick_encoder()
        with torch.no_grad():
            encoder[0].embedding.weight.mul_(1e6)
        with pytest.raises(ValueError, match="too large for float16"):
            store.embed(encoder, dtype="float16")
        assert store.embed(encoder).complete

    def test_arguments(self, store, encoder) -> None:
        with pytest.raises(ValueError, match="'float32', 'float16', but got 'int8'"):
            store.embed(encoder, dtype="int8")
        with pytest.raises(ValueError, match="name of its own"):
            store.embed(encoder, edit=str.lower)
        with pytest.raises(ValueError, match="must return a string"):
            store.embed(encoder, name="length", edit=len)
        with pytest.raises(ValueError, match="between 0 and 99"):
            store.embed(encoder, rows=[100])

    def test_lone_surrogates(self, tmp_path, encoder) -> None:
        with pytest.warns(UserWarning, match="1 of the sentences hold surrogates"):
            store = EmbeddingStore.open(tmp_path / "store", [*SENTENCES, "w1 \ud800 w2"])
        expected = encoder.encode([*SENTENCES, "w1 \ufffd w2"])
        np.testing.assert_array_equal(store.embed(encoder).array, expected)
        with pytest.raises(ValueError, match=r"lone surrogate.*Edit whole characters"):
            store.embed(encoder, name="cut", edit=lambda sentence: sentence + "\ud83d")

    def test_full_disk_before_the_work(self, store, encoder, monkeypatch) -> None:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        encoded = count_encoded(encoder, monkeypatch)
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            with pytest.raises(OSError, match="disk is full"):
                store.embed(encoder)
        assert encoded == []
        assert store.embed(encoder).complete

    def test_full_disk_half_way(self, store, encoder, monkeypatch) -> None:
        write_rows, written = embedding_set.write_rows, []

        def full(path, start, rows, sync=False):
            if len(written) == 3:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written.append(start)
            write_rows(path, start, rows, sync)

        with monkeypatch.context() as patch:
            patch.setattr(embedding_set, "write_rows", full)
            with pytest.raises(OSError, match=r"disk is full.*the same command continues it"):
                store.embed(encoder)
        encoded = count_encoded(encoder, monkeypatch)
        np.testing.assert_array_equal(store.embed(encoder).array, quick_encoder().encode(SENTENCES))
        assert encoded[:52] == SENTENCES[48:]

    def test_errors_of_the_text_are_not_ours(self, tmp_path) -> None:
        def corpus():
            yield from SENTENCES
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "corpus.txt")

        with pytest.raises(PermissionError, match=r"^\[Errno 13\] Permission denied: 'corpus.txt'$"):
            EmbeddingStore.open(tmp_path / "store", corpus())

    def test_errors_of_an_edit_are_not_ours(self, store, encoder) -> None:
        def edit(sentence: str) -> str:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "synonyms.txt")

        with pytest.raises(PermissionError, match=r"^\[Errno 13\] Permission denied: 'synonyms.txt'$"):
            store.embed(encoder, name="synonyms", edit=edit)

    def test_full_disk_while_text_is_read_keeps_nothing(self, tmp_path, monkeypatch) -> None:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            with pytest.raises(OSError, match="disk is full: free some space") as caught:
                EmbeddingStore.open(tmp_path / "store", SENTENCES)
        assert "continues" not in str(caught.value)
        assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["lock", "store.json"]

    def test_unwritable(self, tmp_path, monkeypatch) -> None:
        def refuse(self, *_: object, **__: object) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr(Path, "mkdir", refuse)  # the tests may run as root, who may write anywhere
        with pytest.raises(OSError, match="mend its permissions") as caught:
            EmbeddingStore.open(tmp_path / "store", SENTENCES)
        assert "continues" not in str(caught.value)


def hold_lock(path: Path, ready, done) -> None:
    from filelock import FileLock

    with FileLock(path):
        ready.set()
        done.wait(60)


def test_an_atomic_write_leaves_the_old_content_or_the_new(tmp_path, monkeypatch) -> None:
    path = tmp_path / "file"
    files.write_atomically(path, b"old")

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError):
            files.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_matrix_file_is_plain_npy(tmp_path) -> None:
    path = tmp_path / "m.npy"
    matrix_file.create_matrix(path, (5, 3), np.dtype("float32"))
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    matrix_file.write_rows(path, 2, rows)
    expected = np.zeros((5, 3), dtype=np.float32)
    expected[2:4] = rows
    np.testing.assert_array_equal(np.load(path), expected)
