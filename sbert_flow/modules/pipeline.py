"""Finding the map in a SentenceTransformer, and the encoder before it."""

from __future__ import annotations

from typing import Any, TypeVar

from sentence_transformers import SentenceTransformer
from torch import nn

from sbert_flow.modules.flow_layer import FlowLayer
from sbert_flow.modules.map_layer import MapLayer

Layer = TypeVar("Layer", bound=MapLayer)


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside what torch.compile, DistributedDataParallel and the like wrap around it."""
    while True:
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def split_at_map(model: Any, kind: type[Layer] = MapLayer) -> tuple[list[nn.Module], Layer]:  # type: ignore[assignment]
    """Return the modules before the model's map (FlowLayer or WhiteningLayer, or only one ``kind``), and the map.

    Raises:
        ValueError: the model has none, or more than one.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"a SentenceTransformer is needed, but got {type(model).__name__}: {model!r:.80}.")
    modules = list(unwrap(model).children())
    places = [index for index, module in enumerate(modules) if isinstance(module, kind)]
    if len(places) != 1:
        names = ", ".join(type(module).__name__ for module in modules) or type(model).__name__
        wanted = "FlowLayer or WhiteningLayer" if kind is MapLayer else kind.__name__
        raise ValueError(
            f"the model must have one {wanted}, but its modules are: {names}. "
            "Make one with sbert_flow.build_model(encoder, pooling), or fit one: sbert-flow fit."
        )
    return modules[: places[0]], modules[places[0]]  # type: ignore[return-value]


def split_at_flow(model: Any) -> tuple[list[nn.Module], FlowLayer]:
    """Return the modules before the model's FlowLayer, and the layer.

    Raises:
        ValueError: the model has no FlowLayer, or more than one.
    """
    return split_at_map(model, FlowLayer)


def encoder_of(model: SentenceTransformer) -> SentenceTransformer:
    """What comes before the model's map, or the model itself if it has none."""
    has_map = any(isinstance(module, MapLayer) for module in unwrap(model).children())
    return encoder_before_map(model) if has_map else model


def replace_flow(model: SentenceTransformer, layer: FlowLayer) -> None:
    """Put ``layer`` into the place of the model's FlowLayer."""
    before, _ = split_at_flow(model)
    model[len(before)] = layer.to(model.device)


def encoder_before_flow(model: SentenceTransformer) -> SentenceTransformer:
    """As :func:`encoder_before_map`, of a model whose map is a FlowLayer."""
    split_at_flow(model)
    return encoder_before_map(model)


def encoder_before_map(model: SentenceTransformer) -> SentenceTransformer:
    """The same model without the map and what follows it; weights and prompts are shared, nothing is copied."""
    before, _ = split_at_map(model)
    encoder = SentenceTransformer(
        modules=before,
        device=str(model.device),
        prompts={name: prompt or "" for name, prompt in model.prompts.items()},
        default_prompt_name=model.default_prompt_name,
    )
    encoder.model_card_data.generate_widget_examples = False
    return encoder
