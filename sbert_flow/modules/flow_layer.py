"""FlowLayer: the flow as a sentence-transformers module.

``sbert_flow.modules.flow_layer.FlowLayer`` is written into the modules.json of saved models: never move this class.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from sbert_flow.flows import FrozenAffine, Glow, live_dimensions
from sbert_flow.flows.glow import standard_normal_log_prob
from sbert_flow.modules.map_layer import MapLayer
from sbert_flow.modules.validation import MIN_ROWS, check_embeddings


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
        raw_weight: weight w of the raw embedding. Above 0 the layer writes

            .. math:: [\sqrt{w}\, x / |x| \,;\, \sqrt{1 - w}\, z / |z|]

            of width 2 d, whose cosine similarity is w times the raw one plus 1 - w times that of the latents. Latents,
            inverse and likelihood are those of f as before.

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
    ]
    forward_kwargs = {"return_log_det", "noise"}  # noqa: RUF012
    map_name = "flow"
    fit_hint = "sbert_flow.fit_flow(model, sentences)"

    noise_unit: Tensor

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
    ) -> None:
        super().__init__()
        if steps_per_level == 0 and not (front and levels == 1):
            raise ValueError("steps_per_level must be at least 1; 0, a linear map, needs front=True and levels=1.")
        if isinstance(raw_weight, bool) or not isinstance(raw_weight, (int, float)) or not 0 <= raw_weight < 1:
            raise ValueError(f"raw_weight must be at least 0 and below 1, but got {raw_weight!r}.")
        self.embedding_dimension = embedding_dimension
        self.levels = levels
        self.steps_per_level = steps_per_level
        self.hidden_width = hidden_width
        self.coupling = coupling
        self.act_norm = act_norm
        self.raw_weight = float(raw_weight)
        self.flow = Glow(embedding_dimension, levels, steps_per_level, hidden_width, coupling, act_norm)
        self.affine = FrozenAffine(embedding_dimension) if front else None
        # Root mean square standard deviation of the embeddings that the flow was initialised on; 0 in dead dimensions.
        self.register_buffer("noise_unit", torch.zeros(embedding_dimension))

    @property
    def front(self) -> bool:
        """Whether a frozen affine map comes before the flow."""
        return self.affine is not None

    def get_embedding_dimension(self) -> int:
        return 2 * self.embedding_dimension if self.raw_weight else self.embedding_dimension

    def forward(
        self, features: dict[str, Tensor | Any], return_log_det: bool = False, noise: float = 0.0, **kwargs: Any
    ) -> dict[str, Tensor | Any]:
        """Replace ``features["sentence_embedding"]``, x of shape (n, d), by z = f(x), or by x and z (``raw_weight``).

        Args:
            features: the pipeline's features.
            return_log_det: also write ``features["flow_latent"]``, z in float32, and ``features["flow_log_det"]``,
                log |det dz/dx| in nats, shape (n,).
            noise: standard deviation of Gaussian noise added to x, behind the front if there is one, in units of the
                root mean square standard deviation of what the flow was initialised on. For training.

        Raises:
            ValueError: x has another width than the layer.
        """
        embeddings = features["sentence_embedding"]
        self._check_input(embeddings)
        with torch.autocast(device_type=embeddings.device.type, enabled=False):
            x = (embeddings.detach() if self.training else embeddings).float()
            z, log_det = self._map(x, noise)
            features["sentence_embedding"] = self._output(x, z).to(embeddings.dtype)
        if return_log_det:
            features.update({"flow_latent": z, "flow_log_det": log_det})
        return features

    def _map(self, x: Tensor, noise: float = 0.0) -> tuple[Tensor, Tensor]:
        """The latents (n, d) of ``x`` (n, d) in float32, and the log-determinants (n,)."""
        front_log_det = x.new_zeros(len(x))
        if self.affine is not None:
            x, front_log_det = self.affine(x)
        if noise:
            x = x + noise * self.noise_unit * torch.randn_like(x)
        z, log_det = self.flow(x)
        return z, front_log_det + log_det

    def _output(self, x: Tensor, z: Tensor) -> Tensor:
        """What the layer writes: the latents, or with a ``raw_weight`` both, each at unit length."""
        if not self.raw_weight:
            return z
        x, z = nn.functional.normalize(x, dim=-1), nn.functional.normalize(z, dim=-1)
        return torch.cat([self.raw_weight**0.5 * x, (1 - self.raw_weight) ** 0.5 * z], dim=-1)

    def set_front(self, matrix: Tensor, mean: Tensor) -> None:
        """Set the frozen affine map A (x - mu) before the flow; a map without trained steps is thereby fitted.

        Args:
            matrix: A, shape (d, d).
            mean: mu, shape (d,).

        Raises:
            ValueError: the layer has no front, or the matrix is singular.
        """
        if self.affine is None:
            raise ValueError("this FlowLayer has no front. Make it FlowLayer(..., front=True).")
        self.affine.set(matrix, mean)
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
        self.noise_unit.zero_()

    @torch.no_grad()
    def latents(self, embeddings: Any) -> Tensor:
        """Map embeddings (n, d), as they come before the layer, to latents (n, d), float32: for cached embeddings.

        Raises:
            ValueError: wrong shape, NaN or infinite values.
        """
        return self._map(check_embeddings(embeddings, self.embedding_dimension).to(self.noise_unit.device))[0]

    @torch.no_grad()
    def outputs(self, embeddings: Any) -> Tensor:
        """What the layer writes for embeddings (n, d), float32: the latents, or with a ``raw_weight`` both, (n, 2 d).

        Raises:
            ValueError: wrong shape, NaN or infinite values.
        """
        x = check_embeddings(embeddings, self.embedding_dimension).to(self.noise_unit.device)
        return self._output(x, self._map(x)[0])

    @torch.no_grad()
    def log_prob(self, embeddings: Any) -> Tensor:
        """Log density in nats of embeddings (n, d), as they come before the layer, under the flow: shape (n,).

        Raises:
            ValueError: wrong shape, NaN or infinite values.
        """
        x = check_embeddings(embeddings, self.embedding_dimension).to(self.noise_unit.device)
        z, log_det = self._map(x)
        return standard_normal_log_prob(z) + log_det

    @torch.no_grad()
    def inverse(self, latents: Any) -> Tensor:
        """Return the embeddings x (n, d), float32, whose latents are ``latents`` (n, d).

        Raises:
            ValueError: wrong shape, NaN or infinite values.
        """
        x = self.flow.inverse(check_embeddings(latents, self.embedding_dimension).to(self.noise_unit.device))
        return x if self.affine is None else self.affine.inverse(x)

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
        layer.load_state_dict({**layer.state_dict(), **state})
        layer.initialized.fill_(True)
        return layer
