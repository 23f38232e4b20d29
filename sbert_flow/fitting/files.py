"""Writing files so that a kill or a power cut leaves the old content or the new, never half of it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def sync_folder(folder: Path) -> None:
    """Make names that were created or renamed in ``folder`` outlive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_path(path: Path) -> None:
    """Make the content of a file outlive a power cut."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``: written beside it, synced, renamed."""
    staging = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with staging.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)
    sync_folder(path.parent)


def remove_leftovers(folder: Path, name: str) -> None:
    """Delete what a killed process left of writing the files ``name`` (a pattern) of ``folder``.

    Call it only where nobody else can be writing them: under the folder's lock.
    """
    for staging in folder.glob(f"{name}.*.tmp"):
        staging.unlink(missing_ok=True)


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        OSError: the file holds something else; says ``remedy``.
    """
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise OSError(f"{path} is damaged ({error}). {remedy}") from error
    if not isinstance(value, dict):
        raise OSError(f"{path} is damaged: it holds {value!r:.80} instead of a JSON object. {remedy}")
    return value


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def reserve(path: Path, size: int) -> None:
    """Make ``path`` ``size`` bytes long with its blocks allocated, so that a full disk is met now and not half-way.

    Raises:
        OSError: not enough room.
    """
    with path.open("r+b") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:  # macOS, Windows
            file.truncate(size)


class Source:
    """Iterates over what the caller gave, and remembers an OSError of its own: that one is not about our files."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = items
        self.error: OSError | None = None

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.items
        except OSError as error:
            self.error = error
            raise


@contextmanager
def explained(folder: Path, what: str, *, kept: bool = True, source: Source | None = None) -> Iterator[None]:
    """Say what to do about a disk that is full or may not be written to.

    Args:
        folder: that is written to.
        what: failed, such as "writing the store".
        kept: whether the same command continues with what was written.
        source: whose errors pass as they are.

    Raises:
        OSError: of the same kind, with the folder and the remedy.
    """
    try:
        yield
    except OSError as error:
        if source is not None and error is source.error:
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "The disk is full: free some space, or name a folder on another disk (--store)"
            if kept:
                remedy += ". A store that you named keeps what was written; the same command continues it"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            remedy = "The folder cannot be written to: mend its permissions, or name another one (--store)"
        else:
            raise
        raise OSError(error.errno, f"{what} failed ({error.strerror}). {remedy}", str(folder)) from error
