"""Scores in the model card of a saved model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard

BEGIN, END = "<!-- sbert-flow scores -->", "<!-- end of sbert-flow scores -->"


def saved_card(folder: str | Path) -> Path:
    """The card of a saved model.

    Raises:
        FileNotFoundError: ``folder`` is not a folder, or has no README.md.
    """
    card = Path(folder).expanduser() / "README.md"
    if not card.is_file():
        raise FileNotFoundError(
            f"no model card {card}. Scores are written into the card of a model saved in a folder."
        )
    return card


def write_scores(folder: str | Path, raw: dict[str, Any], mapped: dict[str, Any], split: str = "test") -> None:
    """Write the table raw / with the map into the card's text, and ``model-index`` entries into its metadata.

    Scores of an earlier call are replaced; everything else in the card is kept.

    Args:
        folder: of the saved model.
        raw: scores of the encoder alone, as :func:`sbert_flow.evaluation.evaluate_sts` gives them.
        mapped: scores of the model.
        split: the split that both are of.

    Raises:
        OSError: there is no card, or it cannot be written.
    """
    path = saved_card(folder)
    card = ModelCard.load(path)
    lines = [
        f"{BEGIN}\n## Scores on semantic textual similarity ({split})\n",
        'Spearman correlation x 100 of cosine similarity with human scores, over all pairs of a task ("all"), of the',
        "encoder with this pooling alone and with the fitted map. Written by `sbert-flow evaluate --card`.\n",
        "| task | pairs | without the map | with the map |\n| --- | ---: | ---: | ---: |",
    ]
    for task, score in mapped["tasks"].items():
        before = raw["tasks"][task]["spearman"]
        lines.append(f"| {task} | {score['pairs']:,} | {100 * before:.2f} | {100 * score['spearman']:.2f} |")
    lines.append(f"| average | | {100 * raw['average']:.2f} | {100 * mapped['average']:.2f} |\n{END}")
    section = "\n".join(lines)
    text = re.sub(re.escape(BEGIN) + ".*?" + re.escape(END) + "\n*", "", card.text, flags=re.DOTALL)
    before_training, heading, rest = text.partition("\n## Training Details")
    card.text = f"{before_training.rstrip()}\n\n{section}\n{heading}{rest}"
    results = [result for result in card.data.eval_results or [] if result.dataset_name not in mapped["tasks"]]
    for task, score in mapped["tasks"].items():
        results.append(
            EvalResult(
                task_type="semantic-similarity", task_name="Semantic Similarity", dataset_type=task, dataset_name=task,
                dataset_split=split, metric_type="spearman_cosine", metric_name="Spearman Cosine",
                metric_value=score["spearman"],
            )
        )  # fmt: skip
    card.data.eval_results = results
    card.data.model_name = card.data.model_name or Path(folder).resolve().name
    card.save(path)
