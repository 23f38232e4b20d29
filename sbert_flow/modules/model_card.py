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


@dataclass
class FlowModelCardData(SentenceTransformerModelCardData):
    """Model card data whose usage snippet loads a model with a third-party module."""

    def generate_usage_snippet(self) -> str:
        """The library's snippet, with the package to install and the flag that lets the library import it."""
        snippet = super().generate_usage_snippet()
        model_id = self.model_id or "sentence_transformers_model_id"
        return snippet.replace(
            "```python\n", "```python\n# Needs the package of the flow: pip install -U sbert-flow\n", 1
        ).replace(
            f'SentenceTransformer("{model_id}")', f'SentenceTransformer("{model_id}", trust_remote_code=True)', 1
        )


def describe_in_card(model: Any) -> None:
    """Make the model's card say how to load it, whom to cite and what it is."""
    card = model.model_card_data
    if type(card) is SentenceTransformerModelCardData:  # a user's own subclass is left as it is
        card.__class__ = FlowModelCardData
    if isinstance(card, FlowModelCardData):
        card.add_tags(["sbert-flow", "bert-flow"])
        card.citations.setdefault("BERT-flow", CITATION)
