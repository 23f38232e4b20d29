"""FlowNLLLoss on two processes (gloo) against one with the whole batch."""

from __future__ import annotations

import os
import socket

import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

from sbert_flow import FlowNLLLoss, build_model

STEPS = 4
GLOBAL_BATCH = 32


def train(rank: int, processes: int, port: int, encoder: str, sentences: list[str], folder: str) -> None:
    torch.set_num_threads(1)
    if processes > 1:
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes), MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )  # fmt: skip
    torch.manual_seed(0)
    model = build_model(encoder)
    model.model_card_data.generate_widget_examples = False
    loss = FlowNLLLoss(model, sentences, noise=0)  # noise differs from process to process
    args = SentenceTransformerTrainingArguments(
        f"{folder}/{processes}", max_steps=STEPS, per_device_train_batch_size=GLOBAL_BATCH // processes,
        learning_rate=1e-2, optim="sgd", max_grad_norm=0.0, report_to=[], disable_tqdm=True,
        dataloader_pin_memory=False, use_cpu=True, save_strategy="no", seed=1,
        ddp_backend="gloo" if processes > 1 else None,
    )  # fmt: skip
    SentenceTransformerTrainer(
        model, args=args, train_dataset=Dataset.from_dict({"text": sentences}), loss=loss
    ).train()
    save_file(model[-1].state_dict(), f"{folder}/{processes}-{rank}.safetensors")


def test_two_processes_train_as_one_does(tiny_encoder, sentences, tmp_path):
    used = sentences[: GLOBAL_BATCH * STEPS]
    train(0, 1, 0, tiny_encoder, used, str(tmp_path))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    torch.multiprocessing.spawn(train, args=(2, port, tiny_encoder, used, str(tmp_path)), nprocs=2)
    alone, first, second = (load_file(tmp_path / f"{name}.safetensors") for name in ("1-0", "2-0", "2-1"))
    for name, value in alone.items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], value, atol=1e-5, rtol=1e-4)
