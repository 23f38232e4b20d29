"""The state of a training loop on disk."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from sbert_flow.fitting import distributed
from sbert_flow.fitting.files import explained, remove_leftovers, write_atomically

EVERY_STEPS = 1000
"""Steps between checkpoints: two to five seconds of training."""


class Checkpoint:
    """One file of named tensors (safetensors), replaced as a whole; rank 0 writes it.

    Args:
        path: of the file.
        every: steps between checkpoints, a multiple of 20.
    """

    def __init__(self, path: Path, every: int = EVERY_STEPS) -> None:
        self.path, self.every = path, every

    def read(self) -> dict[str, Tensor] | None:
        """The tensors, or None where there is no checkpoint.

        Raises:
            OSError: the file is damaged.
        """
        distributed.barrier()
        if not self.path.is_file():
            return None
        try:
            return load_file(self.path)
        except SafetensorError as error:
            raise OSError(f"the checkpoint {self.path} is damaged ({error}). Delete it to train anew.") from error

    def write(self, state: dict[str, Tensor]) -> None:
        """Replace the file."""
        if distributed.rank() == 0:
            with explained(self.path.parent, "writing the checkpoint"):
                write_atomically(self.path, save({name: tensor.cpu().contiguous() for name, tensor in state.items()}))

    def remove(self) -> None:
        """Delete the file, and what kills left of writing it: the fit is finished."""
        distributed.barrier()
        if distributed.rank() == 0:
            self.path.unlink(missing_ok=True)
            remove_leftovers(self.path.parent, self.path.name)
