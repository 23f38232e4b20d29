"""The embedding store: sentences and their embeddings on disk, encoded once, used by any number of fits."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from sbert_flow.fitting import distributed
from sbert_flow.fitting.embedding_set import EmbeddingSet, check_dtype, rows_of_window
from sbert_flow.fitting.files import Source, explained, read_json, remove_leftovers, write_json
from sbert_flow.fitting.fingerprint import encoder_fingerprint
from sbert_flow.fitting.progress import Progress
from sbert_flow.fitting.sampling import sample_rows
from sbert_flow.fitting.text_spool import TextSpool, install, spool_text
from sbert_flow.modules.validation import MIN_ROWS, check_enough, iterate_sentences, well_formed

FORMAT = 1
"""Version of the layout on disk. A store of a later one is refused."""

MARK = "store.json"


class EmbeddingStore:
    """Distinct sentences of one text and embeddings of them, in a folder.

    A folder may hold any number of texts; each has a folder of its own, named by what it says. The same text again
    finds its embeddings there, whatever the file it came from. Embeddings of another encoder, pooling, prompt, maximum
    length or precision are another set beside the first. Use :meth:`open`::

        store = EmbeddingStore.open("store", sentences)
        embeddings = store.embed(encoder)                        # EmbeddingSet, (n, d); at once the second time
        shuffled = store.embed(encoder, name="shuffle", edit=shuffle_words, rows=rows)   # aligned with ``rows``

    Args:
        folder: of the text, inside that of the store. Nothing is read anew nor written: for a store that others write
            to, or that cannot be written to.
        progress: how it is shown.
    """

    def __init__(self, folder: Path, progress: Progress | None = None) -> None:
        self.folder = folder
        self.progress = progress or Progress("quiet")
        summary = read_json(folder / "text.json", f"Delete the folder {folder}; the text is then read anew.")
        self._text = TextSpool(folder, summary["rows"], summary["digest"])

    @classmethod
    def open(
        cls,
        folder: str | Path,
        sentences: Iterable[str],
        *,
        least: int = MIN_ROWS,
        progress: Progress | None = None,
    ) -> EmbeddingStore:
        """Read the sentences once, as a stream, and return the store of the distinct ones, new or there already.

        Several processes call it together; rank 0 reads, and its errors are raised on every rank.

        Args:
            folder: of the store; made if it is not there.
            sentences: any iterable of strings.
            least: how many distinct ones are needed.
            progress: how progress is shown; None is quiet.

        Raises:
            ValueError: items that are not strings, too few distinct ones, a store of a newer version.
            OSError: the folder cannot be written, is no store, is in use, or the disk is full.

        Warns:
            UserWarning: some are empty; some hold lone surrogates, which U+FFFD replaces.
        """
        text_folder = None
        with distributed.same_error():
            if distributed.rank() == 0:
                text_folder = _read_text(Path(folder).expanduser(), sentences, least)
        text_folder = distributed.from_first(text_folder)
        with distributed.same_error():
            return cls(text_folder, progress)

    def __len__(self) -> int:
        return len(self._text)

    @property
    def digest(self) -> str:
        """SHA-256 of the distinct sentences and their order."""
        return self._text.digest

    def sentences(self, start: int = 0, stop: int | None = None) -> list[str]:
        """Sentences ``start`` to ``stop``, in order of first occurrence."""
        return self._text.read(start, stop)

    def at(self, rows: Iterable[int]) -> list[str]:
        """The sentences of the given numbers."""
        return self._text.read_rows(rows)

    def sample(self, rows: int, seed: int = 0) -> np.ndarray:
        """Numbers of ``rows`` random distinct sentences, in increasing order; all of them if there are fewer."""
        return sample_rows(len(self), rows, torch.Generator().manual_seed(seed)).sort().values.numpy()

    def embed(
        self,
        encoder: SentenceTransformer,
        *,
        name: str = "embeddings",
        edit: Callable[[str], str] | None = None,
        rows: Sequence[int] | np.ndarray | None = None,
        dtype: str = "float32",
        batch_size: int = 32,
        bf16: bool = False,
    ) -> EmbeddingSet:
        """Return the embeddings of the sentences, encoding what is not there yet; what is complete needs no lock.

        Sentences are encoded in windows of 4,096, sorted by length within each. Finished windows outlive a kill or a
        power cut; the next call goes on behind them and ends with the same bytes as an uninterrupted one. With several
        processes every rank encodes its share, in smaller windows if there were none for some; if one fails, all raise
        its error when they have finished theirs.

        Args:
            encoder: gives the embeddings; of a model with a flow it is
                :func:`sbert_flow.modules.pipeline.encoder_before_flow`.
            name: of the set. With ``edit`` it must say which edit and which seed: functions cannot be compared.
            edit: what is encoded instead of each sentence: a view of it. The same sentence must give the same view.
            rows: numbers of the sentences to encode; None takes all. Row i of the set belongs to ``rows[i]``.
            dtype: "float32" or "float16", which halves the file (relative error 5e-4).
            batch_size: of the encoder.
            bf16: run the encoder in bfloat16 autocast.

        Raises:
            ValueError: embeddings that are NaN, infinite or too large for float16; an edit that gives no string; an
                edit without a name of its own.
            OSError: the disk is full, or the store is in use.
        """
        heads = {name: encoder}
        return self._embed(encoder, heads, edit, rows, dtype, batch_size, bf16)[name]

    def embed_poolings(
        self,
        transformer: nn.Module,
        poolings: Mapping[str, Sequence[nn.Module]],
        *,
        dtype: str = "float32",
        batch_size: int = 32,
        bf16: bool = False,
        device: str | None = None,
    ) -> dict[str, EmbeddingSet]:
        """Embeddings under several poolings from a single pass of the transformer.

        Args:
            transformer: the first module of the encoders.
            poolings: for each name, the modules after the transformer
                (:func:`sbert_flow.modules.pooling.pooling_modules`).
            dtype, batch_size, bf16: as for :meth:`embed`.
            device: None takes the library's choice.

        Returns:
            The sets by name, each the same as :meth:`embed` gives.
        """
        heads = {name: _encoder([transformer, *modules], device) for name, modules in poolings.items()}
        together = _encoder([transformer, _Heads([list(modules) for modules in poolings.values()])], device)
        return self._embed(together, heads, None, None, dtype, batch_size, bf16)

    def _embed(
        self,
        encoder: SentenceTransformer,
        heads: Mapping[str, SentenceTransformer],
        edit: Callable[[str], str] | None,
        rows: Sequence[int] | np.ndarray | None,
        dtype: str,
        batch_size: int,
        bf16: bool,
    ) -> dict[str, EmbeddingSet]:
        """Write one set for each head; ``encoder`` gives their embeddings side by side."""
        check_dtype(dtype)
        if edit is not None and "embeddings" in heads:
            raise ValueError("an edited set needs a name of its own that says which edit it is and with which seed.")
        chosen = None if rows is None else np.asarray(rows, dtype="<i8")
        if chosen is not None and len(chosen) and not 0 <= chosen.min() <= chosen.max() < len(self):
            raise ValueError(
                f"rows must lie between 0 and {len(self) - 1}, but go from {chosen.min()} to {chosen.max()}."
            )
        described: dict[str, dict[str, Any]] = {}
        paths: dict[str, Path] = {}
        finished = False
        with distributed.same_error():
            if distributed.rank() == 0:
                described = {name: _describe(name, head, bf16, edit, chosen) for name, head in heads.items()}
                for name, info in described.items():
                    paths[name] = self.folder / f"{_file_name(name)}-{_digest([info, dtype])}.json"
                finished = all(path.is_file() and EmbeddingSet(path).complete for path in paths.values())
        paths, finished = distributed.from_first((paths, finished))
        with ExitStack() as held:  # reading what is finished needs no lock
            if not finished:
                with distributed.same_error():
                    if distributed.rank() == 0:
                        self._make_room(held, heads, described, paths, chosen, dtype)
            with distributed.same_error():
                sets = {name: EmbeddingSet(path) for name, path in paths.items()}
                unfinished = [embeddings for embeddings in sets.values() if not embeddings.complete]
                windows = sorted({number for embeddings in unfinished for number in embeddings.missing().tolist()})
            with distributed.same_error():  # entered when all have seen the same windows, before the first is written
                if windows:
                    self._fill(encoder, list(sets.values()), unfinished, windows, edit, chosen, batch_size, bf16)
        return sets

    def _make_room(
        self,
        held: ExitStack,
        heads: Mapping[str, SentenceTransformer],
        described: dict[str, dict[str, Any]],
        paths: dict[str, Path],
        chosen: np.ndarray | None,
        dtype: str,
    ) -> None:
        """Lock the folder until ``held`` is closed, and make the files of the sets that are not there yet."""
        with self._explained():
            held.enter_context(_lock(self.folder))
            remove_leftovers(self.folder, "*.json")
        rows = len(self) if chosen is None else len(chosen)
        there = [EmbeddingSet(path) for path in paths.values() if path.is_file()]
        begun = [embeddings.info["window_rows"] for embeddings in there if not embeddings.complete]
        # One pass has one size of windows; that of a set that is begun, so that its work is not lost.
        window_rows = begun[0] if begun else rows_of_window(rows, distributed.world_size())
        for name, head in heads.items():
            width = _width(head)
            with self._explained():
                EmbeddingSet.create(paths[name], rows, width, dtype, described[name], window_rows)

    def _explained(self) -> AbstractContextManager[None]:
        """Around our own writing, not around encoders and edits: their errors are theirs."""
        return explained(self.folder, "writing the embeddings")

    def _fill(
        self,
        encoder: SentenceTransformer,
        sets: list[EmbeddingSet],
        unfinished: list[EmbeddingSet],
        windows: list[int],
        edit: Callable[[str], str] | None,
        chosen: np.ndarray | None,
        batch_size: int,
        bf16: bool,
    ) -> None:
        """Encode this rank's share of the windows; ``unfinished`` are those of the sets that are written."""
        window_of = unfinished[0].window
        windows = windows[distributed.rank() :: distributed.world_size()]
        total = len(sets[0])
        open_rows = sum(len(window_of(number)) for number in windows)
        progress = self.progress if distributed.rank() == 0 else Progress("quiet")
        done = total - open_rows if distributed.world_size() == 1 else 0
        if done:
            progress.say(f"Continuing: {done:,} of {total:,} sentences are encoded already.", done=done, total=total)
        splits = np.cumsum([embeddings.shape[1] for embeddings in sets])[:-1]
        with progress.stage("Encoding", done + open_rows, "sentences", done) as stage:
            for number in windows:
                window = window_of(number)
                numbers = window if chosen is None else chosen[window.start : window.stop].tolist()
                texts = self.sentences(window.start, window.stop) if chosen is None else self._text.read_rows(numbers)
                inputs = texts if edit is None else [_edited(edit, text) for text in texts]
                encoded = _encode(encoder, inputs, batch_size, bf16)
                for embeddings, part in zip(sets, np.split(encoded, splits, axis=1), strict=True):
                    if embeddings not in unfinished:
                        continue
                    with np.errstate(over="ignore"):  # what is too large is named just below
                        stored = part.astype(embeddings.info["dtype"])
                    _check_finite(stored, part, numbers, texts)
                    with self._explained():
                        embeddings.write(number, stored)
                stage.advance(len(window))


