"""Ctrl-C and SIGTERM: what is done is kept, and the same command goes on from there."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Stop = Callable[[], bool]


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Within the block SIGTERM raises KeyboardInterrupt, as Ctrl-C does. Without effect outside the main thread."""

    def handler(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    with _handlers({signal.SIGTERM: handler}):
        yield


@contextmanager
def resumable(store: str | Path | None) -> Iterator[None]:
    """Turn SIGTERM into an interrupt, and say that the store, if there is one, keeps what was done."""
    with terminate_as_interrupt():
        try:
            yield
        except KeyboardInterrupt as interrupt:
            if store is None:
                raise
            raise KeyboardInterrupt(
                f"Interrupted. The store {store} keeps what was done; the same command continues it."
            ) from interrupt


@contextmanager
def stop_at_signal() -> Iterator[Stop]:
    """Within the block Ctrl-C and SIGTERM only note that a stop is wanted; a second one raises KeyboardInterrupt.

    Yields:
        A function that says whether a stop is wanted. A step of training must not be left half-way.
    """
    wanted = False

    def handler(number: int, frame: Any) -> None:
        nonlocal wanted
        if wanted:
            raise KeyboardInterrupt
        wanted = True

    with _handlers({signal.SIGINT: handler, signal.SIGTERM: handler}):
        yield lambda: wanted


@contextmanager
def _handlers(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
