"""What makes an encoder give the embeddings it gives, as one digest."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

VOLATILE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "output_hidden_states", "use_cache")
"""Entries of a transformer's config that say where it came from or what it returns besides, not what it computes."""


def encoder_fingerprint(encoder: SentenceTransformer) -> str:
    """SHA-256, in hex, of the encoder's weights with their dtypes, its modules with their settings (pooling, maximum
    length), its tokenizer and its default prompt. Where it lies and the device it is on do not count."""
    digest = hashlib.sha256()
    prompt = encoder.prompts.get(encoder.default_prompt_name) if encoder.default_prompt_name else None
    _add(digest, {"prompt": prompt or "", "max_seq_length": getattr(encoder, "max_seq_length", None)})
    for name, module in encoder.named_children():
        _add(digest, [name, f"{type(module).__module__}.{type(module).__name__}", _settings(module)])
        _add(digest, _tokenizer(module))
    for name, tensor in encoder.state_dict().items():
        _add(digest, [name, str(tensor.dtype), list(tensor.shape)])
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    digest.update(json.dumps(value, sort_keys=True, default=repr).encode())


def _settings(module: nn.Module) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    own: Any = module
    if hasattr(own, "get_config_dict"):
        settings["module"] = own.get_config_dict()
    config: Any = getattr(getattr(module, "model", None), "config", None)
    if hasattr(config, "to_dict"):
        settings["transformer"] = {key: value for key, value in config.to_dict().items() if key not in VOLATILE}
    return settings


def _tokenizer(module: nn.Module) -> Any:
    tokenizer: Any = getattr(module, "tokenizer", None)
    backend: Any = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "to_str"):
        rules = json.loads(backend.to_str())
        return {
            key: rules[key] for key in rules if key not in ("truncation", "padding")
        }  # these change with each call
    if hasattr(tokenizer, "get_vocab"):
        return [type(tokenizer).__name__, tokenizer.get_vocab()]
    return type(tokenizer).__name__


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