class _Heads(nn.Module):
    """Several poolings of the same token states, side by side."""

    def __init__(self, heads: list[list[nn.Module]]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.ModuleList(head) for head in heads)

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        pooled: list[Tensor] = []
        for head in self.heads:
            own = dict(features)
            for module in head:  # type: ignore[attr-defined]
                own = module(own)
            pooled.append(own["sentence_embedding"])
        return {**features, "sentence_embedding": torch.cat(pooled, dim=-1)}


def _describe(
    name: str, encoder: SentenceTransformer, bf16: bool, edit: Callable[[str], str] | None, chosen: np.ndarray | None
) -> dict[str, Any]:
    """What makes a set another one."""
    return {
        "format": FORMAT,
        "name": name,
        "encoder": encoder_fingerprint(encoder),
        "bf16": bf16,
        "edited": edit is not None,
        "chosen": None if chosen is None else hashlib.sha256(chosen.tobytes()).hexdigest(),
    }


def _encoder(modules: list[nn.Module], device: str | None) -> SentenceTransformer:
    encoder = SentenceTransformer(modules=modules, device=device)
    encoder.model_card_data.generate_widget_examples = False
    return encoder


def _encode(encoder: SentenceTransformer, texts: list[str], batch_size: int, bf16: bool) -> np.ndarray:
    # On its own device even when CUDA is there: a rank keeps to the one it was given.
    with torch.autocast(encoder.device.type, torch.bfloat16, enabled=bf16):
        encoded = encoder.encode(texts, batch_size=batch_size, convert_to_numpy=True, show_progress_bar=False)
    return np.asarray(encoded, dtype=np.float32)


