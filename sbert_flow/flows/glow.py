"""Multi-scale Glow for vectors: the flow of BERT-flow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from sbert_flow.flows.actnorm import ActNorm
from sbert_flow.flows.bijection import Bijection, Composition
from sbert_flow.flows.coupling import AdditiveCoupling, AffineCoupling, split_sizes
from sbert_flow.flows.folded import FoldedFlow, fold
from sbert_flow.flows.permutation import Reverse

COUPLINGS = {"additive": AdditiveCoupling, "affine": AffineCoupling}


def standard_normal_log_prob(z: Tensor) -> Tensor:
    """Log density of N(0, I) in nats at the rows of ``z`` (n, d): shape (n,)."""
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))


def bits_per_dimension(z: Tensor, log_det: Tensor) -> Tensor:
    r"""Negative log-likelihood of each row, in bits per dimension.

    .. math:: -(\log N(z; 0, I) + \log|\det|) / (d \ln 2)

    It may be negative: the likelihood is a density.

    Args:
        z: latents, shape (n, d).
        log_det: log-determinants in nats, shape (n,).

    Returns:
        Shape (n,).
    """
    return (standard_normal_log_prob(z) + log_det) / (-z.shape[-1] * math.log(2))


class Glow(Bijection):
    r"""Glow (Kingma & Dhariwal, 2018) on vectors, as BERT-flow uses it (Li et al., EMNLP 2020).

    Each level is ``steps_per_level`` times ActNorm -> reversal -> coupling. After each level but the last, the second
    half of the channels leaves as latents and the first half (ceil(w/2) of w) goes on:

    .. math:: z = [\text{left after level } 1, \text{left after level } 2, \dots, \text{rest}]

    A level that would have fewer than two channels is left out, so any width works.

    Args:
        width: number of dimensions d >= 2.
        levels: L >= 1.
        steps_per_level: K >= 0; without steps the map only reorders channels; with one level it is the identity.
        hidden_width: width of the hidden layers in the couplings.
        coupling: "additive" or "affine".
        act_norm: whether the steps have their ActNorm; the ones inside the couplings stay in any case.

    Raises:
        ValueError: an argument is outside its range.
    """

    order: Tensor

    def __init__(
        self,
        width: int,
        levels: int = 3,
        steps_per_level: int = 6,
        hidden_width: int = 32,
        coupling: str = "additive",
        act_norm: bool = True,
    ) -> None:
        super().__init__()
        if coupling not in COUPLINGS:
            raise ValueError(f"coupling must be one of {', '.join(map(repr, COUPLINGS))}, but got {coupling!r}.")
        limits = {"width": (width, 2), "levels": (levels, 1), "steps_per_level": (steps_per_level, 0)}
        for name, (value, least) in {**limits, "hidden_width": (hidden_width, 1)}.items():
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, but got {value!r}.")
        self.widths = [width]
        while len(self.widths) < levels and split_sizes(self.widths[-1])[0] >= 2:
            self.widths.append(split_sizes(self.widths[-1])[0])
        self.levels = nn.ModuleList(
            Composition(
                *(
                    Composition(*([ActNorm(w)] if act_norm else []), Reverse(), COUPLINGS[coupling](w, hidden_width))
                    for _ in range(steps_per_level)
                )
            )
            for w in self.widths
        )

        # z[:, order] has the coordinates of x in their own order again.
        self.register_buffer("order", self._permuted(torch.arange(width), steps_per_level).argsort(), persistent=False)
        self._foldable = coupling == "additive" and steps_per_level > 0
        self._folded: tuple[int, list[Tensor], FoldedFlow] | None = None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x (n, d) to z (n, d) and ``log |det|`` (n,); without gradients by the folded form of the flow."""
        folded = self._fold(x)
        if folded is not None:
            return folded.forward(x)
        left = []
        log_det = x.new_zeros(len(x))
        for index, level in enumerate(self.levels):
            if index:
                x, out = x.split(split_sizes(self.widths[index - 1]), dim=-1)
                left.append(out)
            x, term = level(x)
            log_det = log_det + term
        return torch.cat([*left, x], dim=-1), log_det

    def _permuted(self, x: Tensor, steps_per_level: int) -> Tensor:
        """Where splits and reversals take the entries of x (d,)."""
        left = []
        for index in range(len(self.widths)):
            if index:
                x, out = x.split(split_sizes(self.widths[index - 1]))
                left.append(out)
            x = x.flip(0) if steps_per_level % 2 else x
        return torch.cat([*left, x])

    def inverse(self, z: Tensor) -> Tensor:
        folded = self._fold(z)
        if folded is not None:
            return folded.inverse(z)
        sizes = [split_sizes(width)[1] for width in self.widths[:-1]]
        *left, x = z.split([*sizes, self.widths[-1]], dim=-1)
        for index in reversed(range(len(self.widths))):
            x = self.levels[index].inverse(x)  # type: ignore[operator]
            if index:
                x = torch.cat([x, left.pop()], dim=-1)
        return x

    def train(self, mode: bool = True) -> Self:
        if mode:
            self._forget()
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_folded": None}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._forget()
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._forget()
        super()._load_from_state_dict(*args, **kwargs)

    def _forget(self) -> None:
        self._folded = None

    def _fold(self, x: Tensor) -> FoldedFlow | None:
        """The folded flow where it serves: no gradients wanted, rows of the flow's own dtype."""
        if torch.compiler.is_compiling() or not self._foldable or x.ndim != 2:
            return None
        if torch.is_grad_enabled():
            self._forget()  # a step of training may follow, and fused optimisers leave no trace in a tensor's version
            return None
        if self._folded is None:
            state = [*self.parameters(), *self.buffers()]
            if any(
                tensor.is_inference() for tensor in state
            ):  # made in inference mode: changes to them leave no trace
                return None
            self._folded = (_version(state), state, fold(self))
        version, state, folded = self._folded
        if version != _version(state):  # changed in place
            self._forget()
            return self._fold(x)
        return folded if x.dtype == folded.scale.dtype and x.device == folded.scale.device else None

    @torch.no_grad()
    def initialize(self, x: Tensor) -> Tensor:
        """Set every ActNorm from the sample ``x`` (n, d), the ones inside the couplings too; return the latents."""
        left = []
        for index, level in enumerate(self.levels):
            if index:
                x, out = x.split(split_sizes(self.widths[index - 1]), dim=-1)
                left.append(out)
            x = level.initialize(x)  # type: ignore[operator]
        return torch.cat([*left, x], dim=-1)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for level in self.levels:
            level.reset_parameters(generator)  # type: ignore[operator]

    def log_prob(self, x: Tensor) -> Tensor:
        """Log density in nats of the rows of ``x`` (n, d): log N(z; 0, I) + ``log |det|``, shape (n,)."""
        z, log_det = self(x)
        return standard_normal_log_prob(z) + log_det


def _version(state: list[Tensor]) -> int:
    """A number that grows whenever one of the tensors is changed in place."""
    return sum(tensor._version for tensor in state)
