"""FlowLayer: the flow as a sentence-transformers module.

``sbert_flow.modules.flow_layer.FlowLayer`` is written into the modules.json of saved models: never move this class.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from sbert_flow.flows import FrozenAffine, Glow, inverse_square_root, live_dimensions
from sbert_flow.flows.glow import standard_normal_log_prob
from sbert_flow.modules.map_layer import MapLayer
from sbert_flow.modules.validation import MIN_ROWS, check_embeddings

QUANTILES = 1001
"""Log densities of the fitted text that are kept, from the least to the most likely."""

ADD = "add"
MIXINGS = ("concatenate", ADD)


class Adaptation(FrozenAffine):
    """What :meth:`FlowLayer.adapt` puts before the flow, and the raw weight that goes with it (None: as fitted)."""

    def __init__(self, width: int, raw_weight: float | None = None) -> None:
        super().__init__(width)
        if raw_weight is not None and not 0 <= raw_weight <= 1:
            raise ValueError(f"raw_weight must be from 0 to 1, but got {raw_weight!r}.")
        self.raw_weight = None if raw_weight is None else float(raw_weight)


class FlowLayer(MapLayer):
    r"""Maps sentence embeddings x to the latents z = f(x) of a normalizing flow with z ~ N(0, I).

    "On the Sentence Embeddings from Pre-trained Language Models" (BERT-flow; Li et al., EMNLP 2020). The map is Glow
    (:class:`sbert_flow.flows.Glow`), invertible and fitted without labels by maximum likelihood, either by
    :func:`sbert_flow.fit_flow` or with :class:`sbert_flow.FlowNLLLoss`. Put it after the pooling and before any
    ``Normalize``::

        SentenceTransformer(modules=[transformer, pooling, FlowLayer(pooling.get_embedding_dimension())])

    It reads and writes ``features["sentence_embedding"]``, shape (n, d). It computes in float32 whatever the dtype of
    the encoder and returns the encoder's dtype. In training mode the embeddings are detached: nothing before the layer
    gets a gradient. ``truncate_dim`` cuts the latents without any Matryoshka meaning.

    Args:
        embedding_dimension: d >= 2, the width of the embeddings.
        levels: levels L of the multi-scale flow.
        steps_per_level: steps K of each level; 0, for a linear map, only with ``front`` and one level.
        hidden_width: width of the hidden layers in the couplings.
        coupling: "additive" or "affine".
        act_norm: whether the steps begin with an ActNorm.
        front: put a frozen affine map before the flow: f is their composition. See :meth:`set_front`.
        raw_weight: weight w of the raw embedding in what the layer writes. Latents, inverse and likelihood stay those
            of f.
        mixing: how a ``raw_weight`` above 0 mixes both. "add" writes

            .. math:: w\, x / |x| + (1 - w)\, z / |z|

            of width d, with the coordinates of z in the order that they have in x. "concatenate" writes

            .. math:: [\sqrt{w}\, x / |x| \,;\, \sqrt{1 - w}\, z / |z|]

            of width 2 d, whose cosine similarity is w times the raw one plus 1 - w times that of the latents.
        adapted, adapted_raw_weight: whether there is an adaptation to new text, and its raw weight, see
            :meth:`adapt`.

    Raises:
        ValueError: an argument is outside its range.
    """

    config_keys = [  # noqa: RUF012
        "embedding_dimension",
        "levels",
        "steps_per_level",
        "hidden_width",
        "coupling",
        "act_norm",
        "front",
        "raw_weight",
        "mixing",
        "adapted",
        "adapted_raw_weight",
    ]
    forward_kwargs = {"return_log_det", "noise"}  # noqa: RUF012
    map_name = "flow"
    fit_hint = "sbert_flow.fit_flow(model, sentences)"

    noise_unit: Tensor
    center: Tensor
    log_prob_quantiles: Tensor
    log_prob_moments: Tensor
    log_prob_rows: Tensor
    covariance_share: Tensor

    def __init__(
        self,
        embedding_dimension: int,
        levels: int = 3,
        steps_per_level: int = 6,
        hidden_width: int = 32,
        coupling: str = "additive",
        act_norm: bool = True,
        front: bool = False,
        raw_weight: float = 0.0,
        mixing: str = "concatenate",
        adapted: bool = False,
        adapted_raw_weight: float | None = None,
    ) -> None:
        super().__init__()
        if steps_per_level == 0 and not (front and levels == 1):
            raise ValueError("steps_per_level must be at least 1; 0, a linear map, needs front=True and levels=1.")
        if isinstance(raw_weight, bool) or not isinstance(raw_weight, (int, float)) or not 0 <= raw_weight < 1:
            raise ValueError(f"raw_weight must be at least 0 and below 1, but got {raw_weight!r}.")
        if mixing not in MIXINGS:
            raise ValueError(f"mixing must be one of {', '.join(map(repr, MIXINGS))}, but got {mixing!r}.")
        self.embedding_dimension = embedding_dimension
        self.levels = levels
        self.steps_per_level = steps_per_level
        self.hidden_width = hidden_width
        self.coupling = coupling
        self.act_norm = act_norm
        self.raw_weight = float(raw_weight)
        self.mixing = mixing
        self.flow = Glow(embedding_dimension, levels, steps_per_level, hidden_width, coupling, act_norm)
        self.affine = FrozenAffine(embedding_dimension) if front else None
        # Root mean square standard deviation of the embeddings that the flow was initialised on; 0 in dead dimensions.
        self.register_buffer("noise_unit", torch.zeros(embedding_dimension))
        # Of the text that the flow was fitted on; zeros where unknown (an old file, another program's checkpoint).
        self.register_buffer("center", torch.zeros(embedding_dimension))
        self.register_buffer("log_prob_quantiles", torch.zeros(QUANTILES))
        self.register_buffer("log_prob_moments", torch.zeros(2))  # mean and variance: quantiles cut the tails
        self.register_buffer("log_prob_rows", torch.zeros((), dtype=torch.long))
        if front:
            self.register_buffer("covariance_share", torch.zeros(embedding_dimension, embedding_dimension))
        self.adaptation = Adaptation(embedding_dimension, adapted_raw_weight) if adapted else None

    @property
    def adapted(self) -> bool:
        """Whether the layer is adapted to other text than it was fitted on."""
        return self.adaptation is not None

    @property
    def adapted_raw_weight(self) -> float | None:
        """The raw weight since :meth:`adapt`; None where it is as fitted."""
        return None if self.adaptation is None else self.adaptation.raw_weight

    @property
    def concatenates(self) -> bool:
        """Whether the output is twice as wide as the embeddings."""
        return bool(self.raw_weight) and self.mixing != ADD

    @property
    def front(self) -> bool:
        """Whether a frozen affine map comes before the flow."""
        return self.affine is not None

    def get_embedding_dimension(self) -> int:
        return 2 * self.embedding_dimension if self.concatenates else self.embedding_dimension

    def forward(
        self, features: dict[str, Tensor | Any], return_log_det: bool = False, noise: float = 0.0, **kwargs: Any
    ) -> dict[str, Tensor | Any]:
        """Replace ``features["sentence_embedding"]``, x (n, d), by z = f(x), or by a mixture of both (``raw_weight``).

        Args:
            features: the pipeline's features.
            return_log_det: also write ``features["flow_latent"]``, z in float32, and ``features["flow_log_det"]``,
                ``log |det dz/dx|`` in nats, shape (n,).
            noise: standard deviation of Gaussian noise added to x, behind the front if there is one, in units of the
                root mean square standard deviation of what the flow was initialised on. For training.

        Raises:
            ValueError: there is no sentence embedding, or it has another width than the layer.
        """
        if "sentence_embedding" not in features:
            raise ValueError("FlowLayer maps sentence embeddings, but gets none: put a Pooling before it.")
        embeddings = features["sentence_embedding"]
        self._check_input(embeddings)
        with torch.autocast(device_type=embeddings.device.type, enabled=False):
            x = (embeddings.detach() if self.training else embeddings).float()
            z, log_det = self._map(x, noise)
            features["sentence_embedding"] = self._output(x, z).to(embeddings.dtype)
        if return_log_det:
            features.update({"flow_latent": z, "flow_log_det": log_det})
        return features

    def _map(self, x: Tensor, noise: float = 0.0, adapted: bool = True) -> tuple[Tensor, Tensor]:
        """Latents (n, d) of ``x`` (n, d), float32, and log-determinants (n,); or those of the map as fitted."""
        log_det = x.new_zeros(len(x))
        for affine in (self.adaptation if adapted else None, self.affine):
            if affine is not None:
                x, term = affine(x)
                log_det = log_det + term
        if noise:
            x = x + noise * self.noise_unit * torch.randn_like(x)
        z, term = self.flow(x)
        return z, log_det + term

    def _output(self, x: Tensor, z: Tensor) -> Tensor:
        """What the layer writes: the latents, the raw embedding, or a mixture of both, each at unit length."""
        weight = self.raw_weight if self.adapted_raw_weight is None else self.adapted_raw_weight
        if not self.concatenates and weight in (0, 1):
            return x if weight else z
        x, z = nn.functional.normalize(x, dim=-1), nn.functional.normalize(z, dim=-1)
        if self.concatenates:
            return torch.cat([weight**0.5 * x, (1 - weight) ** 0.5 * z], dim=-1)
        return torch.lerp(z[..., self.flow.order], x, weight)

    def set_front(self, matrix: Tensor, mean: Tensor, covariance_share: Tensor | None = None) -> None:
        """Set the frozen affine map A (x - mu) before the flow; a map without trained steps is thereby fitted.

        Args:
            matrix: A, shape (d, d).
            mean: mu, shape (d,).
            covariance_share: M^(-1/2) T M^(-1/2), shape (d, d), where A is M^(-1/2) up to scale and T the covariance
                of the embeddings; :meth:`adapt` needs it to take in another covariance.

        Raises:
            ValueError: the layer has no front, or the matrix is singular.
        """
        if self.affine is None:
            raise ValueError("this FlowLayer has no front. Make it FlowLayer(..., front=True).")
        self.affine.set(matrix, mean)
        if covariance_share is None:
            covariance_share = torch.zeros_like(self.covariance_share)
        self.covariance_share.copy_(covariance_share)
        self.initialized.fill_(self.steps_per_level == 0)

    @torch.no_grad()
    def initialize(self, embeddings: Any, noise: float = 0.0, generator: torch.Generator | None = None) -> None:
        """Set the data-dependent parameters: every ActNorm gets zero mean and unit variance on this sample.

        Dead dimensions (standard deviation below 1e-3 of the median one) keep the scale 1 for good. Nothing else ever
        sets these parameters: not the first batch, not loading.

        Args:
            embeddings: a random sample of the embeddings to fit, shape (n, d), n >= 16; a few thousand are plenty.
            noise: standard deviation of Gaussian noise added to the sample, in units of the root mean square standard
                deviation of the embeddings: the same as in training.
            generator: source of the noise; None takes torch's own.

        Raises:
            ValueError: wrong shape, fewer than 16 rows, NaN or infinite values, all rows equal.
        """
        x = check_embeddings(embeddings, self.embedding_dimension, min_rows=MIN_ROWS).to(self.noise_unit.device)
        if self.affine is not None:
            x = self.affine(x)[0]
        std = x.std(dim=0, correction=0)
        self.noise_unit.copy_(std.square().mean().sqrt() * live_dimensions(std))
        if noise:
            draw = torch.randn(x.shape, generator=generator, device=generator.device if generator else x.device)
            x = x + noise * self.noise_unit * draw.to(x.device)
        self.flow.initialize(x)
        self.initialized.fill_(True)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Forget the fit: draw the parameters anew, as at construction."""
        if self.affine is not None:
            self.affine.reset_parameters()
        self.flow.reset_parameters(generator)
        self.initialized.fill_(False)
        self.adaptation = None
        self.noise_unit.zero_()
        self.forget_text()

    def forget_text(self) -> None:
        """Forget mean and likelihood of the fitted text, see :meth:`note_fit`."""
        self.center.zero_()
        self.log_prob_quantiles.zero_()
        self.log_prob_moments.zero_()
        self.log_prob_rows.zero_()

    @torch.no_grad()
    def latents(self, embeddings: Any) -> Tensor:
        """Map embeddings (n, d), as they come before the layer, to latents (n, d), float32: for cached embeddings.

        Raises:
            ValueError: wrong shape, NaN or infinite values.
        """
        return self._map(check_embeddings(embeddings, self.embedding_dimension).to(self.noise_unit.device))[0]

    @torch.no_grad()
    def outputs(self, embeddings: Any) -> Tensor:
        """What the layer writes for embeddings (n, d), float32: the latents, or with a ``raw_weight`` the mixture.

        Raises:
            ValueError: wrong shape, NaN or infinite values.
        """
        x = check_embeddings(embeddings, self.embedding_dimension).to(self.noise_unit.device)
        return self._output(x, self._map(x)[0])

    @torch.no_grad()
    def log_prob(self, embeddings: Any) -> Tensor:
        """Log density in nats of embeddings (n, d), as they come before the layer, under the flow: shape (n,).

        It is the density of the text that the flow was fitted on, also after :meth:`adapt`.

        Raises:
            ValueError: wrong shape, NaN or infinite values.
        """
        x = check_embeddings(embeddings, self.embedding_dimension).to(self.noise_unit.device)
        z, log_det = self._map(x, adapted=False)  # nothing is switched off meanwhile: other threads may encode
        return standard_normal_log_prob(z) + log_det

    @torch.no_grad()
    def inverse(self, latents: Any) -> Tensor:
        """Return the embeddings x (n, d), float32, whose latents are ``latents`` (n, d).

        Raises:
            ValueError: wrong shape, NaN or infinite values.
        """
        x = self.flow.inverse(check_embeddings(latents, self.embedding_dimension).to(self.noise_unit.device))
        for affine in (self.affine, self.adaptation):
            x = x if affine is None else affine.inverse(x)
        return x

    @torch.no_grad()
    def note_fit(self, center: Tensor, log_probs: Tensor, held_out: int = 0) -> None:
        """Keep what later text is compared with: mean (d,) and log densities (n,) of embeddings of the fitted text.

        Args:
            center: the mean.
            log_probs: the log densities.
            held_out: how many of these are of embeddings that the map was not fitted on; without any, no error of
                the comparison can be told.
        """
        self.center.copy_(center)
        self.log_prob_rows.fill_(held_out)
        ranks = torch.linspace(0, len(log_probs) - 1, QUANTILES, dtype=torch.float64).round().long()
        self.log_prob_quantiles.copy_(log_probs.sort().values[ranks])
        self.log_prob_moments.copy_(torch.stack([log_probs.double().mean(), log_probs.double().var()]))

    @torch.no_grad()
    def percentile(self, log_probs: Tensor) -> Tensor:
        """Percentile, 0 to 100, of log densities (n,) among those of the fitted text.

        Raises:
            ValueError: the layer does not know them.
        """
        if not self.log_prob_quantiles.any():
            raise ValueError(
                "this flow does not know how likely its own text was (it was fitted by another program or by the "
                "Trainer). Fit it with sbert_flow.fit_flow for percentiles."
            )
        values = log_probs.to(self.log_prob_quantiles).contiguous()
        place = torch.searchsorted(self.log_prob_quantiles, values, side="right")
        return (place / QUANTILES * 100).clamp(0, 100)

    @torch.no_grad()
    def adapt(
        self,
        mean: Tensor,
        covariance: Tensor | None = None,
        weight: float = 0.5,
        raw_weight: float | None = None,
    ) -> None:
        r"""Put an affine map before the flow that takes embeddings of new text to where those of the fitted text lay:

        .. math:: x \mapsto P (x - \mu') + \mu

        with the mean :math:`\mu'` of the new text and P = I. With its covariance T', and for a layer with the surface
        map in front, P is such that the composed map divides by M + w (T' - T) instead of M. It replaces an earlier
        adaptation; the fit itself stays.

        Args:
            mean: shape (d,).
            covariance: shape (d, d); used only where the layer has the statistics for it.
            weight: w, share of the new covariance.
            raw_weight: weight of the raw embedding in what the layer writes from now on: 0 writes the latents alone, 1
                the raw embedding alone, between them both are mixed as by the layer's own ``raw_weight``. None keeps
                that one.

        Raises:
            ValueError: the layer does not know the mean of the text it was fitted on, or the raw weight is not from
                0 to 1.
        """
        if not self.center.any():
            raise ValueError(
                "this flow does not know the mean of the text it was fitted on (it was fitted by another program or "
                "by the Trainer). Fit it with sbert_flow.fit_flow to adapt it."
            )
        device, center = self.center.device, self.center.double()
        matrix = torch.eye(self.embedding_dimension, dtype=torch.float64, device=device)
        if covariance is not None and self.affine is not None and self.covariance_share.any():
            share = self.covariance_share.double()
            root = self.affine.matrix.double() * (share.trace() / len(share)).sqrt()  # M^(-1/2), without its scale
            new = matrix + weight * (root @ covariance.double().to(device) @ root - share)
            matrix = torch.linalg.solve(root, inverse_square_root(new) @ root)
        adaptation = Adaptation(self.embedding_dimension, raw_weight).to(device)
        adaptation.set(matrix, mean.double().to(device) - torch.linalg.solve(matrix, center))
        self.adaptation = adaptation

    def reset_adaptation(self) -> None:
        """Return to the map as fitted."""
        self.adaptation = None

    @classmethod
    def from_pytorch_bertflow(cls, path: str | Path) -> Self:
        """Read a checkpoint (``glow.bin``, a plain state dict) of pytorch-bertflow, the public PyTorch port.

        Raises:
            OSError: the file cannot be read as a checkpoint.
            ValueError: it is not a Glow of that port, or one whose permutations are not reversals.
        """
        from sbert_flow.modules.bertflow_checkpoint import convert, read

        config, state = convert(read(path))
        layer = cls(**config)
        try:
            layer.load_state_dict({**layer.state_dict(), **state})
        except RuntimeError as error:
            raise ValueError(f"{path} is not a Glow of pytorch-bertflow with additive couplings: {error}") from error
        layer.initialized.fill_(True)
        return layer

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        # Files of before these statistics were kept lack them.
        for name in ("center", "log_prob_quantiles", "log_prob_moments", "log_prob_rows", "covariance_share"):
            if hasattr(self, name):
                state_dict.setdefault(prefix + name, getattr(self, name))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
