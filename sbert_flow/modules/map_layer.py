"""What FlowLayer and WhiteningLayer share: float32 whatever the encoder's dtype, safe files, clear errors."""

from __future__ import annotations

import json
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from sentence_transformers.base.modules import Module
from torch import Tensor, nn

from sbert_flow.modules.model_card import describe_in_card


class MapLayer(Module):
    """A fitted map of the sentence embedding, after the pooling and before any ``Normalize``.

    Subclasses set ``config_keys``, among them ``embedding_dimension``, ``map_name`` and ``fit_hint``.
    """

    map_name: str
    """What messages call the map."""

    fit_hint: str
    """The call that fits the layer, for messages."""

    embedding_dimension: int
    initialized: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("initialized", torch.zeros((), dtype=torch.bool))
        self._warned = False

    def get_embedding_dimension(self) -> int:
        return self.embedding_dimension

    @abstractmethod
    def latents(self, embeddings: Any) -> Tensor:
        """Map embeddings (n, d), as they come before the layer, in float32: for cached embeddings."""

    def outputs(self, embeddings: Any) -> Tensor:
        """What the layer writes for embeddings (n, d), as they come before the layer, float32."""
        return self.latents(embeddings)

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
        name, place = cls.map_name, f"{model_name_or_path}/{subfolder}"
        try:
            config = cls.load_config(model_name_or_path=model_name_or_path, **hub)
        except json.JSONDecodeError as error:
            raise OSError(f"The {name}'s config.json in {place} is damaged ({error}). Save it again.") from error
        if "embedding_dimension" not in config:
            raise OSError(f"No config.json of a {cls.__name__} in {place}. Save the model again.")
        layer = cls(**{key: config[key] for key in cls.config_keys if key in config})
        weights = cls.load_file_path(model_name_or_path, filename="model.safetensors", **hub)
        if weights is None:  # without this the library would fall back to a pickle
            raise OSError(f"No model.safetensors of the {name} in {place}. Save the model again.")
        try:
            return cls.load_torch_weights(model_name_or_path=model_name_or_path, model=layer, **hub)
        except SafetensorError as error:
            raise OSError(f"The {name}'s weights in {place} are damaged or cut short ({error}).") from error
        except RuntimeError as error:
            raise ValueError(f"The {name}'s weights in {place} do not fit its config {config}: {error}") from error

    def on_model_ready(self, model: nn.Module) -> None:
        """Check the layer's place in the model and teach the model card how such a model is loaded."""
        name = type(self).__name__
        modules = list(model.children())
        before = modules[: next(index for index, module in enumerate(modules) if module is self)]
        if not before:
            raise ValueError(f"{name} maps the output of an encoder: put it after the pooling, not first.")
        if type(before[-1]).__name__ == "Normalize":
            warnings.warn(
                f"A Normalize module before the {name} puts the embeddings on a sphere, where no density exists and "
                "the map fits badly. Leave it out, or put it after the layer.",
                stacklevel=2,
            )
        width = output_width(before)
        if width is not None and width != self.embedding_dimension:
            raise ValueError(self._wrong_width(width))
        if getattr(model, "_similarity_fn_name", None) == "dot":
            warnings.warn(
                f"The model compares by dot product, but the {name} changes the length of embeddings, which then has "
                'no meaning. Set model.similarity_fn_name = "cosine".',
                stacklevel=2,
            )
        describe_in_card(model, self.map_name)

    def _wrong_width(self, got: int) -> str:
        name = type(self).__name__
        return (
            f"{name}(embedding_dimension={self.embedding_dimension}) got embeddings of width {got}. "
            f"Make it {name}({got}), or use sbert_flow.build_model, which takes the width from the encoder."
        )

    def _check_input(self, embeddings: Tensor) -> None:
        if embeddings.shape[-1] != self.embedding_dimension:
            raise ValueError(self._wrong_width(embeddings.shape[-1]))
        # Looked at once: reading a flag from a GPU in every batch would stall it, and it would break a compiled graph.
        if self.training or self._warned or torch.compiler.is_compiling():
            return
        self._warned = True
        if not self.initialized:
            warnings.warn(
                f"This {type(self).__name__} was never fitted, so its output is no better than its input. "
                f"Fit it with {self.fit_hint}.",
                stacklevel=3,
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # SentenceTransformer casts all modules to the encoder's dtype; a map needs float32 for its small eigenvalues,
        # its inverse and its likelihood, so moves follow the device only.
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
