"""Embeddings of the store's sentences, or of some of them, on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sbert_flow.fitting.files import fsync_path, read_json, sync_folder, write_json
from sbert_flow.fitting.matrix_file import create_matrix, open_matrix, write_rows

WINDOW_ROWS = 4096
"""Most sentences that are encoded at a time, sorted by length among themselves, and that an interruption can cost."""

DTYPES = ("float32", "float16")


def check_dtype(dtype: str) -> None:
    """Raise ValueError for a dtype that embeddings are not stored in."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(repr, DTYPES))}, but got {dtype!r}.")


def rows_of_window(rows: int, shares: int) -> int:
    """Rows of a window of a new set: few enough that each of ``shares`` processes has one to encode."""
    return max(1, min(WINDOW_ROWS, -(-rows // shares)))


class EmbeddingSet:
    """A matrix (n, d) of embeddings on disk, written in windows and read as a memory map.

    Three files: ``NAME.npy`` has the numbers, ``NAME.windows`` one byte for each window (1 when the window is on
    disk), ``NAME.json`` what it is. Make one with :meth:`sbert_flow.fitting.store.EmbeddingStore.embed`.

    Args:
        path: of the ``.json`` file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info = read_json(path, "Delete it; the sentences are then encoded anew.")
        self._map: np.ndarray | None = None

    @classmethod
    def create(
        cls, path: Path, rows: int, width: int, dtype: str, info: dict[str, Any], window_rows: int | None = None
    ) -> EmbeddingSet:
        """Make room for the whole set, or return the one that is there.

        Args:
            path: of the ``.json`` file.
            rows, width, dtype: of the matrix.
            info: what else the ``.json`` file says.
            window_rows: rows written at a time; None takes 4,096. An unfinished set of other windows is begun anew.

        Raises:
            OSError: not enough room on the disk; nothing is left behind.
        """
        window_rows = window_rows or WINDOW_ROWS
        if path.exists():
            found = cls(path)
            if found.complete or found.info["window_rows"] == window_rows:
                return found
            path.unlink()
            sync_folder(path.parent)  # else a power cut might leave the old description of the new windows
        matrix, windows = path.with_suffix(".npy"), path.with_suffix(".windows")
        try:
            create_matrix(matrix, (rows, width), np.dtype(dtype))
            windows.write_bytes(bytes(-(-rows // window_rows)))
            fsync_path(matrix)
            fsync_path(windows)
            write_json(path, {**info, "rows": rows, "width": width, "dtype": dtype, "window_rows": window_rows})
        except OSError:
            matrix.unlink(missing_ok=True)
            windows.unlink(missing_ok=True)
            raise
        return cls(path)

    @property
    def shape(self) -> tuple[int, int]:
        return self.info["rows"], self.info["width"]

    @property
    def key(self) -> str:
        """Name that is different for every encoder, edit, choice of rows and dtype."""
        return self.path.stem

    def __len__(self) -> int:
        return self.info["rows"]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Rows as an array of the set's dtype; a slice is not copied."""
        return self.array[rows]

    @property
    def array(self) -> np.ndarray:
        """All of it, shape (n, d), as a read-only memory map.

        Raises:
            ValueError: some windows are not written yet: their rows would be zeros.
        """
        if self._map is None:
            missing = sum(len(self.window(number)) for number in self.missing().tolist())
            if missing:
                raise ValueError(
                    f"{missing} of the {len(self)} embeddings in {self.path} are not written yet. Call the store's "
                    "embed with the same arguments, which encodes the rest."
                )
            self._map = open_matrix(self.path.with_suffix(".npy"))
        return self._map

    def blocks(self, rows: int = 8192) -> Iterator[torch.Tensor]:
        """Yield the rows in order, as float32 tensors of ``rows`` rows at most."""
        for start in range(0, len(self), rows):
            yield torch.from_numpy(self[start : start + rows].astype(np.float32))  # always a copy

    @property
    def complete(self) -> bool:
        """Whether all is on disk; only then can it be read."""
        return not len(self.missing())

    def missing(self) -> np.ndarray:
        """Numbers of the windows that are not written yet."""
        return np.flatnonzero(np.frombuffer(self.path.with_suffix(".windows").read_bytes(), dtype=np.uint8) == 0)

    def window(self, number: int) -> range:
        """Rows of a window."""
        size = self.info["window_rows"]
        return range(number * size, min((number + 1) * size, len(self)))

    def write(self, number: int, embeddings: np.ndarray) -> None:
        """Put a window on disk for good: its numbers first, and only then the byte that says so."""
        write_rows(self.path.with_suffix(".npy"), self.window(number).start, embeddings, sync=True)
        with self.path.with_suffix(".windows").open("r+b") as file:
            file.seek(number)
            file.write(b"\x01")
            file.flush()
            os.fsync(file.fileno())
