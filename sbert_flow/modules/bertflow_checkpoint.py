"""Reader of pytorch-bertflow's checkpoints."""

from __future__ import annotations

import math
import re
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

_NAMES = {
    "actnorm.loc": "0.shift",
    "actnorm.logscale": "0.log_scale",
    "coupling.net.0.weight": "2.network.linear1.weight",
    "coupling.net.1.loc": "2.network.norm1.shift",
    "coupling.net.1.logscale": "2.network.norm1.log_scale",
    "coupling.net.3.weight": "2.network.linear2.weight",
    "coupling.net.4.loc": "2.network.norm2.shift",
    "coupling.net.4.logscale": "2.network.norm2.log_scale",
    "coupling.net.6.conv.weight": "2.network.linear3.weight",
    "coupling.net.6.conv.bias": "2.network.linear3.bias",
    "coupling.net.6.scale": "2.network.log_scale",
}
_KEY = re.compile(r"(?:glow\.)?blocks\.(\d+)\.flows\.(\d+)\.(.+)")


def read(path: str | Path) -> dict[str, Tensor]:
    """Read a checkpoint file, or ``glow.bin`` in a folder, without running any code that it may hold.

    Raises:
        OSError: no such file, or it cannot be read.
        ValueError: it holds something else than a state dict.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "glow.bin"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except (RuntimeError, UnpicklingError, EOFError, ValueError) as error:
        raise OSError(f"{path} is damaged, cut short or not a torch checkpoint: {error}") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{path} is not a plain state dict of a pytorch-bertflow Glow.")
    return state


def convert(state: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the FlowLayer arguments and state dict entries for a pytorch-bertflow state dict.

    Raises:
        ValueError: keys are missing or unknown, or a permutation is not a reversal.
    """
    converted: dict[str, Tensor] = {}
    levels, steps = 0, 0
    for key, value in state.items():
        match = _KEY.fullmatch(key)
        if not match:
            raise ValueError(f"unknown key {key!r}: not a checkpoint of pytorch-bertflow's Glow.")
        level, step, name = int(match[1]), int(match[2]), match[3]
        levels, steps = max(levels, level + 1), max(steps, step + 1)
        if name == "invconv.weight":
            matrix = value.flatten(1) if value.ndim > 1 else value
            if not torch.equal(matrix, torch.eye(len(matrix), dtype=matrix.dtype).flip(0)):
                raise ValueError(f"{key!r} is not a reversal of the channels: this flow cannot be represented.")
        elif name in _NAMES:
            # Images of one pixel there, vectors here.
            shape = value.shape[:2] if name.endswith("weight") else (value.numel(),)
            if value.numel() != math.prod(shape):
                raise ValueError(f"{key!r} has the shape {tuple(value.shape)}, which no Glow of pytorch-bertflow has.")
            converted[f"flow.levels.{level}.{step}.{_NAMES[name]}"] = value.reshape(shape)
        elif name.endswith("initialized"):
            if not bool(value):
                raise ValueError(f"{key!r} is 0: the flow of this checkpoint was never initialised, so never trained.")
        else:
            raise ValueError(f"unknown key {key!r}: not a checkpoint of pytorch-bertflow's Glow.")
    missing = [
        f"blocks.{level}.flows.{step}.{name}"
        for level in range(levels)
        for step in range(steps)
        for name, ours in _NAMES.items()
        if f"flow.levels.{level}.{step}.{ours}" not in converted
    ]
    if missing or not converted:
        raise ValueError(f"the checkpoint lacks {len(missing)} keys, first {(missing or ['blocks.0'])[0]!r}.")
    config = {
        "embedding_dimension": converted["flow.levels.0.0.0.shift"].numel(),
        "levels": levels,
        "steps_per_level": steps,
        "hidden_width": len(converted["flow.levels.0.0.2.network.linear1.weight"]),
        "coupling": "additive",
    }
    return config, converted
