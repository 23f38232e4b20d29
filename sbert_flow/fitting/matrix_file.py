"""A matrix on disk as a ``.npy`` file of known shape that is written piece by piece and read as a memory map."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from sbert_flow.fitting.files import reserve


def create_matrix(path: Path, shape: tuple[int, int], dtype: np.dtype) -> None:
    """Create the file with its header and all its room on the disk.

    Raises:
        OSError: not enough room.
    """
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"shape": shape, "fortran_order": False, "descr": np.lib.format.dtype_to_descr(dtype)}
        )
        header = file.tell()
    size = header + shape[0] * shape[1] * dtype.itemsize
    if size > header:
        reserve(path, size)


def open_matrix(path: Path) -> np.ndarray:
    """The matrix as a read-only memory map."""
    if path.stat().st_size and not _has_rows(path):
        return np.load(path)  # an empty matrix cannot be mapped
    return np.load(path, mmap_mode="r")


def write_rows(path: Path, start: int, rows: np.ndarray, sync: bool = False) -> None:
    """Write ``rows`` at row ``start``; with ``sync``, return when they would outlive a power cut.

    Through the file and not through a map: on a full disk a map ends the process, a file raises OSError.
    """
    with path.open("r+b") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        file.seek(start * rows.shape[1] * rows.itemsize, os.SEEK_CUR)
        file.write(np.ascontiguousarray(rows).data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def _has_rows(path: Path) -> bool:
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, _ = np.lib.format.read_array_header_1_0(file)
    return bool(np.prod(shape))
