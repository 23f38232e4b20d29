"""The pseudo-token layers of PT-BERT."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

INIT_STD = 0.02
"""Standard deviation of the projection's fresh weights, as in BERT."""


class PseudoTokenHead(nn.Module):
    r"""What PT-BERT puts on an encoder while it trains: attention through pseudo tokens, and a projection.

    With token states Y (n x d), a learnt table P (m x d) and :math:`A(Q, K) = \mathrm{softmax}(Q W_q (K W_k)^T /
    \sqrt{d}) \, K W_v`:

    .. math:: Z = A(P, Y), \qquad H = A(Y, Z), \qquad h = \tanh(W \, \mathrm{pool}(H) + b)

    Z has m rows whatever the length of the sentence. Both attentions share their weights, have one head and no
    residual connection. :math:`W_q, W_k, W_v` start as the identity, P as standard normal. From "A Sentence is Worth
    128 Pseudo Tokens" (PT-BERT; Tan et al., Findings of ACL 2022).

    Args:
        width: d, of the token states.
        pooled_width: width of what the model's pooling makes of H; d unless it joins several poolings.
        num_pseudo_tokens: m.
        seed: of the fresh weights, so that every process starts from the same ones.
    """

    def __init__(self, width: int, pooled_width: int, num_pseudo_tokens: int, seed: int = 0) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(num_pseudo_tokens, width))
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dense = nn.Linear(pooled_width, pooled_width)
        generator = torch.Generator().manual_seed(seed)
        nn.init.normal_(self.table, generator=generator)
        nn.init.normal_(self.dense.weight, std=INIT_STD, generator=generator)
        for layer in (self.query, self.key, self.value):
            # With small random weights, as in BERT, all logits would be near 0 and both attentions plain means: each
            # row of H the same, and the table without effect.
            nn.init.eye_(layer.weight)
        for layer in (self.query, self.key, self.value, self.dense):
            nn.init.zeros_(layer.bias)

    def pseudo_sequence(self, states: Tensor, mask: Tensor) -> Tensor:
        """Z = A(P, Y): shape (b, m, d) from token states (b, n, d) and their attention mask (b, n)."""
        attended = mask.bool()
        # A text without a single token would give a softmax over nothing, which is NaN.
        attended = attended | ~attended.any(dim=1, keepdim=True)
        query = self.query(self.table).expand(len(states), -1, -1)
        return scaled_dot_product_attention(
            query, self.key(states), self.value(states), attn_mask=attended[:, None, :]
        )

    def sentence_sequence(self, states: Tensor, pseudo: Tensor) -> Tensor:
        """H = A(Y, Z): shape (b, n, d) from token states (b, n, d) and pseudo sequences (b, m, d)."""
        return scaled_dot_product_attention(self.query(states), self.key(pseudo), self.value(pseudo))

    def project(self, pooled: Tensor) -> Tensor:
        """h = tanh(W x + b), shape (b, p), of the pooled rows x (b, p)."""
        return torch.tanh(self.dense(pooled))
