"""Loading and saving models with a flow."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from sbert_flow.modules.flow_layer import FlowLayer
from sbert_flow.modules.hub import folder_or_hub
from sbert_flow.modules.whitening_layer import WhiteningLayer

ALLOWED_ROOTS = ("sentence_transformers", "sbert_flow")
OWN_CLASSES = {f"{module.__module__}.{module.__name__}": module for module in (FlowLayer, WhiteningLayer)}
SAVED_NAMES = re.compile(
    r"\d+_\w+|modules\.json|README\.md|config\w*\.json|sentence_bert_config\.json|generation_config\.json"
    r"|model[\w.-]*\.safetensors|model\.safetensors\.index\.json|tokenizer[\w.]*|special_tokens_map\.json"
    r"|added_tokens\.json|chat_template\.jinja|vocab\.\w+|merges\.txt|sentencepiece\S*|spiece\.model"
)
"""Names at the top of a saved model."""


class _OwnClassesOnly(SentenceTransformer):
    """Resolves modules.json to classes of sentence_transformers and sbert_flow, and to nothing else."""

    def _load_module_class_from_ref(self, class_ref: str, *args: Any, **kwargs: Any) -> type:
        root = class_ref.split(".")[0]
        if root not in ALLOWED_ROOTS:
            raise ValueError(
                f"the model names the module class {class_ref!r}, but sbert_flow.load imports classes of "
                f"{' and '.join(ALLOWED_ROOTS)} only. If you trust its code, load it with "
                "SentenceTransformer(..., trust_remote_code=True)."
            )
        if root == "sbert_flow":
            if class_ref not in OWN_CLASSES:
                raise ValueError(
                    f"the model names {class_ref!r}, which this version of sbert-flow does not have. "
                    "Update the package: pip install -U sbert-flow"
                )
            return OWN_CLASSES[class_ref]
        return super()._load_module_class_from_ref(class_ref, *args, **kwargs)


def load(model_name_or_path: str | Path, **kwargs: Any) -> SentenceTransformer:
    """Load a saved model with a flow from a folder or the hub, without any remote code.

    It imports classes of sentence_transformers and sbert_flow only; the flag ``trust_remote_code``, which
    ``SentenceTransformer`` itself needs for such a model, is not accepted and never passed on.

    Args:
        model_name_or_path: folder or hub id.
        **kwargs: passed on to ``SentenceTransformer`` (``device``, ``revision``, ``token``, ``model_kwargs``, ...).

    Raises:
        OSError: the model cannot be found or is damaged.
        ValueError: it names a class of another package, or its weights do not fit its config.
        TypeError: ``trust_remote_code`` was given, also inside ``model_kwargs``, ``config_kwargs`` or the like.
    """
    given = [kwargs, *(value for value in kwargs.values() if isinstance(value, dict))]
    if any("trust_remote_code" in options for options in given):
        raise TypeError("sbert_flow.load never runs code from a model repository; leave trust_remote_code out.")
    path = Path(model_name_or_path).expanduser()
    if path.is_dir() and not (path / "modules.json").is_file():
        raise FileNotFoundError(
            f"{path} holds no modules.json: it is not a saved SentenceTransformer. If it is an encoder, fit a map on "
            "it with sbert-flow fit; sbert-flow compare evaluates it as it is and with every map."
        )
    with folder_or_hub(str(model_name_or_path)):
        model: SentenceTransformer = _OwnClassesOnly(str(path) if path.exists() else str(model_name_or_path), **kwargs)
    model.__class__ = SentenceTransformer  # only loading differs
    return model


def check_output(path: str | Path) -> Path:
    """Return ``path`` if a model may be saved there: it does not exist, is empty, or holds a model with a map of ours.

    Raises:
        FileExistsError: it is a file, the working folder, or a folder with anything else in it.
        OSError: its parent cannot be written to.
    """
    path = Path(path).expanduser()
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"the output {path} is a file. Name a folder that does not exist yet.")
    if path.resolve() == Path.cwd() or path.is_mount():
        raise FileExistsError(f"the output {path} cannot be replaced by a new folder. Name one inside it.")
    if path.is_dir() and any(path.iterdir()) and not _is_own_model(path):
        raise FileExistsError(
            f"the output folder {path} holds something else than a model with a map of sbert-flow, or more than "
            "that, and is not replaced; nor is a trained encoder. Name another one or empty it first."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):
        pass
    return path


def _is_own_model(folder: Path) -> bool:
    """Whether everything in the folder is what saving a model with a map of ours writes: then it may be replaced."""
    try:
        modules = json.loads((folder / "modules.json").read_text("utf-8"))
        own = any(module["type"].startswith("sbert_flow.") for module in modules)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return own and all(SAVED_NAMES.fullmatch(entry.name) for entry in folder.iterdir())


def save(model: SentenceTransformer, path: str | Path) -> Path:
    """Save the whole model so that an interruption never leaves half of one.

    The model is written into a folder beside ``path`` and renamed. An earlier model with a map of ours is replaced;
    what goes wrong before the end leaves it as it was.

    Raises:
        FileExistsError: ``path`` holds something else, or more.
        OSError: it cannot be written.
    """
    path = check_output(path)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    old = staging.with_name(staging.name + "-old")
    try:
        staging.chmod(0o755)  # mkdtemp's folders are private; a model is not
        model.save_pretrained(str(staging))
        if path.exists():
            path.rename(old)
        staging.rename(path)
    except BaseException:
        if old.exists():
            old.rename(path)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    return path
