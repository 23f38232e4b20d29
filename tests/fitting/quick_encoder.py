"""An encoder that takes no time: the mean of fixed random word vectors."""

from __future__ import annotations

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers

from sbert_flow.modules import FlowLayer

WORDS = [f"w{index}" for index in range(200)]


def quick_encoder(width: int = 8, seed: int = 0) -> SentenceTransformer:
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    weights = torch.randn(len(WORDS), width, generator=torch.Generator().manual_seed(seed)) + 1
    encoder = SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_weights=weights.numpy())], device="cpu"
    )
    encoder.model_card_data.generate_widget_examples = False
    return encoder


def quick_model(width: int = 8, seed: int = 0) -> SentenceTransformer:
    """The encoder with a small flow behind it."""
    encoder = quick_encoder(width, seed)
    layer = FlowLayer(width, levels=1, steps_per_level=1, hidden_width=4)
    return SentenceTransformer(modules=[*encoder.children(), layer], device="cpu")


def quick_sentences(count: int, seed: int = 0) -> list[str]:
    """Distinct sentences of 3 to 9 words."""
    generator = torch.Generator().manual_seed(seed)
    sentences = []
    for index in range(count):
        length = 2 + int(torch.randint(7, (), generator=generator))
        words = torch.randint(len(WORDS), (length,), generator=generator).tolist()
        sentences.append(" ".join([f"w{index}", *(WORDS[word] for word in words)]))
    return sentences
