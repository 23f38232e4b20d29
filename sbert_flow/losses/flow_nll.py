"""The flow's training objective as a sentence-transformers loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import PreTrainedModel

from sbert_flow.flows import bits_per_dimension
from sbert_flow.modules import FlowLayer
from sbert_flow.modules.model_card import CITATION
from sbert_flow.modules.pipeline import encoder_before_flow, split_at_flow
from sbert_flow.modules.recipes import INIT_ROWS, RECIPES
from sbert_flow.modules.validation import check_sentences


class FlowNLLLoss(nn.Module):
    r"""Negative log-likelihood of sentence embeddings under the model's FlowLayer, in bits per dimension.

    .. math:: L = -\frac{1}{d \ln 2} \left( \log N(f(x); 0, I) + \log \left|\det \frac{df}{dx}\right| \right)

    averaged over the batch and over the text columns (Li et al., EMNLP 2020). x is the embedding before the layer. The
    encoder is frozen: its parameters get ``requires_grad = False``, it stays in eval mode (no dropout), and no graph
    is built through it. It needs no labels; a label column is ignored.

    Encoding in each step is slow: :func:`sbert_flow.fit_flow` encodes once. Use the loss where you need the Trainer:
    its evaluators, checkpoints, loggers, several machines.

    Args:
        model: a SentenceTransformer with one FlowLayer.
        init_sentences: sentences to initialise the flow from (at least 16 different ones; up to 4,096 are used). A
            flow that is already initialised is not touched.
            A layer with a front must have it set, by :func:`sbert_flow.fit_flow` or :meth:`FlowLayer.set_front`: it is
            estimated from edited sentences, which a loss does not see. It stays as it is; the flow behind it trains.
        noise: standard deviation of Gaussian noise on the embeddings in training, in units of their root mean square
            standard deviation; .5 in recipe "noise", 0 in recipe "paper".

    Raises:
        ValueError: the model has no FlowLayer, or one without trained steps or with a front that was never set; the
            flow is uninitialised and no sentences were given; too few
            sentences; noise below 0.

    Inputs:
        one or more columns of texts, no labels.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        init_sentences: Iterable[str] | None = None,
        noise: float = RECIPES["noise"].noise,
    ) -> None:
        super().__init__()
        if not noise >= 0:
            raise ValueError(f"noise must be at least 0, but got {noise!r}.")
        _, layer = split_at_flow(model)
        _check_trainable(layer)
        if not layer.initialized and init_sentences is None:
            raise ValueError(
                "the FlowLayer is not initialised. Give the loss init_sentences, a sample of the training text, or "
                "call layer.initialize(embeddings) first: a first batch would set it differently in each process."
            )
        self.model = model  # the Trainer replaces the attribute of this name by its wrapped model
        self.noise = noise
        if not layer.initialized:
            sentences = check_sentences(init_sentences)
            order = torch.randperm(len(sentences), generator=torch.Generator().manual_seed(0))[:INIT_ROWS]
            sample = [sentences[index] for index in order.tolist()]
            embeddings = encoder_before_flow(model).encode(sample, convert_to_tensor=True, show_progress_bar=False)
            layer.initialize(embeddings, noise=noise)
        elif noise and not layer.noise_unit.any():
            raise ValueError(
                "this flow does not know the spread of the embeddings it was fitted on (it comes from another "
                "program's checkpoint), so noise has no unit. Give noise=0."
            )
        self._freeze()

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> Tensor:
        """Mean loss over the columns, a scalar; noise is added in training mode only."""
        layer = self._freeze()
        noise = self.noise if layer.training else 0.0
        if layer.training:
            layer.forget_text()  # what fit_flow noted is of the flow as it was
        # The whole model is called: its wrappers (DistributedDataParallel) have to see the flow's forward pass.
        outputs = [self.model(dict(column), return_log_det=True, noise=noise) for column in sentence_features]
        return self.compute_loss_from_embeddings(
            [features["flow_latent"] for features in outputs], [features["flow_log_det"] for features in outputs]
        )

    @staticmethod
    def compute_loss_from_embeddings(latents: Sequence[Tensor], log_dets: Sequence[Tensor]) -> Tensor:
        """Mean bits per dimension over columns, each with latents (n, d) and log-determinants (n,): a scalar."""
        terms = [bits_per_dimension(z, log_det).mean() for z, log_det in zip(latents, log_dets, strict=True)]
        return torch.stack(terms).mean()

    def get_config_dict(self) -> dict[str, Any]:
        return {"noise": self.noise}

    @property
    def citation(self) -> str:
        return CITATION

    def _freeze(self) -> FlowLayer:
        """Keep the encoder out of training; the Trainer sets the whole model to train mode before every step."""
        before, layer = split_at_flow(self.model)
        for module in before:
            module.requires_grad_(False).eval()
            for part in module.modules():
                # Gradient checkpointing has nothing to save in a frozen encoder, and its hook on the token embeddings
                # would build a graph through all of it.
                if getattr(part, "gradient_checkpointing", False):
                    setattr(part, "gradient_checkpointing", False)  # noqa: B010 (no such attribute in nn.Module)
                if isinstance(part, PreTrainedModel) and getattr(part, "_require_grads_hook", None) is not None:
                    part.disable_input_require_grads()
        return layer


def _check_trainable(layer: FlowLayer) -> None:
    if layer.adapted:
        raise ValueError(
            "this FlowLayer is adapted to new text, not trained for it. Call layer.reset_adaptation() first."
        )
    if layer.steps_per_level == 0:
        raise ValueError("this FlowLayer is a linear map without trained steps. Fit it with sbert_flow.fit_flow.")
    if layer.affine is not None and not layer.affine.is_set:
        raise ValueError(
            "the front of this FlowLayer was never set, and a loss cannot estimate it: that takes edited sentences. "
            "Call sbert_flow.fit_flow(model, sentences, recipe='surface-flow') first, or layer.set_front(...)."
        )
