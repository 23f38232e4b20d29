"""Names that are a folder or an id on the hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub.errors import HFValidationError


@contextmanager
def folder_or_hub(name: str) -> Iterator[None]:
    """Where loading ``name`` fails and it is no folder, say so: the hub's own error knows nothing of folders.

    Raises:
        OSError: instead of the hub's error.
    """
    try:
        yield
    except (OSError, HFValidationError) as error:
        if Path(name).expanduser().is_dir():
            raise
        raise OSError(
            f"there is no folder {name!r}, and it cannot be loaded as an id from the Hugging Face hub: {error}"
        ) from error
