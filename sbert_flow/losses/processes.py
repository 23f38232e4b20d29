"""What a loss does across the processes of distributed training."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def number_of_processes() -> int:
    """Processes that train together; 1 without distributed training."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def average_gradient(parameter: Tensor) -> None:
    """Average a parameter's gradient over the processes: a hook for parameters that nothing else synchronises."""
    # Under gradient accumulation this averages again what is averaged already, which changes nothing.
    if number_of_processes() > 1 and parameter.grad is not None:
        dist.all_reduce(parameter.grad)
        parameter.grad /= number_of_processes()


def gather_rows(rows: Tensor) -> tuple[Tensor, int]:
    """Join the rows of all processes, in their order and without gradient.

    Args:
        rows: shape (n, d); n may differ between processes.

    Returns:
        The joined rows, and the place of this process's first row in them.
    """
    processes = number_of_processes()
    if processes == 1:
        return rows, 0
    sizes = [torch.zeros(1, dtype=torch.long, device=rows.device) for _ in range(processes)]
    dist.all_gather(sizes, torch.tensor([len(rows)], device=rows.device))
    lengths = [int(size) for size in sizes]
    padded = rows.new_zeros(max(lengths), rows.shape[1])  # all_gather takes equal shapes only
    padded[: len(rows)] = rows.detach()
    gathered = [torch.empty_like(padded) for _ in range(processes)]
    dist.all_gather(gathered, padded)
    joined = [part[:length] for part, length in zip(gathered, lengths, strict=True)]
    return torch.cat(joined), sum(lengths[: dist.get_rank()])
