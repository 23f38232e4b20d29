"""Poolings by name, from the library's own modules."""

from __future__ import annotations

import re

import torch
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, WeightedLayerPooling
from torch import nn

TOKEN_POOLINGS = ("mean", "cls", "max")
LAYER_POOLINGS = ("first-last", "first-last-embedding", "last-two")
POOLINGS = (*TOKEN_POOLINGS, *LAYER_POOLINGS, "layer:K")
"""Names that :func:`pooling_modules` knows; K of ``layer:K`` counts from 0, the embedding layer."""


def layer_weights(name: str, num_hidden_layers: int) -> torch.Tensor:
    """Weights of the hidden states 0 (embedding layer) to L that pooling ``name`` averages over.

    ``first-last`` is the first transformer layer and the last: what BERT-flow's code does under the name "last2avg".
    ``first-last-embedding`` is the embedding layer and the last: its PyTorch port and SimCSE call it "first-last-avg".

    Raises:
        ValueError: unknown name, or a layer that the encoder does not have.
    """
    last = num_hidden_layers
    match = re.fullmatch(r"layer:(\d+)", name)
    if match:
        layers = [int(match[1])]
        if layers[0] > last:
            raise ValueError(f"pooling {name!r} is out of range: the encoder has the layers 0 (embeddings) to {last}.")
    elif name in LAYER_POOLINGS:
        layers = {"first-last": [1, last], "first-last-embedding": [0, last], "last-two": [last - 1, last]}[name]
    else:
        raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, but got {name!r}.")
    weights = torch.zeros(last + 1)
    for layer in layers:
        weights[layer] += 1 / len(layers)
    return weights


def pooling_modules(transformer: Transformer, name: str) -> list[nn.Module]:
    """The modules that turn a Transformer's token states into the sentence embedding called ``name``.

    ``mean``, ``cls`` and ``max`` pool the last layer; the others take the mean over tokens of an average of layers.
    For those the transformer is set to return all its hidden states, which its saved config keeps.

    Args:
        transformer: the encoder.
        name: one of :data:`POOLINGS`.

    Raises:
        ValueError: unknown name, a layer that the encoder does not have, or an encoder that does not say how many
            layers it has.
    """
    width = transformer.get_embedding_dimension()
    if name in TOKEN_POOLINGS:
        return [Pooling(width, name)]
    config = transformer.model.config
    num_hidden_layers = getattr(config, "num_hidden_layers", None)
    if num_hidden_layers is None:
        raise ValueError(f"{type(config).__name__} does not say how many layers it has; use 'mean', 'cls' or 'max'.")
    weights = layer_weights(name, num_hidden_layers)
    config.output_hidden_states = True  # without it WeightedLayerPooling would silently return the last layer
    layers = WeightedLayerPooling(
        width,
        num_hidden_layers=num_hidden_layers,
        layer_start=0,
        layer_weights=nn.Parameter(weights, requires_grad=False),
    )
    return [layers, Pooling(width, "mean")]
