"""FlowLayer: the flow as a sentence-transformers module.

``sbert_flow.modules.flow_layer.FlowLayer`` is written into the modules.json of saved models: never move this class.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from sentence_transformers.base.modules import Module
from torch import Tensor, nn

from sbert_flow.flows import Glow, live_dimensions
from sbert_flow.flows.glow import standard_normal_log_prob
from sbert_flow.modules.model_card import describe_in_card
from sbert_flow.modules.validation import MIN_ROWS, check_embeddings


class FlowLayer(Module):
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
        steps_per_level: steps K of each level.
        hidden_width: width of the hidden layers in the couplings.
        coupling: "additive" or "affine".

    Raises:
        ValueError: an argument is outside its range.
    """

    config_keys = ["embedding_dimension", "levels", "steps_per_level", "hidden_width", "coupling"]  # noqa: RUF012
    forward_kwargs = {"return_log_det", "noise"}  # noqa: RUF012

    initialized: Tensor
    noise_unit: Tensor

    def __init__(
        self,
        embedding_dimension: int,
        levels: int = 3,
        steps_per_level: int = 6,
        hidden_width: int = 32,
        coupling: str = "additive",
    ) -> None:
        super().__init__()
        self.embedding_dimension = embedding_dimension
        self.levels = levels
        self.steps_per_level = steps_per_level
        self.hidden_width = hidden_width
        self.coupling = coupling
        self.flow = Glow(embedding_dimension, levels, steps_per_level, hidden_width, coupling)
        self.register_buffer("initialized", torch.zeros((), dtype=torch.bool))
        # Root mean square standard deviation of the embeddings that the flow was initialised on; 0 in dead dimensions.
        self.register_buffer("noise_unit", torch.zeros(embedding_dimension))
        self._warned = False

    def get_embedding_dimension(self) -> int:
        return self.embedding_dimension

    def forward(
        self, features: dict[str, Tensor | Any], return_log_det: bool = False, noise: float = 0.0, **kwargs: Any
    ) -> dict[str, Tensor | Any]:
        """Replace ``features["sentence_embedding"]``, x of shape (n, d), by z = f(x).

        Args:
            features: the pipeline's features.
            return_log_det: also write ``features["flow_latent"]``, z in float32, and ``features["flow_log_det"]``,
                log |det dz/dx| in nats, shape (n,).
            noise: standard deviation of Gaussian noise added to x, in units of the root mean square standard
                deviation of the embeddings that the flow was initialised on. For training.

        Raises:
            ValueError: there is no sentence embedding, or it has another width than the layer.
        """
        if "sentence_embedding" not in features:
            raise ValueError("FlowLayer maps sentence embeddings, but gets none: put a Pooling before it.")
        embeddings = features["sentence_embedding"]
        if embeddings.shape[-1] != self.embedding_dimension:
            raise ValueError(self._wrong_width(embeddings.shape[-1]))
        if not self.training:
            self._warn_if_unfitted()
        with torch.autocast(device_type=embeddings.device.type, enabled=False):
            x = (embeddings.detach() if self.training else embeddings).float()
            if noise:
                x = x + noise * self.noise_unit * torch.randn_like(x)
            z, log_det = self.flow(x)
        features["sentence_embedding"] = z.to(embeddings.dtype)
        if return_log_det:
            features.update({"flow_latent": z, "flow_log_det": log_det})
        return features

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
        std = x.std(dim=0, correction=0)
        self.noise_unit.copy_(std.square().mean().sqrt() * live_dimensions(std))
        if noise:
            draw = torch.randn(x.shape, generator=generator, device=generator.device if generator else x.device)
            x = x + noise * self.noise_unit * draw.to(x.device)
        self.flow.initialize(x)
        self.initialized.fill_(True)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Forget the fit: draw the parameters anew, as at construction."""
        self.flow.reset_parameters(generator)
        self.initialized.fill_(False)
        self.noise_unit.zero_()

    @torch.no_grad()
    def latents(self, embeddings: Any) -> Tensor:
        """Map embeddings (n, d), as they come before the layer, to latents (n, d), float32: for cached embeddings.

        Raises:
            ValueError: wrong shape, NaN or infinite values.
        """
        return self.flow(check_embeddings(embeddings, self.embedding_dimension).to(self.noise_unit.device))[0]

    @torch.no_grad()
    def log_prob(self, embeddings: Any) -> Tensor:
        """Log density in nats of embeddings (n, d), as they come before the layer, under the flow: shape (n,).

        Raises:
            ValueError: wrong shape, NaN or infinite values.
        """
        x = check_embeddings(embeddings, self.embedding_dimension).to(self.noise_unit.device)
        z, log_det = self.flow(x)
        return standard_normal_log_prob(z) + log_det

    @torch.no_grad()
    def inverse(self, latents: Any) -> Tensor:
        """Return the embeddings x (n, d), float32, whose latents are ``latents`` (n, d).

        Raises:
            ValueError: wrong shape, NaN or infinite values.
        """
        return self.flow.inverse(check_embeddings(latents, self.embedding_dimension).to(self.noise_unit.device))

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

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write config.json and model.safetensors into ``output_path`` and the requirement into the model's config."""
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=True)  # never pickle, whatever is asked for
        _require_package(Path(output_path).resolve().parent / "config_sentence_transformers.json")

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Load the layer from a folder or from the hub.

        Raises:
            OSError: config or weights are missing, damaged or cut short.
            ValueError: the weights are of another shape than the config says.
        """
        hub: dict[str, Any] = {
            "subfolder": subfolder,
            "token": token,
            "cache_folder": cache_folder,
            "revision": revision,
            "local_files_only": local_files_only,
        }
        place = f"{model_name_or_path}/{subfolder}"
        try:
            config = cls.load_config(model_name_or_path=model_name_or_path, **hub)
        except json.JSONDecodeError as error:
            raise OSError(f"The flow's config.json in {place} is damaged ({error}). Save the model again.") from error
        if "embedding_dimension" not in config:
            raise OSError(f"No config.json of a FlowLayer in {place}. Save the model again.")
        layer = cls(**{key: config[key] for key in cls.config_keys if key in config})
        weights = cls.load_file_path(model_name_or_path, filename="model.safetensors", **hub)
        if weights is None:  # without this the library would fall back to a pickle
            raise OSError(f"No model.safetensors of the flow in {place}. Save the model again.")
        try:
            return cls.load_torch_weights(model_name_or_path=model_name_or_path, model=layer, **hub)
        except SafetensorError as error:
            raise OSError(f"The flow's weights in {place} are damaged or cut short ({error}).") from error
        except RuntimeError as error:
            raise ValueError(f"The flow's weights in {place} do not fit its config.json {config}: {error}") from error

    def on_model_ready(self, model: nn.Module) -> None:
        """Check the layer's place in the model and teach the model card how such a model is loaded."""
        modules = list(model.children())
        before = modules[: next(index for index, module in enumerate(modules) if module is self)]
        if not before:
            raise ValueError("FlowLayer maps the output of an encoder: put it after the pooling, not first.")
        if type(before[-1]).__name__ == "Normalize":
            warnings.warn(
                "A Normalize module before the FlowLayer puts the embeddings on a sphere, where no density exists and "
                "the flow fits badly. Leave it out, or put it after the layer.",
                stacklevel=2,
            )
        width = output_width(before)
        if width is not None and width != self.embedding_dimension:
            raise ValueError(self._wrong_width(width))
        describe_in_card(model)

    def _wrong_width(self, got: int) -> str:
        return (
            f"FlowLayer(embedding_dimension={self.embedding_dimension}) got embeddings of width {got}. "
            f"Make it FlowLayer({got}), or use sbert_flow.build_model, which takes the width from the encoder."
        )

    def _warn_if_unfitted(self) -> None:
        # Looked at once: reading a flag from a GPU in every batch would stall it, and it would break a compiled graph.
        if self._warned or torch.compiler.is_compiling():
            return
        self._warned = True
        if not self.initialized:
            warnings.warn(
                "This FlowLayer was never fitted, so its output is no better than its input. "
                "Fit it with sbert_flow.fit_flow(model, sentences).",
                stacklevel=3,
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # SentenceTransformer casts all modules to the encoder's dtype; the flow needs float32 for its inverse and its
        # likelihood, so moves follow the device only.
        def keep_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(device=moved.device) if moved.dtype != tensor.dtype else moved

        return super()._apply(keep_dtype, recurse)


def output_width(modules: Sequence[nn.Module]) -> int | None:
    """Width of the embeddings that the modules give together; None where none of them says."""
    widths = [getattr(module, "get_embedding_dimension", None) for module in modules]
    return next((width() for width in reversed(widths) if width is not None), None)


def _require_package(config_path: Path) -> None:
    """Make sentence-transformers >= 6.0 ask for sbert-flow, by name, when a saved model is loaded without it."""
    try:
        requirement = f">={version('sbert-flow')}"
    except PackageNotFoundError:  # run from a source tree: the check would fail on reload
        return
    if config_path.is_file():
        config = json.loads(config_path.read_text("utf-8"))
        config.setdefault("requirements", {}).setdefault("sbert-flow", requirement)
        config_path.write_text(json.dumps(config, indent=2, sort_keys=True), "utf-8")
