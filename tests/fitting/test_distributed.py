"""Two processes (gloo) against one."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sbert_flow.fitting import distributed, embedding_set, fit_flow
from sbert_flow.fitting.advise import Advice
from sbert_flow.fitting.store import EmbeddingStore
from sbert_flow.modules.pipeline import split_at_flow
from tests.fitting.quick_encoder import quick_encoder, quick_model, quick_sentences

SENTENCES = quick_sentences(500)


def join(rank: int, size: int, port: int) -> AbstractContextManager:
    torch.set_num_threads(1)
    embedding_set.WINDOW_ROWS = 64
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }  # fmt: skip
    return distributed.process_group_from_environment()


def run(job: Callable[..., None], *jobs: tuple) -> None:
    """Run ``job(folder, rank, size, port)`` in a process for each of ``jobs``."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=job, args=arguments) for arguments in jobs]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def fit(folder: Path, rank: int = 0, size: int = 1, port: int = 0) -> None:
    with join(rank, size, port):
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
    port = free_port()
    run(fit, (one,), (two, 0, 2, port), (two, 1, 2, port))
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


class Unpicklable(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def fail(folder: Path, rank: int, size: int, port: int) -> None:
    """Every rank notes what it got."""
    got: list[str] = []

    def note(call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            got.append(f"{type(error).__name__}: {error}")
        else:
            got.append("nothing")

    def block(*errors: Exception | None) -> None:
        with distributed.same_error():
            if errors[rank]:
                raise errors[rank]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def edit(sentence: str) -> str:
        return sentence if sentence != SENTENCES[70] else None  # type: ignore[return-value]  # in window 1, rank 1's

    with join(rank, size, port):
        note(lambda: block(None, None))
        note(lambda: block(ValueError("of 0"), None))
        note(lambda: block(None, OSError(28, "full", "disk")))
        note(lambda: block(KeyError("of 0"), ValueError("of 1")))
        note(lambda: block(None, Unpicklable("of", "1")))
        note(lambda: EmbeddingStore.open(folder / "store", ["too", "few"] if rank == 0 else []))
        store = EmbeddingStore.open(folder / "store", SENTENCES if rank == 0 else [])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            note(lambda: store.embed(quick_encoder()))
        note(lambda: store.embed(quick_encoder(), name="edited", edit=edit))
        note(lambda: store.embed(quick_encoder()))
    (folder / f"got{rank}").write_text("\n".join(got))


def test_an_error_on_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    port = free_port()
    run(fail, (tmp_path, 0, 2, port), (tmp_path, 1, 2, port))
    first, second = ((tmp_path / f"got{rank}").read_text().splitlines() for rank in (0, 1))
    same = [
        "nothing",
        "ValueError: of 0",
        "OSError: [Errno 28] full: 'disk'",
    ]
    assert first[:3] == second[:3] == same
    assert (first[3], second[3]) == ("KeyError: 'of 0'", "ValueError: of 1")  # each its own
    assert (first[4], second[4]) == ("RuntimeError: Unpicklable: of 1", "Unpicklable: of 1")
    assert first[5:] == second[5:]
    assert "at least 16 different sentences are needed, but got 2" in first[5]
    assert "writing the embeddings failed (No space left on device)" in first[6]
    assert "the edit must return a string" in first[7]
    assert first[8] == "nothing"


def encode_half(folder: Path, rank: int, size: int, port: int) -> None:
    def edit(sentence: str) -> str:
        assert sentence != SENTENCES[30]
        return sentence

    with join(rank, size, port):
        store = EmbeddingStore.open(folder / "store", SENTENCES[:50])
        with pytest.raises(AssertionError):
            store.embed(quick_encoder(), name="same", edit=edit)


def test_every_process_has_a_window_and_one_process_continues_them(tmp_path: Path) -> None:
    port = free_port()
    run(encode_half, (tmp_path, 0, 2, port), (tmp_path, 1, 2, port))
    encoded: list[str] = []

    def edit(sentence: str) -> str:
        encoded.append(sentence)
        return sentence

    embeddings = EmbeddingStore.open(tmp_path / "store", SENTENCES[:50]).embed(quick_encoder(), name="same", edit=edit)
    assert encoded == SENTENCES[25:50]  # rank 0 did its half
    np.testing.assert_array_equal(embeddings.array, quick_encoder().encode(SENTENCES[:50]))
