"""Building a SentenceTransformer with a flow."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, WeightedLayerPooling
from torch import nn

from sbert_flow.modules.flow_layer import FlowLayer
from sbert_flow.modules.hub import folder_or_hub
from sbert_flow.modules.map_layer import MapLayer, output_width
from sbert_flow.modules.pooling import TOKEN_POOLINGS, pooling_modules
from sbert_flow.modules.recipes import AUTO, get_recipe
from sbert_flow.modules.whitening_layer import WhiteningLayer

WHITENING = "whitening"
"""The name that asks for a WhiteningLayer where a recipe is asked for."""


def build_model(
    encoder: str | Path | SentenceTransformer | nn.Module, pooling: str = "mean", recipe: str = "noise", **kwargs: Any
) -> SentenceTransformer:
    """Return the SentenceTransformer [encoder, pooling, FlowLayer], its flow still to be fitted by ``fit_flow``.

    Args:
        encoder: a hub id or folder, a SentenceTransformer, or a ``Transformer`` module; modules are shared, not
            copied. An encoder without token states of a transformer (``StaticEmbedding``, ``WordEmbeddings`` with
            its pooling) keeps its own modules.
        pooling: ``mean``, ``cls``, ``max``, ``first-last``, ``first-last-embedding``, ``last-two`` or ``layer:K``.
            It replaces the encoder's own.
        recipe: the recipe whose shape the layer gets; "auto" leaves it to ``fit_flow``, which replaces the layer;
            "whitening" makes it a WhiteningLayer, to be fitted by ``fit_whitening``.
        **kwargs: passed on to ``SentenceTransformer`` where ``encoder`` is an id or a folder. On a CPU, weights in
            float16 or bfloat16 become float32 unless ``model_kwargs`` sets a dtype: half precision is slower there.

    Raises:
        ValueError: unknown recipe or pooling, a layer that the encoder does not have, an encoder that this pooling
            cannot be used with.
        OSError: the encoder cannot be loaded.
        TypeError: options of ``SentenceTransformer`` together with an encoder that is loaded already.
    """
    if recipe == WHITENING:
        return _assemble(encoder, pooling, WhiteningLayer, **kwargs)
    shape = get_recipe("surface" if recipe == AUTO else recipe).shape
    return _assemble(encoder, pooling, lambda width: FlowLayer(width, **shape), **kwargs)


def _assemble(
    encoder: str | Path | SentenceTransformer | nn.Module,
    pooling: str,
    make_map: Callable[[int], MapLayer],
    **kwargs: Any,
) -> SentenceTransformer:
    model_options: dict[str, Any] = {}
    if isinstance(encoder, (str, Path)):
        encoder = load_encoder(str(encoder), **kwargs)
    elif kwargs:
        raise TypeError(f"{', '.join(kwargs)}: options of SentenceTransformer are taken with an id or a folder only.")
    if isinstance(encoder, SentenceTransformer):
        if encoder.similarity_fn_name == "dot":
            warnings.warn(
                "The encoder compares by dot product, but a map changes the length of embeddings, which then has no "
                "meaning: the model compares by cosine.",
                stacklevel=3,
            )
        model_options = {
            "prompts": dict(encoder.prompts),
            "default_prompt_name": encoder.default_prompt_name,
            "device": str(encoder.device),
            "similarity_fn_name": "cosine" if encoder.similarity_fn_name == "dot" else encoder.similarity_fn_name,
            "truncate_dim": encoder.truncate_dim,
        }
        modules = list(encoder.children())
    else:
        modules = [encoder]
    if isinstance(modules[0], Transformer):
        dropped = modules[1:]
        own = next((module for module in dropped if isinstance(module, Pooling)), None)
        mode = own.pooling_mode if own else "mean"
        if pooling == "mean" and mode != "mean":  # the default, so perhaps not what is meant
            keep = f"Name pooling={mode!r} (--pooling {mode}) to keep it."
            if mode not in TOKEN_POOLINGS:
                keep = (
                    "To keep it, put the map behind it: SentenceTransformer(modules=[*encoder, "
                    "FlowLayer(encoder.get_embedding_dimension())]), without a Normalize before the map."
                )
            warnings.warn(f"The encoder's own pooling is {mode!r}, and 'mean' takes its place. {keep}", stacklevel=3)
        modules = [modules[0], *pooling_modules(modules[0], pooling)]
        if own is not None:
            modules[-1].include_prompt = own.include_prompt
    else:
        dropped = [module for module in modules if isinstance(module, (Normalize, MapLayer))]
        modules = [module for module in modules if module not in dropped]
        if pooling != "mean":
            raise ValueError(
                f"pooling {pooling!r} needs the token states of a transformer, but the encoder begins with "
                f"{type(modules[0]).__name__}, which pools by itself: it has 'mean' only."
            )
    lost = [type(module).__name__ for module in dropped if not isinstance(module, (Pooling, WeightedLayerPooling))]
    if lost:
        warnings.warn(
            f"The encoder's own {', '.join(lost)} after the pooling is left out: the flow maps what pooling "
            f"{pooling!r} gives, and a Normalize before it would spoil its density.",
            stacklevel=3,
        )
    width = output_width(modules)
    if width is None:
        raise ValueError(f"{type(modules[-1]).__name__} does not say how wide its embeddings are.")
    return SentenceTransformer(modules=[*modules, make_map(width)], **model_options)


def load_encoder(name: str, **kwargs: Any) -> SentenceTransformer:
    """Load an encoder from a folder or the hub, in float32 on a CPU; see :func:`build_model`."""
    if name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir():
        raise FileNotFoundError(
            f"no encoder folder {name!r}. Give a folder of a model or an id on the Hugging Face hub."
        )
    with folder_or_hub(name):
        encoder = SentenceTransformer(str(Path(name).expanduser()) if name.startswith("~") else name, **kwargs)
    if encoder.device.type == "cpu" and "dtype" not in (kwargs.get("model_kwargs") or {}):
        if encoder.dtype in (torch.float16, torch.bfloat16):
            encoder.float()
    return encoder
