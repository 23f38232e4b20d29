"""PT-BERT's contrastive loss, as a sentence-transformers loss."""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import torch
from packaging.version import Version
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from sbert_flow.losses.processes import average_gradient, gather_rows
from sbert_flow.losses.pseudo_attention import PseudoTokenHead
from sbert_flow.modules.pipeline import unwrap

OLDEST = Version("6.2")
"""sentence-transformers of before this train the model alone under ``model.fit``, not what a loss learns beside it."""

CITATION = """@inproceedings{tan-etal-2022-sentence,
    title = "A Sentence is Worth 128 Pseudo Tokens: A Semantic-Aware Contrastive Learning Framework for Sentence
        Embeddings",
    author = "Tan, Haochen and Shao, Wei and Wu, Han and Yang, Ke and Song, Linqi",
    booktitle = "Findings of the Association for Computational Linguistics: ACL 2022",
    year = "2022",
    url = "https://aclanthology.org/2022.findings-acl.23",
    pages = "246--256",
}
"""


class PseudoTokenLoss(nn.Module):
    r"""Trains an encoder on unlabelled sentences by contrast through pseudo tokens.

    "A Sentence is Worth 128 Pseudo Tokens" (PT-BERT; Tan et al., Findings of ACL 2022). Each sentence is seen twice,
    with different dropout: h by the model and a :class:`~sbert_flow.losses.pseudo_attention.PseudoTokenHead`, k by
    momentum copies of both, without gradient. With the views k of the whole batch and of the last ``queue_batches``
    batches as candidates, the loss of sentence i is

    .. math:: L_i = -\log \frac{\exp(\cos(h_i, k_i) / \tau)}{\sum_j \exp(\cos(h_i, k_j) / \tau)}

    and after every optimiser step the copies follow: :math:`\theta_k \leftarrow \beta \theta_k + (1 - \beta) \theta`.
    The copies notice the step by themselves, so gradient accumulation, mixed precision (whose scaler leaves steps out)
    and ``model.fit`` need nothing else. Under DistributedDataParallel all processes' views are candidates of each, and
    the head's gradients are averaged.

    The pooling of the model is applied to H, so that with ``cls``, the paper's, the first row goes to the projection.
    Head, copies and queue belong to the loss: the saved model is the plain SentenceTransformer. The paper writes token
    states Y, and so it is here; its public code feeds the pooled row alone, and attention over a single key is
    constant, so that there the table has no effect.

    With the Trainer, add :class:`~sbert_flow.losses.PseudoTokenCallback` to be able to resume. ``model.fit`` trains
    too, but takes no callback: it cannot resume.

    Args:
        model: [Transformer, Pooling] or [Transformer, Pooling, Normalize], in float32 (mixed precision is the
            Trainer's ``bf16=True`` or ``fp16=True``).
        num_pseudo_tokens: m, rows of the table.
        momentum: beta, from 0 (the copies are the model after its last step) to below 1.
        queue_batches: past batches whose views are candidates; 0 for none.
        temperature: tau.
        seed: of the head's fresh weights.

    Raises:
        ValueError: an argument is outside its range, the model has no token states to attend to, more modules than
            these, weights in half precision, or lets longer texts through than it has positions.

        ImportError: sentence-transformers is older than 6.2.

    Warns:
        UserWarning: the encoder has no dropout, so both views of a sentence would be the same but for the momentum.

    Inputs:
        one column of texts, no labels.
    """

    followed_weight: Tensor

    def __init__(
        self,
        model: SentenceTransformer,
        num_pseudo_tokens: int = 128,
        momentum: float = 0.885,
        queue_batches: int = 4,
        temperature: float = 0.05,
        seed: int = 0,
    ) -> None:
        super().__init__()
        installed = version("sentence-transformers")
        if Version(installed) < OLDEST:
            raise ImportError(
                f"PseudoTokenLoss needs sentence-transformers {OLDEST} or newer, but {installed} is installed, whose "
                "model.fit would leave the table and the attention untrained. "
                "Update it: pip install -U sentence-transformers"
            )
        if not isinstance(num_pseudo_tokens, int) or num_pseudo_tokens < 1:
            raise ValueError(f"num_pseudo_tokens must be a whole number of at least 1, but got {num_pseudo_tokens!r}.")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, but got {momentum!r}.")
        if not isinstance(queue_batches, int) or queue_batches < 0:
            raise ValueError(f"queue_batches must be a whole number of at least 0, but got {queue_batches!r}.")
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, but got {temperature!r}.")
        encoder, pooling = _encoder_and_pooling(model)
        self.model = model  # the Trainer replaces the attribute of this name by its wrapped model
        self.num_pseudo_tokens = num_pseudo_tokens
        self.momentum = momentum
        self.queue_batches = queue_batches
        self.temperature = temperature
        self.head = PseudoTokenHead(
            encoder.get_embedding_dimension(), pooling.get_embedding_dimension(), num_pseudo_tokens, seed
        )
        self.momentum_encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.momentum_head = copy.deepcopy(self.head).requires_grad_(False)
        for parameter in self.head.parameters():
            # The Trainer wraps the model in DistributedDataParallel, but not the loss.
            parameter.register_post_accumulate_grad_hook(average_gradient)
        self.queue: deque[Tensor] = deque(maxlen=queue_batches)
        self.steps = 0
        # Both told by the callback: the one for an error, the other because the Trainer casts the model alone.
        self.learning_rate: float | None = None
        self.autocast_dtype: torch.dtype | None = None
        self.register_buffer("followed_weight", self.head.dense.weight.detach().clone(), persistent=False)

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> Tensor:
        """Mean loss of the batch, a scalar. In eval mode without dropout, and the queue stays as it is.

        Raises:
            ValueError: more than one column, no other sentence to contrast with, or, in training, a loss that is not
                finite.
        """
        columns = list(sentence_features)
        if len(columns) != 1:
            raise ValueError(
                f"PseudoTokenLoss takes one column of texts, but got {len(columns)}. It makes the second view of each "
                "sentence itself: select the column to train on."
            )
        training = unwrap(self.model).training
        if training:
            self.follow()
        # The whole model is called, though only its token states are used: its wrappers have to see the forward pass.
        anchors = self._view(self.model(dict(columns[0])), self.head)
        with torch.no_grad():
            # The Trainer switches the model between training and evaluation, not the loss.
            self.momentum_encoder.train(training)
            cast = self.autocast_dtype is not None
            with torch.autocast(anchors.device.type, dtype=self.autocast_dtype, enabled=cast):
                features = self.momentum_encoder(dict(columns[0]))
            keys = normalize(self._view(features, self.momentum_head), dim=-1)
            keys, first = gather_rows(keys) if training else (keys, 0)
        if len(keys) < 2 and not self.queue:
            raise ValueError(
                "a batch of 1 sentence has nothing to contrast it with. Use a batch size of at least 2, better 64, "
                "and dataloader_drop_last=True."
            )
        loss = self.compute_loss_from_embeddings(anchors, [keys, *self.queue], self.temperature, first)
        if training:
            if not torch.isfinite(loss):
                rate = "" if self.learning_rate is None else f" at learning rate {self.learning_rate:g}"
                raise ValueError(
                    f"the loss is {loss.item()} in step {self.steps + 1}{rate}. Train anew with a lower learning "
                    "rate, or load the encoder in float32."
                )
            self.queue.appendleft(keys)
        return loss

    @staticmethod
    def compute_loss_from_embeddings(
        anchors: Tensor, keys: Sequence[Tensor], temperature: float = 0.05, first: int = 0
    ) -> Tensor:
        """Mean InfoNCE over cosine similarities, a scalar, in float32.

        Args:
            anchors: shape (b, p).
            keys: candidates, each of shape (., p): those of the batch, then those of past batches.
            temperature: divides the cosine similarities.
            first: row of the joined candidates that belongs to anchor 0; those of the other anchors follow it.
        """
        with torch.autocast(device_type=anchors.device.type, enabled=False):
            candidates = normalize(torch.cat(list(keys)).float(), dim=-1)
            logits = normalize(anchors.float(), dim=-1) @ candidates.T / temperature
            return cross_entropy(logits, torch.arange(first, first + len(anchors), device=logits.device))

    @torch.no_grad()
    def follow(self) -> None:
        """Move the momentum copies towards the model, once after each optimiser step, however often it is called."""
        # Every step changes the projection, which has the largest gradients of the head. Its values are looked at
        # because fused optimisers write past torch's counter of changes, and a step that a scaler leaves out is none.
        if not torch.equal(self.head.dense.weight, self.followed_weight):
            self.steps += 1
            self.followed_weight.copy_(self.head.dense.weight)
            for copied, parameter in self._followers():
                copied.lerp_(parameter, 1 - self.momentum)

    def training_state(self) -> dict[str, Tensor]:
        """Everything of the loss that training needs to go on: head, momentum copies, queue, steps."""
        self.follow()
        state = {name: tensor.detach().clone().contiguous() for name, tensor in self._own_parameters()}
        state |= {f"queue.{place}": keys.clone() for place, keys in enumerate(self.queue)}
        return {**state, "steps": torch.tensor(self.steps)}

    @torch.no_grad()
    def load_training_state(self, state: dict[str, Tensor]) -> None:
        """Set the loss to what :meth:`training_state` gave.

        Raises:
            ValueError: the state is of another encoder, or of another number of pseudo tokens or queue batches.
        """
        own = dict(self._own_parameters())
        device = self.head.table.device
        batches = sum(name.startswith("queue.") for name in state)
        queue = [state[f"queue.{place}"].to(device) for place in range(batches)]
        shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
        got = {name: tuple(value.shape) for name, value in state.items() if name in shapes}
        wrong = [name for name in shapes if got.get(name) != shapes[name]]
        if wrong:
            raise ValueError(
                f"the saved state of the loss does not fit: {wrong[0]} has shape {got.get(wrong[0], 'none')}, but "
                f"{shapes[wrong[0]]} is needed. Resume with the encoder and num_pseudo_tokens it was saved with."
            )
        if len(queue) > self.queue_batches:
            raise ValueError(
                f"the saved queue holds {len(queue)} batches, but queue_batches is {self.queue_batches}. Resume with "
                "the settings it was saved with."
            )
        for name, tensor in own.items():
            tensor.copy_(state[name])
        self.queue = deque(queue, maxlen=self.queue_batches)
        self.steps = int(state["steps"])
        self.followed_weight.copy_(self.head.dense.weight)

    def get_config_dict(self) -> dict[str, Any]:
        return {
            "num_pseudo_tokens": self.num_pseudo_tokens,
            "momentum": self.momentum,
            "queue_batches": self.queue_batches,
            "temperature": self.temperature,
        }

    @property
    def citation(self) -> str:
        return CITATION

    def _view(self, features: dict[str, Any], head: PseudoTokenHead) -> Tensor:
        states, mask = features["token_embeddings"].float(), features["attention_mask"]
        if states.shape[:2] != mask.shape:
            raise ValueError(
                f"token states of shape {tuple(states.shape)} do not match the attention mask of shape "
                f"{tuple(mask.shape)}. Load the encoder with model_kwargs={{'attn_implementation': 'sdpa'}}: other "
                "implementations may join the sentences of a batch into one row."
            )
        rebuilt = head.sentence_sequence(states, head.pseudo_sequence(states, mask))
        pooling = list(unwrap(self.model).children())[1]
        return head.project(pooling({**features, "token_embeddings": rebuilt})["sentence_embedding"])

    def _own_parameters(self) -> Iterator[tuple[str, Tensor]]:
        for part in ("head", "momentum_encoder", "momentum_head"):
            for name, parameter in getattr(self, part).named_parameters():
                yield f"{part}.{name}", parameter

    def _followers(self) -> Iterator[tuple[Tensor, Tensor]]:
        encoder = next(unwrap(self.model).children())
        yield from zip(self.momentum_encoder.parameters(), encoder.parameters(), strict=True)
        yield from zip(self.momentum_head.parameters(), self.head.parameters(), strict=True)


