"""Random rows of a matrix that may be larger than memory."""

from __future__ import annotations

import torch
from torch import Tensor

from sbert_flow.fitting.embedding_set import EmbeddingSet

BLOCK_ROWS = 512
"""Rows that are read together: close to a megabyte, so that a disk reads and does not seek."""

BUFFER_BYTES = 1 << 28
"""Embeddings in memory at a time. A set that fits is held whole and permuted at random as such."""

PERMUTED_ROWS = 1 << 20

HELD_OUT = 20
"""Of a text of 200 sentences or more, a fit does not see one in 20: its likelihood is measured on these."""

HELD_OUT_FROM = 200


def held_out(numbers: Tensor) -> Tensor:
    """Which of these row numbers are kept out of training, as booleans; the same rows in every fit."""
    return (numbers * 2654435761 >> 16) % HELD_OUT == 0  # a hash: every 20th could follow a pattern of the text


def sample_rows(rows: int, size: int, generator: torch.Generator) -> Tensor:
    """``size`` different numbers below ``rows`` in random order, or all of them."""
    if rows <= PERMUTED_ROWS:
        return torch.randperm(rows, generator=generator)[:size]
    # A permutation of 10^8 rows would take 800 MB to draw a few thousand from.
    drawn = torch.empty(0, dtype=torch.long)
    while len(drawn) < size:
        drawn = torch.cat([drawn, torch.randint(rows, (size,), generator=generator)]).unique()
    return drawn[torch.randperm(len(drawn), generator=generator)[:size]]


def read_rows(embeddings: Tensor | EmbeddingSet, rows: Tensor) -> Tensor:
    """The rows with these numbers as float32, in this order."""
    if isinstance(embeddings, Tensor):
        return embeddings[rows.to(embeddings.device)]
    order = rows.argsort()
    read = torch.from_numpy(embeddings[rows[order].numpy()].astype("float32"))  # in the order on the disk
    return read[order.argsort()]


class ShuffledRows:
    """Batches of rows in random order, one pass after another, without end.

    What fits into memory is permuted as a whole. A larger set is read in blocks of 512 rows: a pass takes its blocks
    in random order, as many at a time as the buffer holds, and permutes the rows of these. Each batch so mixes rows
    from hundreds of places of the file, also where its sentences are sorted, and the file is read in long stretches.

    Args:
        embeddings: shape (n, d).
        batch_size: rows that :meth:`take` returns.
        generator: of the permutations.
        device: where the buffer of a set on disk lies.
        without_held_out: leave out the rows of :func:`held_out`.
    """

    def __init__(
        self,
        embeddings: Tensor | EmbeddingSet,
        batch_size: int,
        generator: torch.Generator,
        device: torch.device,
        without_held_out: bool = False,
    ) -> None:
        self.embeddings, self.batch_size, self.generator, self.device = embeddings, batch_size, generator, device
        self.without_held_out = without_held_out
        rows, width = embeddings.shape
        block_count = -(-rows // BLOCK_ROWS)
        blocks_in_buffer = max(1, BUFFER_BYTES // (4 * width * BLOCK_ROWS))
        self.group_count = 1 if isinstance(embeddings, Tensor) else -(-block_count // blocks_in_buffer)
        self.block_count = block_count
        self.groups: list[Tensor] = []  # of blocks, still to be read in this pass
        self.order = torch.empty(0, dtype=torch.long)  # places in the buffer, still to be used
        self.numbers = torch.empty(0, dtype=torch.long)  # row number of each place
        if self.group_count == 1:
            resident = embeddings if isinstance(embeddings, Tensor) else _float(embeddings, slice(None)).to(device)
            self.buffer, self.numbers = resident, torch.arange(rows)
        else:
            # Batches may begin with the last rows of the buffer before.
            capacity = -(-block_count // self.group_count) * BLOCK_ROWS + batch_size
            self.buffer = torch.empty(capacity, width, device=device)

    def take(self) -> Tensor:
        """The next batch, shape (batch_size, d), float32."""
        while len(self.order) < self.batch_size:
            self._refill()
        places, self.order = self.order[: self.batch_size], self.order[self.batch_size :]
        return self.buffer[places.to(self.buffer.device, non_blocking=True)]

    def state(self) -> dict[str, Tensor]:
        """What is still to come of this pass, as row numbers; the generator's state is kept by its owner."""
        blocks = torch.cat(self.groups) if self.groups else torch.empty(0, dtype=torch.long)
        return {
            "rows": self.numbers[self.order],
            "blocks": blocks,
            "groups": torch.tensor(len(self.groups)),
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on from where :meth:`state` was taken."""
        rows, groups = state["rows"], int(state["groups"])
        # Groups are as equal as can be, larger ones first, so that splitting what is left gives them again.
        self.groups = list(state["blocks"].tensor_split(groups)) if groups else []
        if self.group_count == 1:
            self.order = rows.clone()
        else:
            self.numbers = rows.clone()
            self.buffer[: len(rows)] = read_rows(self.embeddings, rows).to(self.device)
            self.order = torch.arange(len(rows))

    def _refill(self) -> None:
        if self.group_count == 1:
            self.order = torch.cat([self.order, self._permuted(0, len(self.numbers))])
            return
        if not self.groups:
            blocks = torch.randperm(self.block_count, generator=self.generator)
            self.groups = list(blocks.tensor_split(self.group_count))
        numbers = [self.numbers[self.order]]
        end = len(self.order)
        self.buffer[:end] = self.buffer[self.order.to(self.device)]
        for block in self.groups.pop(0).sort().values.tolist():
            part = _float(self.embeddings, slice(block * BLOCK_ROWS, (block + 1) * BLOCK_ROWS))
            self.buffer[end : end + len(part)] = part
            numbers.append(torch.arange(block * BLOCK_ROWS, block * BLOCK_ROWS + len(part)))
            end += len(part)
        self.numbers = torch.cat(numbers)
        left = len(self.order)
        self.order = torch.cat([torch.arange(left), self._permuted(left, end)])

    def _permuted(self, start: int, end: int) -> Tensor:
        """The places of the buffer from ``start`` to ``end`` in random order."""
        places = start + torch.randperm(end - start, generator=self.generator)
        return places[~held_out(self.numbers[places])] if self.without_held_out else places


def _float(embeddings: Tensor | EmbeddingSet, rows: slice) -> Tensor:
    return torch.from_numpy(embeddings[rows].astype("float32"))  # type: ignore[union-attr]
