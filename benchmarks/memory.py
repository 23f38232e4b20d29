"""Peak memory of a whole fit with an encoder that takes none: reading, encoding, storing, training. Prints Markdown.

    python benchmarks/memory.py --rows 1000000 --width 768 --folder STORE

Sentences are made up as they are read. Anonymous memory (RssAnon, Linux) is what the process cannot give back; pages
of the mapped store count in the resident set but can be dropped by the system at any time.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from sbert_flow.fitting import fit_flow
from sbert_flow.fitting.progress import Progress
from sbert_flow.modules import FlowLayer
from sbert_flow.modules.recipes import RECIPES

try:
    from sentence_transformers.base.modules import InputModule
except ImportError:
    from sentence_transformers.models import InputModule


class NumberEncoder(InputModule):
    """Embeds the sentence "number N" as pseudo-random numbers of N: no tokenizer, no weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("frequencies", torch.rand(width, generator=torch.Generator().manual_seed(0)) * 1000)

    def get_embedding_dimension(self) -> int:
        return self.width

    def preprocess(self, inputs: list[str], *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return {"number": torch.tensor([float(text.split()[1]) for text in inputs])}

    tokenize = preprocess

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {**features, "sentence_embedding": (features["number"][:, None] * self.frequencies).sin()}

    def save(self, *args: Any, **kwargs: Any) -> None: ...


def numbers(rows: int) -> Iterator[str]:
    """Every sentence twice: the duplicates are found on disk."""
    for _ in range(2):
        for number in range(rows):
            yield f"number {number}"


def status() -> dict[str, float]:
    """RssAnon and VmRSS of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith(("RssAnon", "VmRSS"))}


class Peak(threading.Thread):
    """Highest memory seen, looked at every 20 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak: dict[str, float] = {}
        self.running = True

    def run(self) -> None:
        while self.running:
            for name, value in status().items():
                self.peak[name] = max(self.peak.get(name, 0.0), value)
            time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument(
        "--folder", type=Path, help="where stores are made, and deleted afterwards; default: temporary"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    shape = RECIPES["noise"].shape
    print(f"{date.today()}, torch {torch.__version__}, one thread, d = {options.width}, recipe noise\n")
    print(
        "| distinct sentences | embeddings on disk | anonymous before | peak | **beyond** | resident peak | seconds |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for rows in options.rows:
        layer = FlowLayer(options.width, **shape)
        model = SentenceTransformer(modules=[NumberEncoder(options.width), layer], device="cpu")
        folder = Path(tempfile.mkdtemp(prefix="memory-", dir=options.folder))
        before = status()["RssAnon"]
        watch = Peak()
        watch.start()
        start = time.perf_counter()
        try:
            result = fit_flow(
                model,
                numbers(rows),
                recipe="noise",
                batch_size=512,
                store=folder / "store",
                progress=Progress("lines"),
            )
            size = sum(path.stat().st_size for path in folder.rglob("*.npy")) / 1e6
        finally:
            shutil.rmtree(folder)
        watch.running = False
        watch.join()
        peak = watch.peak["RssAnon"]
        print(
            f"| {result.rows:,} | {size:,.0f} MB | {before:,.0f} MB | {peak:,.0f} MB | **{peak - before:,.0f} MB** | "
            f"{watch.peak['VmRSS']:,.0f} MB | {time.perf_counter() - start:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
