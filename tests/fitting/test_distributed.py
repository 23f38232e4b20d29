"""Two processes (gloo) against one."""

from __future__ import annotations

import multiprocessing
import os
import socket
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sbert_flow.fitting import distributed, embedding_set, fit_flow
from sbert_flow.fitting.advise import Advice
from sbert_flow.modules.pipeline import split_at_flow
from tests.fitting.quick_encoder import quick_model, quick_sentences

SENTENCES = quick_sentences(500)


def fit(folder: Path, rank: int = 0, size: int = 1, port: int = 0) -> None:
    torch.set_num_threads(1)
    embedding_set.WINDOW_ROWS = 64
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }  # fmt: skip
    with distributed.process_group_from_environment():
        torch.manual_seed(rank)  # nothing may depend on the global generator
        model = quick_model(width=16)
        fit_flow(
            model, SENTENCES if rank == 0 else iter(()), recipe="noise", store=folder / "store",
            show_progress_bar=False,
        )  # fmt: skip
        save_file(split_at_flow(model)[1].state_dict(), folder / f"layer{rank}.safetensors")
        if rank:
            import_module("sbert_flow.fitting.advise").advise_sample = None  # the first alone is asked
        with pytest.raises(ValueError, match="too little text"):
            fit_flow(model, SENTENCES[:30] if rank == 0 else iter(()), show_progress_bar=False)
        advised = distributed.decided_by_first(lambda: Advice("flow", "surface-flow", f"said by {rank}", {}))
        assert advised.reason == "said by 0"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    jobs = [(one,), (two, 0, 2, port), (two, 1, 2, port)]
    processes = [context.Process(target=fit, args=job) for job in jobs]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return one, two


def test_ranks_hold_the_same_weights(folders: tuple[Path, Path]) -> None:
    first, second = (load_file(folders[1] / f"layer{rank}.safetensors") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert bool(first["initialized"])


def test_the_store_has_the_same_bytes(folders: tuple[Path, Path]) -> None:
    one, two = (sorted((folder / "store").rglob("embeddings-*")) for folder in folders)
    assert [path.name for path in one] == [path.name for path in two]
    assert len(one) == 3
    for first, second in zip(one, two, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_two_processes_fit_what_one_fits(folders: tuple[Path, Path]) -> None:
    layers = []
    for folder in folders:
        layer = split_at_flow(quick_model(width=16))[1]
        layer.load_state_dict(load_file(folder / "layer0.safetensors"))
        layers.append(layer)
    array = np.load(next((folders[0] / "store").rglob("embeddings-*.npy")))
    one, two = (layer.latents(array) for layer in layers)
    torch.testing.assert_close(one, two, atol=1e-3, rtol=0)
