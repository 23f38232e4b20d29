"""Readers of unlabelled text, as streams."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

TEXT_COLUMNS = (
    "text", "sentence", "sentences", "sentence1", "sentence2", "sentence_A", "sentence_B", "anchor", "positive",
    "negative", "premise", "hypothesis", "query", "question", "answer", "passage", "document", "title",
)  # fmt: skip
"""Columns that are taken as text where none are named."""


def read_sentences(
    sources: str | Path | Sequence[str | Path],
    columns: Sequence[str] | None = None,
    subset: str | None = None,
    split: str = "train",
) -> Iterator[str]:
    """Yield the sentences of files or hub datasets, one after the other; nothing is kept in memory.

    Plain text has one sentence a line; blank lines are left out. JSON Lines, CSV, TSV and Parquet have columns: of
    each row, every text column gives a sentence; missing and empty ones are left out.

    Args:
        sources: files (``.txt``, ``.jsonl``, ``.json``, ``.csv``, ``.tsv``, ``.parquet``; any other ending is plain
            text) or ids of hub datasets.
        columns: the text columns; None takes those whose names are known (:data:`TEXT_COLUMNS`).
        subset: configuration of a hub dataset.
        split: split of a hub dataset.

    Raises:
        FileNotFoundError: no such file, nor a dataset of that id.
        ValueError: not UTF-8, a malformed row, a column that is not there (file and line are named).
    """
    return (sentence for _, _, sentence in read_numbered(sources, columns, subset, split))


def read_numbered(
    sources: str | Path | Sequence[str | Path],
    columns: Sequence[str] | None = None,
    subset: str | None = None,
    split: str = "train",
) -> Iterator[tuple[str, int, str]]:
    """As :func:`read_sentences`, each sentence with its source and its line there, or row where there are no lines."""
    if isinstance(sources, (str, Path)):
        sources = [sources]
    # Looked up now, so that a missing file is reported before the first sentence is used.
    readers = [(str(source), _reader(source, columns, subset, split)) for source in sources]
    return ((source, number, sentence) for source, reader in readers for number, sentence in reader())


def _reader(
    source: str | Path, columns: Sequence[str] | None, subset: str | None, split: str
) -> Callable[[], Iterator[tuple[int, str]]]:
    path = Path(source).expanduser()
    if path.is_dir():
        model = " A model comes before --text." if (path / "modules.json").is_file() else ""
        raise FileNotFoundError(f"{source} is a folder; name the files in it.{model}")
    ending = path.suffix.lower()
    if path.is_file():
        if ending not in ROWS:
            return lambda: _lines(path)
        return lambda: _texts(ROWS[ending](path), columns, str(source))
    name = str(source)
    if ending in (*ROWS, ".txt") or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise FileNotFoundError(f"no such file: {source}")
    dataset = _hub_dataset(name, subset, split)
    return lambda: _texts(enumerate(dataset, start=1), columns, name)


def _hub_dataset(name: str, subset: str | None, split: str) -> Iterable[dict[str, Any]]:
    from datasets import load_dataset

    try:
        return load_dataset(name, subset, split=split, streaming=True)
    except Exception as error:  # the library has a dozen kinds for "not there" and "no network"
        raise FileNotFoundError(
            f"{name!r} is neither a file nor a dataset that can be read from the hub "
            f"({type(error).__name__}: {error})."
        ) from error


def _decoded(path: Path | Traversable) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: not UTF-8 ({error.reason}). Convert the file to UTF-8."
                ) from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in _decoded(path):
        if sentence := line.strip():
            yield number, sentence


def jsonl_rows(path: Path | Traversable) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and object of each line that is not blank."""
    for number, line in _decoded(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error.msg}).") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: must be a JSON object with text columns, but is {row!r:.80}.")
        yield number, row


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = (line for _, line in _decoded(path))
    # TSV as the STS data has it: a quote is a character like any other.
    tsv = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix.lower() == ".tsv" else {"strict": True}
    reader = csv.DictReader(lines, **tsv)
    try:
        if not reader.fieldnames:
            raise ValueError(f"{path} is empty: it needs a first line with the names of its columns.")
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(
                    f"{path}, line {reader.line_num}: has not as many fields as the first line has names. "
                    "Put quotes around text that holds the separator."
                )
            yield reader.line_num, row
    except csv.Error as error:
        raise ValueError(f"{path}, near line {reader.line_num}: malformed ({error}).") from error


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow
    import pyarrow.parquet

    try:
        batches = pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=4096)
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path}: not a Parquet file, or damaged ({error}).") from error


ROWS = {
    ".jsonl": jsonl_rows,
    ".ndjson": jsonl_rows,
    ".json": jsonl_rows,  # what the hub often calls JSON Lines
    ".csv": _csv_rows,
    ".tsv": _csv_rows,
    ".parquet": _parquet_rows,
}
"""Readers of rows by the file's ending."""


def _texts(
    rows: Iterable[tuple[int, dict[str, Any]]], columns: Sequence[str] | None, source: str
) -> Iterator[tuple[int, str]]:
    chosen = list(columns) if columns else None
    for number, row in rows:
        if chosen is None:
            chosen = [name for name in row if name in TEXT_COLUMNS]
            if not chosen:
                raise ValueError(
                    f"{source} has no column that is known to hold text. Its columns: {', '.join(map(str, row))}. "
                    "Name the text columns (--column)."
                )
        for name in chosen:
            if name not in row:
                raise ValueError(
                    f"{source}, row {number}: no column {name!r}. Its columns: {', '.join(map(str, row))}."
                )
            value = row[name]
            if value is None:
                continue
            if not isinstance(value, str):
                raise ValueError(f"{source}, row {number}: column {name!r} holds {value!r:.80}, not text.")
            if text := value.strip():
                yield number, text