def _encoder_and_pooling(model: SentenceTransformer) -> tuple[Transformer, Pooling]:
    """The two modules that the loss works on, after all checks of them."""
    modules = list(model.children())
    names = ", ".join(type(module).__name__ for module in modules)
    if not isinstance(modules[0], Transformer) or len(modules) < 2 or not isinstance(modules[1], Pooling):
        raise ValueError(
            f"PseudoTokenLoss attends to the token states of a transformer: the model must begin with Transformer and "
            f"Pooling, but its modules are: {names}. Static embeddings have no such states, and a pooling of several "
            "layers passes them by."
        )
    if not all(isinstance(module, Normalize) for module in modules[2:]):
        raise ValueError(
            f"PseudoTokenLoss trains [Transformer, Pooling], but the model's modules are: {names}. Train the encoder "
            "without the rest, then add it: sbert_flow.build_model(encoder, pooling)."
        )
    encoder, pooling = modules[0], modules[1]
    if model.dtype in (torch.float16, torch.bfloat16):
        raise ValueError(
            f"the encoder's weights are {model.dtype}, too coarse for steps of a usual learning rate. Load it with "
            "model_kwargs={'dtype': torch.float32}; bf16=True in the training arguments saves time all the same."
        )
    positions = _positions(encoder)
    if positions is not None and (model.max_seq_length is None or model.max_seq_length > positions):
        raise ValueError(
            f"the encoder has {positions} positions, but max_seq_length is {model.max_seq_length}, so that longer "
            f"sentences would not be cut. Set model.max_seq_length, for example to {min(64, positions)}."
        )
    warn_without_dropout(encoder)
    return encoder, pooling


def _positions(encoder: Transformer) -> int | None:
    """How many tokens the encoder has positions for; None where it has no table of them."""
    for name, module in encoder.model.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings"):
            # RoBERTa and its kin count from behind the padding's index.
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return getattr(encoder.model.config, "max_position_embeddings", None)


def warn_without_dropout(encoder: nn.Module) -> None:
    """Warn where two passes of a text through the encoder give the same in training mode."""
    if not any(isinstance(module, nn.Dropout) and module.p > 0 for module in encoder.modules()):
        warnings.warn(
            "The encoder has no dropout, so both views of a sentence are the same but for momentum copies, and there "
            "is little to learn. Load it with one, for example config_kwargs={'hidden_dropout_prob': 0.1} for BERT.",
            stacklevel=4,
        )
