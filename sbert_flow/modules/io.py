"""Loading and saving models with a flow."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from sbert_flow.modules.flow_layer import FlowLayer
from sbert_flow.modules.whitening_layer import WhiteningLayer

ALLOWED_ROOTS = ("sentence_transformers", "sbert_flow")
OWN_CLASSES = {f"{module.__module__}.{module.__name__}": module for module in (FlowLayer, WhiteningLayer)}


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
        TypeError: ``trust_remote_code`` was given.
    """
    if "trust_remote_code" in kwargs:
        raise TypeError("sbert_flow.load never runs code from a model repository; leave trust_remote_code out.")
    path = Path(model_name_or_path).expanduser()
    if path.is_dir() and not (path / "modules.json").is_file():
        raise FileNotFoundError(f"{path} holds no modules.json: it is not a saved SentenceTransformer.")
    model: SentenceTransformer = _OwnClassesOnly(str(path) if path.exists() else str(model_name_or_path), **kwargs)
    model.__class__ = SentenceTransformer  # only loading differs
    return model


def check_output(path: str | Path) -> Path:
    """Return ``path`` if a model may be saved there: it does not exist, is empty, or holds an earlier saved model.

    Raises:
        FileExistsError: it is a file, or a folder with other content.
        OSError: its parent cannot be written to.
    """
    path = Path(path).expanduser()
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"the output {path} is a file. Name a folder that does not exist yet.")
    if path.is_dir() and any(path.iterdir()) and not (path / "modules.json").is_file():
        raise FileExistsError(
            f"the output folder {path} holds something else than a saved model. Name another one or empty it first."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):
        pass
    return path


def save(model: SentenceTransformer, path: str | Path) -> Path:
    """Save the whole model so that an interruption never leaves half of one.

    The model is written into a folder beside ``path`` and renamed. An earlier model there is replaced.

    Raises:
        FileExistsError: ``path`` holds something else than a saved model.
        OSError: it cannot be written.
    """
    path = check_output(path)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        staging.chmod(0o755)  # mkdtemp's folders are private; a model is not
        model.save_pretrained(str(staging))
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}-old-", dir=path.parent))
            path.rename(old / path.name)
            staging.rename(path)
            shutil.rmtree(old)
        else:
            staging.rename(path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return path
