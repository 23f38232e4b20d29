"""The distinct sentences of a text of any size, on disk, in the order of their first occurrence."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from sbert_flow.fitting.files import fsync_path, reserve, sync_folder, write_json
from sbert_flow.fitting.matrix_file import create_matrix, open_matrix, write_rows

SEEN = np.dtype([("high", "<u8"), ("low", "<u8"), ("end", "<u8")])
"""What is kept of each sentence while duplicates are looked for: 128 bits of hash and where its UTF-8 ends."""

BUCKET_ROWS = 1 << 21
"""Hashes sorted at a time: some 150 MB, whatever the size of the text."""

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
        begin = int(spans[0, 0])
        with (self.folder / "text.utf8").open("rb") as file:
            file.seek(begin)
            text = file.read(int(spans[-1, 1]) - begin)
        return [_decode(text[first - begin : last - begin]) for first, last in spans.tolist()]

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
    mistake is 10^-21. The hashes go to disk and are sorted bucket by bucket.

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
    return raw.decode("utf-8", "surrogatepass")


def _write_text(sentences: Iterable[str], folder: Path) -> int:
    end = seen = 0
    with (folder / "text.utf8").open("wb") as text, (folder / "seen").open("wb") as records:
        chunk = np.empty(CHUNK_ROWS, dtype=SEEN)
        for sentence in sentences:
            raw = sentence.encode("utf-8", "surrogatepass")  # broken text of the web has lone surrogates
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
    records = np.memmap(folder / "seen", dtype=SEEN, mode="r")
    (folder / "keep").touch()
    reserve(folder / "keep", seen)  # writing to a map whose disk is full would end the process
    keep = np.memmap(folder / "keep", dtype=bool, mode="r+", shape=(seen,))
    buckets = seen // BUCKET_ROWS + 1
    for bucket in range(buckets):
        found = []
        for start in range(0, seen, CHUNK_ROWS):
            chunk = records[start : start + CHUNK_ROWS]
            places = np.flatnonzero(chunk["high"] % np.uint64(buckets) == bucket)
            found.append((chunk["high"][places], chunk["low"][places], places + start))
        high, low, place = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.lexsort((place, low, high))
        high, low = high[order], low[order]
        first = np.ones(len(order), dtype=bool)
        first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        keep[place[order[first]]] = True
    return keep


def _write_spans(folder: Path, seen: int, keep: np.ndarray) -> tuple[int, str]:
    rows = sum(int(keep[start : start + CHUNK_ROWS].sum()) for start in range(0, seen, CHUNK_ROWS))
    digest = hashlib.sha256()
    create_matrix(folder / "spans.npy", (rows, 2), np.dtype("<u8"))
    written = 0
    begin = 0
    records = np.memmap(folder / "seen", dtype=SEEN, mode="r") if seen else np.empty(0, dtype=SEEN)
    for start in range(0, seen, CHUNK_ROWS):
        chunk = np.array(records[start : start + CHUNK_ROWS])
        begins = np.concatenate([[begin], chunk["end"][:-1]]).astype("<u8")
        begin = int(chunk["end"][-1])
        kept = keep[start : start + CHUNK_ROWS]
        spans = np.stack([begins, chunk["end"]], axis=1)[kept]
        write_rows(folder / "spans.npy", written, spans)
        written += len(spans)
        digest.update(np.stack([chunk["high"], chunk["low"]], axis=1)[kept].tobytes())
    return rows, digest.hexdigest()
