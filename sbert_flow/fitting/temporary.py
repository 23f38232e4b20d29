"""Where the store lies when nobody named a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sbert_flow.fitting import distributed


@contextmanager
def store_folder(store: str | Path | None) -> Iterator[str | Path]:
    """The folder ``store``, or a temporary one that all processes of this machine share within the block.

    Raises:
        ValueError: no store for processes on several machines, which have no temporary folder in common.
    """
    if store is not None:
        yield store
        return
    processes = distributed.world_size()
    if processes > int(os.environ.get("LOCAL_WORLD_SIZE", processes)):
        raise ValueError(
            "processes on several machines need a store in a folder that all of them see. Name one (store=, --store)."
        )
    with TemporaryDirectory(prefix="sbert-flow-") as own:
        yield distributed.from_first(own)
        distributed.barrier()  # none may still read when the first removes it
