from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sbert_flow.fitting import sampling
from sbert_flow.fitting.embedding_set import EmbeddingSet
from sbert_flow.fitting.sampling import ShuffledRows, held_out, read_rows, sample_rows

ROWS, WIDTH, BATCH = 1000, 2, 48
CPU = torch.device("cpu")


@pytest.fixture(params=["memory", "one buffer", "several buffers"])
def embeddings(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Row i holds i, so that the file is sorted."""
    array = np.repeat(np.arange(ROWS, dtype=np.float32)[:, None], WIDTH, axis=1)
    if request.param == "memory":
        return torch.from_numpy(array)
    monkeypatch.setattr(sampling, "BLOCK_ROWS", 7)
    if request.param == "several buffers":
        monkeypatch.setattr(sampling, "BUFFER_BYTES", 300 * WIDTH * 4)
    embeddings = EmbeddingSet.create(tmp_path / "set.json", ROWS, WIDTH, "float32", {})
    embeddings.write(0, array)
    return embeddings


def rows_of(embeddings, seed: int = 0) -> ShuffledRows:
    return ShuffledRows(embeddings, BATCH, torch.Generator().manual_seed(seed), CPU)


def test_each_pass_has_every_row_once(embeddings) -> None:
    rows = rows_of(embeddings)
    drawn = torch.cat([rows.take()[:, 0] for _ in range(3 * ROWS // BATCH + 1)]).long()
    for number in range(3):
        assert torch.equal(drawn[number * ROWS : (number + 1) * ROWS].sort().values, torch.arange(ROWS))
    assert not torch.equal(drawn[:ROWS], drawn[ROWS : 2 * ROWS])


def test_held_out_rows_never_come_and_the_others_do(embeddings) -> None:
    rows = ShuffledRows(embeddings, BATCH, torch.Generator().manual_seed(0), CPU, without_held_out=True)
    kept = torch.arange(ROWS)[~held_out(torch.arange(ROWS))]
    assert 0.93 * ROWS < len(kept) < 0.97 * ROWS
    drawn = torch.cat([rows.take()[:, 0] for _ in range(2 * ROWS // BATCH + 1)]).long()
    assert torch.equal(drawn[: len(kept)].sort().values, kept)
    assert torch.equal(drawn[len(kept) : 2 * len(kept)].sort().values, kept)


def test_batches_of_a_sorted_file_look_like_the_whole(embeddings) -> None:
    rows = rows_of(embeddings)
    means = torch.stack([rows.take()[:, 0].mean() for _ in range(ROWS // BATCH)])
    spreads = torch.stack([rows.take()[:, 0].std() for _ in range(ROWS // BATCH)])
    # The standard error of a mean of 48 random rows is 42; blocks in their order would give means of 24 to 976.
    assert (means - ROWS / 2).abs().max() < 4 * 42
    assert spreads.min() > 200  # of 289


def test_goes_on_from_a_state(embeddings) -> None:
    whole = rows_of(embeddings, seed=3)
    for taken in range(30):
        state, generator = whole.state(), whole.generator.get_state()
        again = ShuffledRows(embeddings, BATCH, torch.Generator(), CPU)
        again.generator.set_state(generator)
        again.load_state(state)
        for _ in range(25):
            expected = again.take()
        reference = rows_of(embeddings, seed=3)
        for _ in range(taken + 25):
            last = reference.take()
        assert torch.equal(expected, last)
        whole.take()


def test_read_rows_keeps_the_order(embeddings) -> None:
    rows = torch.tensor([900, 3, 3, 500])
    assert torch.equal(read_rows(embeddings, rows)[:, 0].long(), rows)


@pytest.mark.parametrize("total", [50, 1 << 21])
def test_sample_rows_are_distinct_and_spread(total: int) -> None:
    sample = sample_rows(total, 40, torch.Generator().manual_seed(0))
    assert len(sample.unique()) == 40
    assert 0 <= sample.min() and sample.max() < total
    assert abs(sample.double().mean() / total - 0.5) < 0.2
    assert len(sample_rows(total, total * 2, torch.Generator()) if total == 50 else range(50)) == 50
