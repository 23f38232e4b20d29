from __future__ import annotations

import subprocess
import sys

import pytest

import sbert_flow


def test_every_name_is_there():
    assert all(callable(getattr(sbert_flow, name)) for name in sbert_flow.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = sbert_flow.nothing


def test_importing_configures_and_loads_nothing():
    code = "import logging, sys, sbert_flow.cli; assert 'torch' not in sys.modules and not logging.root.handlers"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
