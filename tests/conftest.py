from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from hypothesis import settings

from sbert_flow.data import sample_sentences
from sbert_flow.evaluation.demo import packaged_encoder
from tests.tiny_encoder import make_tiny_encoder

settings.register_profile("suite", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("suite")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_tiny_encoder(tmp_path_factory.mktemp("tiny-encoder"))


@pytest.fixture(scope="session")
def minilm() -> str:
    """Folder of a real all-MiniLM-L6-v2."""
    return packaged_encoder()


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    return sample_sentences()[:400]
