"""Who a model is, for MTEB: name, revision, ModelMeta, registration (extra ``mteb``)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentence_transformers import SentenceTransformer

if TYPE_CHECKING:
    from mteb.models import ModelMeta

SIMILARITIES = ("cosine", "dot")
"""What MTEB can score with; it refuses a model that compares by a distance."""

_IGNORED = ("README.md", ".git", ".cache")


def require_mteb() -> None:
    """Raise an ImportError with the pip line where mteb is not installed."""
    try:
        import mteb  # noqa: F401
    except ImportError as error:
        raise ImportError("MTEB is not installed. Install it with: pip install 'sbert-flow[mteb]'") from error


def content_revision(folder: str | Path) -> str:
    """A revision for a model in a folder: 40 hexadecimal digits of the SHA-256 of its files, the card left out.

    MTEB keeps results by name and revision, and hands out what it has: two models of the same name and revision share
    one score. With this revision they cannot.
    """
    folder = Path(folder)
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not any(part in _IGNORED for part in relative.parts):
            digest.update(f"{relative.as_posix()}\n{path.stat().st_size}\n".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()[:40]


def identify(model: str | Path, name: str | None = None, revision: str | None = None) -> tuple[str, str]:
    """Name ("org/model") and revision of a model in a folder or on the hub.

    A folder without a name becomes ``local/<folder>`` and its revision the hash of its content; a hub model keeps its
    id and gets the commit that the hub or its cache names.

    Raises:
        ValueError: the name is not of the form org/model, or the revision cannot be part of a path.
        OSError: the hub's commit is wanted and cannot be found.
    """
    folder = Path(model).expanduser()
    if name is None:
        name = f"local/{folder.resolve().name}" if folder.is_dir() else str(model)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ValueError(f"the model's name for MTEB must be of the form org/model, but is {name!r}. Give --name.")
    if revision is None:
        revision = content_revision(folder) if folder.is_dir() else _hub_commit(str(model))
    if not re.fullmatch(r"[\w.-]+", revision):
        raise ValueError(f"revision must be letters, digits, dots and dashes, but is {revision!r}.")
    return name, revision


def _hub_commit(model: str) -> str:
    from huggingface_hub import snapshot_download

    try:  # only the small file: its folder in the cache is named by the commit
        return Path(snapshot_download(model, allow_patterns="modules.json")).name
    except Exception as error:  # of a dozen kinds
        raise OSError(
            f"no commit of {model!r} can be found ({type(error).__name__}: {error}). Give --revision."
        ) from error


def model_meta(
    model: SentenceTransformer,
    name: str,
    revision: str,
    *,
    languages: Sequence[str] = ("eng-Latn",),
    training_datasets: Sequence[str] | None = None,
    license: str | None = None,
    adapted_from: str | None = None,
    reference: str | None = None,
    public_training_code: str | None = None,
    public_training_data: str | None = None,
    release_date: str | None = None,
) -> ModelMeta:
    """The ModelMeta of a fitted model, every required field filled in.

    Args:
        model: the model.
        name: "org/model".
        revision: the hub's commit, or :func:`content_revision`.
        languages: ISO 639-3 and script, as in "eng-Latn".
        training_datasets: MTEB's names of the tasks whose text the encoder or the map was fitted on; unlabelled text
            counts. An empty list says none; None says unknown.
        license: of the weights, as the hub writes it ("apache-2.0"); None takes the card's.
        adapted_from: id of the encoder.
        reference: address of the model.
        public_training_code, public_training_data: addresses, where public.
        release_date: YYYY-MM-DD; None takes today.

    Raises:
        ImportError: mteb is not installed.
        ValueError: a similarity that MTEB refuses, or a field that it does.
    """
    require_mteb()
    from mteb.models import ModelMeta
    from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper

    check_similarity(model)
    parameters = list(model.parameters())
    return ModelMeta(
        loader=SentenceTransformerEncoderWrapper,
        # Here, not as an argument of get_model, which would file the results as an experiment.
        loader_kwargs={"trust_remote_code": True},
        name=name,
        revision=revision,
        release_date=release_date or date.today().isoformat(),
        languages=list(languages),
        n_parameters=sum(parameter.numel() for parameter in parameters),
        n_embedding_parameters=_embedding_parameters(model),
        memory_usage_mb=round(sum(p.numel() * p.element_size() for p in parameters) / 2**20, 1),
        max_tokens=model.max_seq_length,
        embed_dim=model.get_embedding_dimension(),
        license=license or model.model_card_data.license,
        open_weights=True,
        public_training_code=public_training_code,
        public_training_data=public_training_data,
        framework=["Sentence Transformers", "PyTorch", "safetensors"],
        reference=reference,
        similarity_fn_name=model.similarity_fn_name,  # type: ignore[arg-type]
        use_instructions=any(prompt for prompt in model.prompts.values()),
        training_datasets=None if training_datasets is None else set(training_datasets),
        adapted_from=adapted_from,
    )


def check_similarity(model: SentenceTransformer) -> None:
    """Raise a ValueError for a model whose similarity MTEB refuses."""
    if model.similarity_fn_name not in SIMILARITIES:
        raise ValueError(
            f"the model compares by {model.similarity_fn_name!r}, which MTEB refuses; it takes "
            f'{" and ".join(SIMILARITIES)}. Set model.similarity_fn_name = "cosine" and save the model again.'
        )


def _embedding_parameters(model: SentenceTransformer) -> int | None:
    inner: Any = getattr(model[0], "model", None)
    embeddings = inner.get_input_embeddings() if hasattr(inner, "get_input_embeddings") else None
    return None if embeddings is None else sum(parameter.numel() for parameter in embeddings.parameters())


def register(meta: ModelMeta) -> None:
    """Make ``mteb.get_model(meta.name)`` and ``mteb run -m`` know the model, in this process.

    ``get_model`` then loads it with the flag that sentence-transformers asks for (``trust_remote_code`` in the meta's
    ``loader_kwargs``), so that the package's FlowLayer may be imported.
    """
    require_mteb()
    from mteb.models.model_implementations import MODEL_REGISTRY

    if meta.name is None:
        raise ValueError("the ModelMeta has no name. Make it with sbert_flow.evaluation.mteb_model.model_meta.")
    MODEL_REGISTRY[meta.name] = meta


def wrap(model: SentenceTransformer, meta: ModelMeta) -> Any:
    """The model as MTEB evaluates it, under the identity of ``meta``."""
    require_mteb()
    from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper

    wrapped = SentenceTransformerEncoderWrapper(model)
    # The wrapper takes the name from the card, where it is often that of the base model or none at all: the second
    # model evaluated would then get the first one's cached scores.
    wrapped.mteb_model_meta = meta
    return wrapped
