"""Several processes: who am I, and the few things that ranks have to agree on."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = timedelta(days=7)
"""Ranks wait for each other while one of them reads text for hours; the default of minutes would end the job."""


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def barrier() -> None:
    if world_size() > 1:
        dist.barrier()


def from_first(value: Any = None) -> Any:
    """The value that rank 0 has, on every rank."""
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Add up a tensor over the ranks, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def any_rank(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set on some rank."""
    if world_size() == 1:
        return flag
    return bool(sum_over_ranks(torch.tensor(float(flag), device=device)))


@contextmanager
def same_error() -> Iterator[None]:
    """Around a block that every rank enters: if it fails on one rank, it fails on all, once all have ended it.

    A rank whose block failed raises its own error; the others raise that of the first rank that failed. Without it
    they would wait for that rank, or end with an error about the connection. The block itself must not wait for other
    ranks::

        text = None
        with distributed.same_error():
            if distributed.rank() == 0:
                text = read()  # may raise
        text = distributed.from_first(text)

    An interrupt (:class:`KeyboardInterrupt`) goes its way at once: it reaches every rank by itself.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    if world_size() > 1:
        failures: list[Exception | None] = [None] * world_size()
        dist.all_gather_object(failures, failure and _portable(failure))
        failure = failure or next((error for error in failures if error), None)
    if failure:
        raise failure


def decided_by_first(decide: Callable[[], Any]) -> Any:
    """What ``decide`` gives on rank 0, on every rank; an error that it raises there is raised on every rank."""
    value = None
    with same_error():
        if rank() == 0:
            value = decide()
    return from_first(value)


def _portable(error: Exception) -> Exception:
    """The error, or where it cannot be pickled a RuntimeError that says the same; with the rank it comes from."""
    try:
        sent: Exception = pickle.loads(pickle.dumps(error))
        if not isinstance(sent, type(error)):
            raise TypeError
    except Exception:
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note(f"This error was raised on rank {rank()}.")
    return sent


@contextmanager
def process_group_from_environment() -> Iterator[torch.device | None]:
    """Join the processes that ``torchrun`` or ``accelerate launch`` started: nccl for GPUs, gloo for CPUs.

    Yields:
        The device of this process, or None where there is a single process.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield None
        return
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl", timeout=PATIENCE)
    try:
        yield device
    finally:
        dist.destroy_process_group()
