"""SIGKILL at random moments: what is resumed ends with the bytes of what was never interrupted."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sbert_flow.fitting import checkpoint, embedding_set, fit_flow, sampling
from sbert_flow.fitting.store import EmbeddingStore
from sbert_flow.modules.pipeline import encoder_before_flow, split_at_flow
from tests.fitting.quick_encoder import quick_model, quick_sentences

SENTENCES = 300
SEEDS = range(20)

Job = Callable[[Path], None]


def fill_store(folder: Path) -> None:
    embedding_set.WINDOW_ROWS = 32
    model = quick_model()
    EmbeddingStore.open(folder, (s for s in quick_sentences(SENTENCES) * 2)).embed(encoder_before_flow(model))


def fit(folder: Path) -> None:
    """The whole fit; the rows come from more than one buffer, so that the state of the shuffle counts."""
    embedding_set.WINDOW_ROWS = 128
    checkpoint.Checkpoint.__init__.__defaults__ = (20,)  # steps between checkpoints
    sampling.BLOCK_ROWS, sampling.BUFFER_BYTES = 8, 100 * 8 * 4
    torch.manual_seed(0)
    model = quick_model()
    fit_flow(model, quick_sentences(SENTENCES), recipe="noise", store=folder, show_progress_bar=False)
    state = split_at_flow(model)[1].state_dict()
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in state.values()))
    (folder / "result").write_text(digest.hexdigest())


def run(job: Job, folder: Path, die_at: int | None, calls: Any) -> None:
    """Run the job, counting Python and C calls; die at the given one."""
    torch.set_num_threads(1)
    count = 0

    def profile(*event: Any) -> None:
        nonlocal count
        count += 1
        if count == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(profile)
    try:
        job(folder)
    finally:
        sys.setprofile(None)
    calls.value = count


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, int]]:
    # A server that has imported everything once forks a fresh process in a moment; it takes its path from here.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])

    def start(job: Job, folder: Path, die_at: int | None = None) -> tuple[int, int]:
        calls = context.Value("q", 0)
        process = context.Process(target=run, args=(job, folder, die_at, calls))
        process.start()
        process.join()
        return process.exitcode, calls.value

    return start


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize(("job", "kills"), [(fill_store, 2), (fit, 1)])
def test_killed_at_random_moments_the_result_is_the_same(start: Any, job: Job, kills: int, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    code, calls = start(job, tmp_path / "whole")
    assert code == 0
    expected = contents(tmp_path / "whole")
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        folder.mkdir()
        moments = np.random.default_rng(seed).integers(1, calls, size=kills)
        codes = [start(job, folder, int(moment))[0] for moment in moments]
        assert codes[0] == -signal.SIGKILL
        assert start(job, folder)[0] == 0
        assert contents(folder) == expected, f"seed {seed}"
