"""The distinct sentences of a text of any size, on disk, in the order of their first occurrence."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from sbert_flow.fitting.files import fsync_path, reserve, sync_folder, write_json
from sbert_flow.fitting.matrix_file import create_matrix, open_matrix, write_rows

SEEN = np.dtype([("high", "<u8"), ("low", "<u8"), ("end", "<u8")])
"""What is kept of each sentence while duplicates are looked for: 128 bits of hash and where its UTF-8 ends."""

RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("place", "<u8")])
"""What a bucket holds of a sentence: its hash and the how-manieth it was."""

BUCKET_ROWS = 1 << 20
"""Hashes sorted at a time: some 80 MB, whatever the size of the text."""

CHUNK_ROWS = 1 << 18


class TextSpool:
    """Sentences on disk: ``text.utf8`` holds them one after the other, ``spans.npy`` where each begins and ends.

    Args:
        folder: of a spool that :func:`spool_text` has finished.
        rows: number of sentences.
        digest: of the sentences and their order.
    """

    def __init__(self, folder: Path, rows: int, digest: str) -> None:
        self.folder, self.rows, self.digest = folder, rows, digest
        self._spans = open_matrix(folder / "spans.npy")

    def __len__(self) -> int:
        return self.rows

    def read(self, start: int = 0, stop: int | None = None) -> list[str]:
        """Sentences ``start`` to ``stop`` as a list."""
        spans = np.array(self._spans[start:stop])
        if not len(spans):
            return []
        texts: list[str] = []
        gaps = np.flatnonzero(spans[1:, 0] != spans[:-1, 1]) + 1
        with (self.folder / "text.utf8").open("rb") as file:
            for run in np.split(spans, gaps):  # what lies between are duplicates, of any size: they are not read
                begin = int(run[0, 0])
                file.seek(begin)
                text = file.read(int(run[-1, 1]) - begin)
                texts += [_decode(text[first - begin : last - begin]) for first, last in run.tolist()]
        return texts

    def read_rows(self, rows: Iterable[int]) -> list[str]:
        """The sentences of these rows, in this order."""
        with (self.folder / "text.utf8").open("rb") as file:
            texts = []
            for row in rows:
                first, last = self._spans[row].tolist()
                file.seek(first)
                texts.append(_decode(file.read(last - first)))
        return texts


def spool_text(sentences: Iterable[str], folder: Path) -> dict[str, int | str]:
    """Write the distinct ones of ``sentences`` into the new folder ``folder``; nothing of the text stays in memory.

    Two sentences are the same when 128 bits of their BLAKE2b hashes are: among 10^9 sentences the chance of a single
    mistake is 10^-21. The hashes go to disk, are shared out to buckets in one pass and sorted bucket by bucket.

    Returns:
        ``{"rows": distinct sentences, "seen": sentences, "digest": of the distinct ones and their order}``.
    """
    folder.mkdir()
    seen = _write_text(sentences, folder)
    keep = _first_occurrences(folder, seen)
    rows, digest = _write_spans(folder, seen, keep)
    (folder / "seen").unlink()
    (folder / "keep").unlink(missing_ok=True)
    for name in ("text.utf8", "spans.npy"):
        fsync_path(folder / name)
    summary: dict[str, int | str] = {"rows": rows, "seen": seen, "digest": digest}
    write_json(folder / "text.json", summary)
    return summary


def install(incoming: Path, folder: Path) -> None:
    """Give a finished spool its final name; one that is there already holds the same."""
    if folder.is_dir():
        shutil.rmtree(incoming)
    else:
        incoming.rename(folder)
        sync_folder(folder.parent)


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")  # stores of before may hold surrogates


def _write_text(sentences: Iterable[str], folder: Path) -> int:
    end = seen = 0
    with (folder / "text.utf8").open("wb") as text, (folder / "seen").open("wb") as records:
        chunk = np.empty(CHUNK_ROWS, dtype=SEEN)
        for sentence in sentences:
            raw = sentence.encode()
            text.write(raw)
            end += len(raw)
            hashed = hashlib.blake2b(raw, digest_size=16).digest()
            row = seen % CHUNK_ROWS
            chunk[row] = (int.from_bytes(hashed[:8], "little"), int.from_bytes(hashed[8:], "little"), end)
            seen += 1
            if row + 1 == CHUNK_ROWS:
                records.write(chunk.tobytes())
        records.write(chunk[: seen % CHUNK_ROWS].tobytes())
    return seen


def _first_occurrences(folder: Path, seen: int) -> np.ndarray:
    """For each sentence seen, whether it is the first of its kind; on disk too."""
    if not seen:
        return np.empty(0, dtype=bool)
    (folder / "keep").touch()
    reserve(folder / "keep", seen)  # writing to a map whose disk is full would end the process
    keep = np.memmap(folder / "keep", dtype=bool, mode="r+", shape=(seen,))
    for bucket in _share_out(folder, seen):
        keep[_first_of_kind(np.fromfile(bucket, dtype=RECORD))["place"]] = True
        bucket.unlink()
    (folder / "buckets").rmdir()
    return keep


def _share_out(folder: Path, seen: int) -> list[Path]:
    """Put the hashes into files of about ``BUCKET_ROWS``, equal hashes into the same one, in order."""
    (folder / "buckets").mkdir()
    buckets = seen // BUCKET_ROWS + 1
    used: set[int] = set()
    for start, chunk in _chunks(folder, seen):
        records = np.empty(len(chunk), dtype=RECORD)
        records["high"], records["low"] = chunk["high"], chunk["low"]
        records["place"] = np.arange(start, start + len(chunk))
        records = _first_of_kind(records)  # a line that comes a million times would fill its bucket
        number = records["high"] % np.uint64(buckets)
        order = np.argsort(number, kind="stable")
        found, firsts = np.unique(number[order], return_index=True)
        for bucket, part in zip(found.tolist(), np.split(records[order], firsts[1:]), strict=True):
            with (folder / "buckets" / str(bucket)).open("ab") as file:
                file.write(part.tobytes())
            used.add(bucket)
    return [folder / "buckets" / str(bucket) for bucket in sorted(used)]


def _first_of_kind(records: np.ndarray) -> np.ndarray:
    """The records whose hash has not come before, in their order."""
    order = np.lexsort((records["low"], records["high"]))  # stable: the first of equal ones stays first
    high, low = records["high"][order], records["low"][order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return records[np.sort(order[first])]


def _chunks(folder: Path, seen: int) -> Iterator[tuple[int, np.ndarray]]:
    """What was noted of the sentences, chunk by chunk with the number of the first; read, not mapped."""
    with (folder / "seen").open("rb") as file:
        for start in range(0, seen, CHUNK_ROWS):
            yield start, np.fromfile(file, dtype=SEEN, count=CHUNK_ROWS)


def _write_spans(folder: Path, seen: int, keep: np.ndarray) -> tuple[int, str]:
    rows = sum(int(keep[start : start + CHUNK_ROWS].sum()) for start in range(0, seen, CHUNK_ROWS))
    digest = hashlib.sha256()
    create_matrix(folder / "spans.npy", (rows, 2), np.dtype("<u8"))
    written = 0
    begin = 0
    for start, chunk in _chunks(folder, seen):
        begins = np.concatenate([[begin], chunk["end"][:-1]]).astype("<u8")
        begin = int(chunk["end"][-1])
        kept = keep[start : start + CHUNK_ROWS]
        spans = np.stack([begins, chunk["end"]], axis=1)[kept]
        write_rows(folder / "spans.npy", written, spans)
        written += len(spans)
        digest.update(np.stack([chunk["high"], chunk["low"]], axis=1)[kept].tobytes())
    return rows, digest.hexdigest()
