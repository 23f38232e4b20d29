from __future__ import annotations

import io
import json

import pytest

from sbert_flow.fitting import progress
from sbert_flow.fitting.progress import Progress


def run(style: str | None, stream: io.StringIO) -> str:
    shown = Progress(style, stream)
    with shown.stage("Encoding", 100, "sentences", done=40) as stage:
        for _ in range(6):
            stage.advance(10, bits=1.5)
    shown.say("done", rows=100)
    return stream.getvalue()


def test_json_lines() -> None:
    *stages, last = [json.loads(line) for line in run("json", io.StringIO()).splitlines()]
    assert last == {"message": "done", "rows": 100}
    assert stages[-1]["done"] == stages[-1]["total"] == 100 and stages[-1]["bits"] == 1.5


def test_quiet_says_nothing() -> None:
    assert run("quiet", io.StringIO()) == ""


def test_without_a_terminal_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(None, io.StringIO()) == "done\n"
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    lines = run(None, io.StringIO()).splitlines()
    assert lines[0].startswith("Encoding: 60 of 100, ") and "s left, bits 1.5000" in lines[0]
    assert 2 < len(lines) < 7


def test_a_bar_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = run(None, Terminal())
    assert "Encoding" in shown and "100/100" in shown and "bits=1.5" in shown


def test_unknown_style() -> None:
    with pytest.raises(ValueError, match="'bar', 'lines', 'json', 'quiet' or None, but got 'loud'"):
        Progress("loud")
