"""The folder of the Trainer's checkpoints: what may be resumed, and what is said when a training stops."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers.trainer_utils import get_last_checkpoint

from sbert_flow.fitting.encoder_recipes import ENCODER_RECIPES
from sbert_flow.fitting.interrupt import terminate_as_interrupt
from sbert_flow.losses.pseudo_token_callback import FILE

SETTINGS = "training_settings.json"


def prepare(folder: Path, used: dict[str, Any], resume: bool) -> str | None:
    """Check the checkpoint folder against the settings and note them; the checkpoint to resume from, if any."""
    last = last_checkpoint(folder, used["recipe"])
    noted = folder / SETTINGS
    if not resume:
        if folder.is_dir() and get_last_checkpoint(str(folder)) is not None:
            raise FileExistsError(
                f"{folder} holds checkpoints of an earlier training. Resume it (--resume, resume=True), or "
                "remove the folder to train anew."
            )
        folder.mkdir(parents=True, exist_ok=True)
        noted.write_text(json.dumps(used, indent=2) + "\n", "utf-8")
        return None
    if last is None or not noted.is_file():
        raise FileNotFoundError(f"no checkpoint to resume from in {folder}. Train without --resume (resume=False).")
    before = json.loads(noted.read_text("utf-8"))
    other = [f"{name} {before.get(name)!r} -> {value!r}" for name, value in used.items() if before.get(name) != value]
    if other:
        raise ValueError(
            f"the checkpoints in {folder} are of a training with other settings: {', '.join(other)}. Resume with the "
            "same ones, or train anew into another folder."
        )
    return last


def last_checkpoint(folder: Path, recipe: str) -> str | None:
    """The newest checkpoint that is whole: a kill may leave one without what is written last."""
    needed = ["trainer_state.json", *([FILE] if recipe == "ptbert" else [])]
    whole = [path for path in folder.glob("checkpoint-*") if all((path / name).is_file() for name in needed)]
    return str(max(whole, key=lambda path: int(path.name.split("-")[1]))) if whole else None


@contextmanager
def saying_what_is_kept(folder: Path, recipe: str) -> Iterator[None]:
    """Turn SIGTERM into an interrupt, and say of interrupts and errors what is in the checkpoints."""
    with terminate_as_interrupt():
        try:
            yield
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(f"Interrupted. {_what_is_kept(folder, recipe)}") from interrupt
        except ValueError:
            raise  # a training that was going wrong goes wrong again
        except Exception as error:
            error.add_note(_what_is_kept(folder, recipe))
            raise


def _what_is_kept(folder: Path, recipe: str) -> str:
    last = last_checkpoint(folder, recipe)
    if last is None:
        return "There is no checkpoint yet."
    if not ENCODER_RECIPES[recipe].resumable:
        return f"{last} keeps its weights, but recipe {recipe!r} cannot be resumed."
    return f"{last} keeps what was done; the same command with --resume (resume=True) goes on from there."
