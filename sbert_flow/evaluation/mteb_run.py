"""Running MTEB tasks, on the hub's data or on local files (extra ``mteb``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentence_transformers import SentenceTransformer

from sbert_flow.data import SICK_FULL, STS_TASKS, read_sts
from sbert_flow.evaluation.mteb_model import check_similarity, require_mteb, wrap

if TYPE_CHECKING:
    from mteb.models import ModelMeta


def mteb_tasks(names: Sequence[str], data: str | Path | None = None) -> list[Any]:
    """MTEB's tasks, their data loaded.

    Args:
        names: MTEB's names; with ``data``, of the seven English STS tasks.
        data: folder of the tasks, ``<TASK>/test.jsonl``; None takes the hub's data or its cache. Results on local
            files record the dataset revision "local": they are not for the leaderboard. SICK-R is all 9,927 pairs, as
            in MTEB.

    Raises:
        ImportError: mteb is not installed.
        ValueError: unknown task, or a bad line in a file.
        OSError: no local file, or the hub's data are neither cached nor to be downloaded.
    """
    require_mteb()
    import mteb

    if not names:
        raise ValueError(f"name at least one task, for example {STS_TASKS[0]}.")
    tasks = []
    for name in names:
        if data is not None and name not in STS_TASKS:
            raise ValueError(f"local data are known for {', '.join(STS_TASKS)}, but got {name!r}. Leave --data out.")
        try:
            task = mteb.get_task(name)
        except KeyError as error:
            raise ValueError(f"MTEB has no task {name!r}: {error}") from error
        if data is None:
            _load_from_hub(task)
        else:
            _set_local(task, data)
        tasks.append(task)
    return tasks


def _set_local(task: Any, folder: str | Path) -> None:
    from datasets import Dataset, DatasetDict

    name = task.metadata.name
    [pairs] = read_sts(folder, [SICK_FULL if name == "SICK-R" else name])
    columns = {"sentence1": pairs.sentences1, "sentence2": pairs.sentences2, "score": pairs.scores}
    task.dataset = DatasetDict({"test": Dataset.from_dict(columns)})
    task.data_loaded = True
    # A copy: the metadata belong to the class, and the next user of the task wants the hub's.
    dataset = {**task.metadata.dataset, "revision": "local"}
    task.metadata = task.metadata.model_copy(update={"dataset": dataset})


def _load_from_hub(task: Any) -> None:
    try:
        task.load_data()
    except Exception as error:  # of a dozen kinds
        raise OSError(
            f"the data of {task.metadata.name} ({task.metadata.dataset['path']}) are not in the cache of datasets and "
            f"cannot be downloaded ({type(error).__name__}: {error}). Give local files with --data."
        ) from error


def check_results_folder(output: str | Path, name: str, revision: str) -> Path:
    """The folder of the results, ``<output>/results/<org>__<model>/<revision>``, if results may be put there.

    Raises:
        FileExistsError: it holds results of another revision, or ``output`` is a file.
    """
    output = Path(output).expanduser()
    if output.exists() and not output.is_dir():
        raise FileExistsError(f"the output {output} is a file. Name a folder.")
    folder = output / "results" / name.replace("/", "__")
    others = sorted(path.name for path in folder.glob("*") if path.is_dir() and path.name != revision)
    if others:
        raise FileExistsError(
            f"{folder} holds results of revision {', '.join(others)}, but the model's is {revision}. Name another "
            "output folder, or remove the old results."
        )
    return folder / revision


def run_mteb(
    model: SentenceTransformer, meta: ModelMeta, tasks: Sequence[Any], output: str | Path, batch_size: int = 32
) -> dict[str, float]:
    """Evaluate with ``mteb.evaluate`` and write the results as the leaderboard's repository wants them.

    That is ``<output>/results/<org>__<model>/<revision>/<TASK>.json`` and ``model_meta.json`` beside them. Tasks with
    a result of this very revision are not run again.

    Args:
        model: the model.
        meta: its identity, see :func:`sbert_flow.evaluation.mteb_model.model_meta`.
        tasks: see :func:`mteb_tasks`.
        output: folder.
        batch_size: of the encoder.

    Returns:
        The main score of each task.

    Raises:
        FileExistsError: results of another revision are there.
        ValueError: the model's similarity is one that MTEB refuses.
    """
    import mteb
    from mteb.cache import ResultCache

    check_similarity(model)
    check_results_folder(output, str(meta.name), str(meta.revision))
    results = mteb.evaluate(
        wrap(model, meta), list(tasks), cache=ResultCache(Path(output).expanduser()), co2_tracker=False,
        encode_kwargs={"batch_size": batch_size}, show_progress_bar=False,
    )  # fmt: skip
    return {result.task_name: float(result.get_score()) for result in results.task_results}
