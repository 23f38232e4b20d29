"""The README's main job."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np

from sbert_flow import load
from sbert_flow.cli.demo import DEMO_POOLINGS


def test_demo_shows_and_saves_what_it_says(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "sbert_flow", "demo", "--output", "out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    assert all(pooling in done.stdout for pooling in DEMO_POOLINGS)
    assert "The flow helps" in done.stdout and "Better left alone" in done.stdout
    snippet = done.stdout.split("Use it:")[1]
    namespace = {}
    exec(
        "\n".join(line.strip() for line in snippet.strip().splitlines()).replace("'out'", repr(str(tmp_path / "out"))),
        namespace,
    )
    assert namespace["embeddings"].shape == (2, 384)
    np.testing.assert_allclose(
        load(tmp_path / "out").encode(["A first sentence.", "And a second."]), namespace["embeddings"], atol=1e-6
    )
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    # The score of the flow, not also that of the encoder.
    assert len(re.findall(r"^#### Semantic Similarity$", card, flags=re.M)) == 1