def _width(encoder: SentenceTransformer) -> int:
    return encoder.get_embedding_dimension() or _encode(encoder, ["width"], 1, False).shape[1]


def _edited(edit: Callable[[str], str], sentence: str) -> str:
    view = edit(sentence)
    if not isinstance(view, str):
        raise ValueError(f"the edit must return a string, but gave {view!r:.80} for {sentence!r:.80}.")
    if view != well_formed(view):
        raise ValueError(
            f"the edit gave {view!r:.80} for {sentence!r:.80}: no tokenizer takes its lone surrogate (half a "
            "character). Edit whole characters."
        )
    return view


def _check_finite(stored: np.ndarray, encoded: np.ndarray, rows: Sequence[int], texts: list[str]) -> None:
    bad = np.flatnonzero(~np.isfinite(stored).all(axis=1))
    if len(bad):
        first = int(bad[0])
        raise ValueError(
            f"{len(bad)} embeddings of sentences {rows[0]} to {rows[-1]} hold NaN or infinity, first that of sentence "
            f"{rows[first]}, {texts[first]!r:.80}. "
            + (
                "They are too large for float16: store them in float32."
                if np.isfinite(encoded[first]).all()
                else "Remove it, or load the encoder in float32 or bfloat16: float16 overflows."
            )
        )


