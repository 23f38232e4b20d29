"""What a model with a map of ours says in its model card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sentence_transformers.sentence_transformer.model_card import SentenceTransformerModelCardData

CITATION = """@inproceedings{li-etal-2020-sentence,
    title = "On the Sentence Embeddings from Pre-trained Language Models",
    author = "Li, Bohan and Zhou, Hao and He, Junxian and Wang, Mingxuan and Yang, Yiming and Li, Lei",
    booktitle = "Proceedings of the 2020 Conference on Empirical Methods in Natural Language Processing (EMNLP)",
    year = "2020",
    url = "https://aclanthology.org/2020.emnlp-main.733",
    pages = "9119--9130",
}
"""

WHITENING_CITATION = """@article{su-etal-2021-whitening,
    title = "Whitening Sentence Representations for Better Semantics and Faster Retrieval",
    author = "Su, Jianlin and Cao, Jiarun and Liu, Weijie and Ou, Yangyiwen",
    journal = "arXiv preprint arXiv:2103.15316",
    year = "2021",
    url = "https://arxiv.org/abs/2103.15316",
}
"""

CITATIONS = {"flow": ("BERT-flow", CITATION), "whitening": ("BERT-whitening", WHITENING_CITATION)}
"""Key and entry for each kind of map."""


@dataclass
class PrivateModelCardData(SentenceTransformerModelCardData):
    """Model card data without the user's text.

    Attributes:
        copy_training_rows: let the library copy rows of training data into the card; off, because text may be private.
    """

    copy_training_rows: bool = False

    def compute_dataset_metrics(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The library's description of a training set, without its rows."""
        info = super().compute_dataset_metrics(*args, **kwargs)
        if not self.copy_training_rows:
            for key in ("examples", "examples_table", "_example_columns"):
                info.pop(key, None)
        return info

    def set_widget_examples(self, dataset: Any) -> None:
        """The library's choice of training sentences to show with the model: none."""
        if self.copy_training_rows:
            super().set_widget_examples(dataset)


@dataclass
class FlowModelCardData(PrivateModelCardData):
    """Model card data whose usage snippet loads a model with a third-party module.

    Attributes:
        fitted_on: what the map was fitted on, in words, see :func:`describe_fit`.
    """

    fitted_on: str | None = None

    def generate_usage_snippet(self) -> str:
        """The library's snippet, with the package to install and the flag that lets the library import it."""
        return self._snippet() + self._about_the_map()

    def _about_the_map(self) -> str:
        fitted_on = f"It was fitted without labels on {self.fitted_on}. " if self.fitted_on else ""
        adapted = any(getattr(module, "adapted", False) for module in (self.model.children() if self.model else ()))
        return (
            f"\n### The map\n\nThe last module maps the encoder's embeddings to isotropic ones. {fitted_on}"
            f"{'It was then adapted to other text (sbert-flow adapt). ' if adapted else ''}Compare "
            "its embeddings by cosine. They are not comparable with embeddings made without the map: index a vector "
            "store anew when a map is added, adapted or fitted again.\n"
        )

    def _snippet(self) -> str:
        snippet = super().generate_usage_snippet()
        model_id = self.model_id or "sentence_transformers_model_id"
        return snippet.replace(
            "```python\n", "```python\n# Needs the package of the flow: pip install -U sbert-flow\n", 1
        ).replace(
            f'SentenceTransformer("{model_id}")', f'SentenceTransformer("{model_id}", trust_remote_code=True)', 1
        )


def keep_text_out(model: Any) -> None:
    """Keep the rows that a model is trained on out of its card."""
    card = model.model_card_data
    if type(card) is SentenceTransformerModelCardData:  # a user's own subclass is left as it is
        card.__class__ = PrivateModelCardData


def describe_in_card(model: Any, map_name: str) -> None:
    """Make the model's card say how to load it, whom to cite for its map ("flow" or "whitening") and what it is."""
    card = model.model_card_data
    if type(card) in (SentenceTransformerModelCardData, PrivateModelCardData):
        card.__class__ = FlowModelCardData
    if isinstance(card, FlowModelCardData):
        key, entry = CITATIONS[map_name]
        card.add_tags(["sbert-flow", key.lower()])
        card.citations.setdefault(key, entry)


def describe_fit(model: Any, text: str | None, rows: int) -> None:
    """Make the model's card say what its map was fitted on.

    Args:
        model: the SentenceTransformer.
        text: the text in words, such as the names of its files; None says the number only.
        rows: number of distinct sentences.
    """
    if isinstance(model.model_card_data, FlowModelCardData):
        model.model_card_data.fitted_on = f"{rows:,} distinct sentences" + (f" of {text}" if text else "")
