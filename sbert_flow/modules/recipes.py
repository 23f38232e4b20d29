"""Recipes: the shape of the map and the settings of its training, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

INIT_ROWS = 4096
"""Rows of the sample that the data-dependent initialisation sees."""


@dataclass(frozen=True)
class Recipe:
    """A flow's shape and how to train it.

    Attributes:
        levels, steps_per_level, hidden_width, coupling, act_norm, front, raw_weight, mixing: arguments of
            :class:`sbert_flow.FlowLayer`.
        nuisance_weight: c of the surface map, :func:`sbert_flow.flows.surface_matrix`; only with a front.
        batch_size: rows in a step.
        learning_rate: of :class:`sbert_flow.losses.FlowAdamW`, constant.
        weight_decay: decoupled; biases are exempt.
        noise: standard deviation of Gaussian noise on training embeddings, in units of their root mean square
            standard deviation.
        average_decay: decay of the exponential moving average of the weights that is kept; 0 keeps the last weights.
    """

    levels: int = 3
    steps_per_level: int = 6
    hidden_width: int = 32
    coupling: str = "additive"
    act_norm: bool = True
    front: bool = False
    raw_weight: float = 0.0
    mixing: str = "concatenate"
    nuisance_weight: float = 0.0
    batch_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    noise: float = 0.0
    average_decay: float = 0.0

    @property
    def shape(self) -> dict[str, Any]:
        """The arguments of FlowLayer beside its width."""
        return {
            "levels": self.levels,
            "steps_per_level": self.steps_per_level,
            "hidden_width": self.hidden_width,
            "coupling": self.coupling,
            "act_norm": self.act_norm,
            "front": self.front,
            "raw_weight": self.raw_weight,
            "mixing": self.mixing,
        }


RECIPES = {
    # Noise on the embeddings keeps the flow from whitening directions that hardly vary: the best of our trials.
    "noise": Recipe(noise=0.5, average_decay=0.99),
    # The setting of BERT-flow's public code (Li et al., 2020).
    "paper": Recipe(steps_per_level=3, batch_size=32),
    # Linear, nothing trained: whitening against what changes with the surface of a sentence alone.
    "surface": Recipe(levels=1, steps_per_level=0, act_norm=False, front=True, nuisance_weight=10.0),
    # The same map in front of a small flow: where the text is of the domain of use.
    "surface-flow": Recipe(
        levels=1, steps_per_level=3, act_norm=False, front=True, nuisance_weight=10.0, noise=0.5, average_decay=0.99
    ),
    # Both spaces added, for encoders that are good already.
    "mix": Recipe(
        levels=1, steps_per_level=0, act_norm=False, front=True, nuisance_weight=10.0, raw_weight=0.6, mixing="add"
    ),
}
"""The recipes by name."""


AUTO = "auto"
"""Name that stands for the recipe of :func:`sbert_flow.advise`."""


def get_recipe(name: str) -> Recipe:
    """Return the recipe called ``name``.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in RECIPES:
        known = ", ".join(map(repr, [AUTO, *RECIPES]))
        raise ValueError(
            f"recipe must be one of {known}, but got {name!r}. Whitening is fitted by sbert_flow.fit_whitening "
            "(--recipe whitening), not by a recipe of fit_flow."
        )
    return RECIPES[name]
