"""Several processes: who am I, and the few things that ranks have to agree on."""

from __future__ import annotations

import os
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


def decided_by_first(decide: Callable[[], Any]) -> Any:
    """What ``decide`` gives on rank 0, on every rank; an error that it raises there is raised on every rank."""
    value, error = None, None
    if rank() == 0:
        try:
            value = decide()
        except Exception as raised:
            error = raised
    value, error = from_first((value, error))
    if error is not None:
        raise error
    return value


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
