"""``python -m sbert_flow``: the same as ``sbert-flow``."""

from __future__ import annotations

from sbert_flow.cli import main

if __name__ == "__main__":
    main()
