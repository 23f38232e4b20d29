"""Recipes for training an encoder on unlabelled sentences, as data."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    ContrastiveTensionLoss,
    DenoisingAutoEncoderLoss,
    MultipleNegativesRankingLoss,
)
from torch import nn

from sbert_flow.losses import PseudoTokenLoss
from sbert_flow.losses.pseudo_token import warn_without_dropout

DELETED = 0.6
"""Share of the words that TSDAE deletes."""

PAIRS_PER_POSITIVE = 8
"""One pair in eight of Contrastive Tension is a sentence with itself."""


@dataclass(frozen=True)
class EncoderRecipe:
    """How an encoder is trained without labels.

    Attributes:
        learning_rate: the paper's, of AdamW with linear decay.
        loss: makes the loss of a model; the second argument is the seed.
        columns: makes the training columns of the sentences with a source of random numbers.
        resumable: whether all that the loss learns is kept in the checkpoints.
    """

    learning_rate: float
    loss: Callable[[SentenceTransformer, int], nn.Module]
    columns: Callable[[list[str], random.Random], dict[str, list[Any]]]
    resumable: bool


def single(sentences: list[str], source: random.Random) -> dict[str, list[Any]]:
    """One column."""
    return {"sentence": sentences}


def twice(sentences: list[str], source: random.Random) -> dict[str, list[Any]]:
    """Each sentence beside itself: dropout makes the two views."""
    return {"first": sentences, "second": sentences}


def damaged(sentences: list[str], source: random.Random) -> dict[str, list[Any]]:
    """Each sentence with 60 % of its words deleted (one is always left), and whole."""
    halves = []
    for sentence in sentences:
        words = sentence.split()
        kept = [word for word in words if source.random() >= DELETED]
        halves.append(" ".join(kept or [source.choice(words)] if words else []))
    return {"damaged": halves, "whole": sentences}


def tension(sentences: list[str], source: random.Random) -> dict[str, list[Any]]:
    """Pairs of which one in eight is a sentence with itself; the others are with any other one."""
    second = []
    for place, sentence in enumerate(sentences):
        other = source.randrange(len(sentences) - 1)
        other += other >= place  # never the sentence itself
        second.append(sentence if place % PAIRS_PER_POSITIVE == 0 else sentences[other])
    return {"first": sentences, "second": second}


def simcse(model: SentenceTransformer, seed: int) -> nn.Module:
    """In-batch contrast at temperature .05, the scale 20; without the paper's projection head."""
    warn_without_dropout(model[0])
    return MultipleNegativesRankingLoss(model, scale=20.0)


ENCODER_RECIPES = {
    # Tan et al., Findings of ACL 2022.
    "ptbert": EncoderRecipe(3e-5, lambda model, seed: PseudoTokenLoss(model, seed=seed), single, resumable=True),
    # Gao et al., EMNLP 2021.
    "simcse": EncoderRecipe(3e-5, simcse, twice, resumable=True),
    # Wang et al., Findings of EMNLP 2021. Its decoder is not kept in checkpoints.
    # The library loads the decoder anew, in the dtype of the checkpoint's file, and ties the encoder's weights to it.
    "tsdae": EncoderRecipe(
        3e-5, lambda model, seed: DenoisingAutoEncoderLoss(model).float(), damaged, resumable=False
    ),
    # Carlsson et al., ICLR 2021. Its second encoder is not kept in checkpoints.
    "ct": EncoderRecipe(1e-5, lambda model, seed: ContrastiveTensionLoss(model), tension, resumable=False),
}
"""The recipes by name."""


def get_encoder_recipe(name: str) -> EncoderRecipe:
    """Return the recipe called ``name``.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in ENCODER_RECIPES:
        raise ValueError(f"recipe must be one of {', '.join(map(repr, ENCODER_RECIPES))}, but got {name!r}.")
    return ENCODER_RECIPES[name]
