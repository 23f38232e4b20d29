from __future__ import annotations

import os
import socket

import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from sbert_flow import PseudoTokenLoss
from sbert_flow.losses import PseudoTokenCallback

STEPS = 4
GLOBAL_BATCH = 16


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def train(rank: int, processes: int, port: int, encoder: str, sentences: list[str], folder: str) -> None:
    """Train one of the processes and keep its weights; without dropout, which differs from process to process."""
    torch.set_num_threads(1)
    if processes > 1:
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes), MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )  # fmt: skip
    torch.manual_seed(rank)
    transformer = Transformer(encoder, config_kwargs={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    model = SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension(), "cls")])
    model.model_card_data.generate_widget_examples = False
    loss = PseudoTokenLoss(model, num_pseudo_tokens=16, queue_batches=2)
    args = SentenceTransformerTrainingArguments(
        f"{folder}/{processes}", max_steps=STEPS, per_device_train_batch_size=GLOBAL_BATCH // processes,
        learning_rate=1e-2, optim="sgd", max_grad_norm=0.0, report_to=[], disable_tqdm=True,
        dataloader_pin_memory=False, use_cpu=True, save_strategy="steps", save_steps=STEPS, seed=1,
        ddp_backend="gloo" if processes > 1 else None,
    )  # fmt: skip
    SentenceTransformerTrainer(
        model, args=args, train_dataset=Dataset.from_dict({"text": sentences}), loss=loss,
        callbacks=[PseudoTokenCallback(loss)],
    ).train()  # fmt: skip
    encoder_weights = {f"model.{name}": tensor.clone() for name, tensor in model.state_dict().items()}
    save_file({**encoder_weights, **loss.training_state()}, f"{folder}/{processes}-{rank}.safetensors")


def test_two_processes_train_as_one_does_with_the_whole_batch(tiny_encoder, sentences, tmp_path):
    used = sentences[: GLOBAL_BATCH * STEPS]
    train(0, 1, 0, tiny_encoder, used, str(tmp_path))
    torch.multiprocessing.spawn(train, args=(2, free_port(), tiny_encoder, used, str(tmp_path)), nprocs=2)
    alone, first, second = (load_file(tmp_path / f"{name}.safetensors") for name in ("1-0", "2-0", "2-1"))
    assert int(first["steps"]) == STEPS and first["queue.1"].shape[0] == GLOBAL_BATCH
    assert first.keys() == second.keys() == alone.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    for name in alone:
        torch.testing.assert_close(
            first[name], alone[name], rtol=1e-4, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
        )
    # One process writes the state that both resume from.
    kept = load_file(tmp_path / "2" / f"checkpoint-{STEPS}" / "pseudo_token_state.safetensors")
    assert all(torch.equal(kept[name], first[name]) for name in kept)
