"""How a long job says how far it is: a bar, a line now and then, JSON lines or nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from tqdm.auto import tqdm

from sbert_flow.fitting import distributed

STYLES = ("bar", "lines", "json", "quiet")
SECONDS_BETWEEN_LINES = 30.0


class Stage:
    """One stage of a job, such as encoding: ``total`` units, of which some are done."""

    def __init__(self, style: str, stream: TextIO, name: str, total: int, unit: str, done: int = 0) -> None:
        self.style, self.stream, self.name, self.total, self.unit = style, stream, name, total, unit
        self.start_done = self.done = done
        self.started = self.last = time.monotonic()
        self.bar = (
            tqdm(total=total, initial=done, desc=name, unit=unit, unit_scale=total >= 100_000, file=stream)
            if style == "bar"
            else None
        )

    def advance(self, units: int, **measures: float) -> None:
        """Note ``units`` more, and what else there is to say, such as bits per dimension."""
        self.done += units
        if self.bar is not None:
            if measures:
                self.bar.set_postfix({key: f"{value:.4f}" for key, value in measures.items()}, refresh=False)
            self.bar.update(units)
            return
        now = time.monotonic()
        if self.style == "quiet" or (now - self.last < SECONDS_BETWEEN_LINES and self.done < self.total):
            return
        if self.style == "lines" and now - self.started < SECONDS_BETWEEN_LINES:
            return  # a short stage needs no line
        self.last = now
        rate = (self.done - self.start_done) / max(now - self.started, 1e-9)
        remaining = (self.total - self.done) / max(rate, 1e-9)
        if self.style == "json":
            record = {
                "stage": self.name, "done": self.done, "total": self.total, "unit": self.unit,
                "per_second": round(rate, 1), "seconds_left": round(remaining, 1), **measures,
            }  # fmt: skip
            print(json.dumps(record), file=self.stream, flush=True)
        else:
            said = "".join(f", {key} {value:.4f}" for key, value in measures.items())
            speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
            print(
                f"{self.name}: {self.done:,} of {self.total:,}, {speed} {self.unit}/s, "
                f"{remaining:,.0f} s left{said}",
                file=self.stream, flush=True,
            )  # fmt: skip

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


class Progress:
    """Where and in which style progress is shown.

    Args:
        style: "bar"; "lines", a line every 30 seconds; "json", the same as JSON lines; "quiet"; None takes a bar where
            the stream is a terminal and lines elsewhere.
        stream: None takes stderr.

    Raises:
        ValueError: unknown style.
    """

    def __init__(self, style: str | None = None, stream: TextIO | None = None) -> None:
        if style is not None and style not in STYLES:
            raise ValueError(f"progress must be one of {', '.join(map(repr, STYLES))} or None, but got {style!r}.")
        self.stream = stream or sys.stderr
        self.style = style or ("bar" if self.stream.isatty() else "lines")

    @contextmanager
    def stage(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Stage]:
        stage = Stage(self.style, self.stream, name, total, unit, done)
        try:
            yield stage
        finally:
            stage.close()

    def say(self, message: str, **record: Any) -> None:
        """A single line; in JSON style the record instead."""
        if self.style == "json":
            print(json.dumps({"message": message, **record}), file=self.stream, flush=True)
        elif self.style != "quiet":
            print(message, file=self.stream, flush=True)


def progress_of(progress: Progress | None, show_progress_bar: bool | None) -> Progress:
    """The progress that was asked for: a given one, or by the flag; only the first of several processes shows it."""
    if distributed.rank() > 0:
        return Progress("quiet")
    return progress or Progress({None: None, True: "bar", False: "quiet"}[show_progress_bar])