def _read_text(root: Path, sentences: Iterable[str], least: int) -> Path:
    """Put the text into the store ``root``, and return its folder."""
    source = Source(iterate_sentences(sentences))
    with explained(root, "writing the store", kept=False, source=source):
        _check_root(root)
        with _lock(root):
            _mark(root)
            incoming = root / "incoming"
            if incoming.exists():  # of a process that was killed
                shutil.rmtree(incoming)
            try:
                summary = spool_text(source, incoming)
                check_enough(int(summary["rows"]), least)
                text_folder = root / f"text-{str(summary['digest'])[:16]}"
                install(incoming, text_folder)
            finally:
                shutil.rmtree(incoming, ignore_errors=True)
    return text_folder


def _check_root(root: Path) -> None:
    """Make the folder if need be, and refuse one that is something else or of a newer version."""
    if root.exists() and not root.is_dir():
        raise FileExistsError(f"the store {root} is a file. Name a folder.")
    root.mkdir(parents=True, exist_ok=True)
    mark = root / MARK
    if mark.is_file():
        remedy = f'If the folder is a store, write {{"format": {FORMAT}}} into the file; else name another folder.'
        version = read_json(mark, remedy).get("format")
        if not isinstance(version, int) or version > FORMAT:
            raise ValueError(
                f"the store {root} is of format {version!r}, but this version of sbert-flow reads formats up to "
                f"{FORMAT}. Update the package (pip install -U sbert-flow), or name another folder."
            )
        return
    strange = [path.name for path in root.iterdir() if not _may_lie_in_a_new_store(path.name)]
    if strange:
        raise FileExistsError(
            f"the folder {root} holds something else than a store, such as {min(strange)!r}. "
            "Name another one or empty it."
        )


def _may_lie_in_a_new_store(name: str) -> bool:
    """Also what a kill leaves of writing the mark, and what a fresh disk holds."""
    return name in ("lock", "lost+found") or (name.startswith(f"{MARK}.") and name.endswith(".tmp"))


def _mark(root: Path) -> None:
    """Say that the folder is a store."""
    remove_leftovers(root, MARK)
    if not (root / MARK).is_file():
        write_json(root / MARK, {"format": FORMAT})


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One writer at a time; the lock goes with its process, however that ends."""
    try:
        with FileLock(folder / "lock", timeout=0):
            yield
    except Timeout as error:
        raise OSError(
            f"the store {folder} is being written by another process. Wait for it, or name another folder."
        ) from error


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
