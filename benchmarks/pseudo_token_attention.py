"""How evenly PT-BERT's two attentions spread their weight, before training and after.

    python benchmarks/pseudo_token_attention.py --encoder DIR --text FILE [--state STATE]

Prints the mean entropy of the attention weights over the entropy of equal weights, 1 where every key weighs the same:
of the pseudo tokens on the token states, and of the token states on the pseudo sequence. STATE is a checkpoint's
pseudo_token_state.safetensors; give the encoder of the same checkpoint.
"""

from __future__ import annotations

import argparse
import itertools
import math

import torch
from safetensors.torch import load_file
from torch import Tensor

from sbert_flow.data import read_sentences
from sbert_flow.fitting import load_trainable
from sbert_flow.losses import PseudoTokenLoss


def relative_entropy(query: Tensor, key: Tensor) -> float:
    """Mean over rows of the entropy of softmax(Q K^T / sqrt d), over the log of the number of keys."""
    log_weights = (query @ key.T / math.sqrt(query.shape[1])).log_softmax(dim=-1)
    return (-(log_weights.exp() * log_weights).sum(dim=-1).mean() / math.log(len(key))).item()


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--state", help="state of the loss; without it, fresh weights")
    parser.add_argument("--sentences", type=int, default=64)
    args = parser.parse_args()
    model = load_trainable(args.encoder)
    model.max_seq_length = 64
    loss = PseudoTokenLoss(model)
    if args.state:
        loss.load_training_state(load_file(args.state))
    model.eval()
    features = model(model.preprocess(list(itertools.islice(read_sentences(args.text), args.sentences))))
    entropies = []
    for states, mask in zip(features["token_embeddings"], features["attention_mask"], strict=True):
        tokens, head = states[mask.bool()], loss.head
        pseudo = head.pseudo_sequence(tokens[None], torch.ones(1, len(tokens)))[0]
        entropies.append(
            (
                relative_entropy(head.query(head.table), head.key(tokens)),
                relative_entropy(head.query(tokens), head.key(pseudo)),
            )
        )
    to_tokens, to_pseudo = (sum(column) / len(entropies) for column in zip(*entropies, strict=True))
    print(f"relative entropy: pseudo tokens on tokens {to_tokens:.4f}, tokens on pseudo tokens {to_pseudo:.4f}")


if __name__ == "__main__":
    main()
