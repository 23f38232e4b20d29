from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from sentence_transformers import (
    InputExample,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from torch.utils.data import DataLoader

from sbert_flow import FlowNLLLoss, build_model, fit_flow, load
from sbert_flow.losses import FlowAdamW, FlowAveragingCallback
from sbert_flow.losses.averaging import FILE, average_weight
from sbert_flow.modules.pipeline import encoder_before_flow


@pytest.fixture
def model(tiny_encoder):
    torch.manual_seed(0)
    model = build_model(tiny_encoder)
    model.model_card_data.generate_widget_examples = False
    return model


@pytest.fixture(scope="module")
def pairs(sentences):
    return Dataset.from_dict({"first": sentences[:200], "second": sentences[200:400]})


def arguments(folder, **kwargs):
    defaults = {
        "output_dir": str(folder), "max_steps": 8, "per_device_train_batch_size": 16, "learning_rate": 1e-3,
        "lr_scheduler_type": "constant", "report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False,
        "use_cpu": True, "save_strategy": "no", "seed": 1,
    }  # fmt: skip
    return SentenceTransformerTrainingArguments(**{**defaults, **kwargs})


def train(model, loss, data, folder, callbacks=None, evaluator=None, resume=None, **kwargs):
    trainer = SentenceTransformerTrainer(
        model,
        args=arguments(folder, **kwargs),
        train_dataset=data,
        loss=loss,
        callbacks=callbacks,
        evaluator=evaluator,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(model, part=-1):
    return {name: value.clone() for name, value in model[part].state_dict().items()}


def changed(before, after):
    return any(not torch.equal(value, after[name]) for name, value in before.items())


class TestValue:
    def test_bits_per_dimension_of_the_encoders_embeddings(self, model, sentences):
        loss = FlowNLLLoss(model, sentences, noise=0)
        columns = [model.preprocess(sentences[:8]), model.preprocess(sentences[8:20])]
        model.train()  # as the Trainer does: dropout must stay off all the same
        value = loss(columns, labels=torch.zeros(8))
        x = encoder_before_flow(model).encode(sentences[:20], convert_to_tensor=True)
        bits = -model[-1].log_prob(x) / (32 * np.log(2))
        assert value.item() == pytest.approx((bits[:8].mean() + bits[8:].mean()).item() / 2, abs=1e-4)

    def test_noise_in_training_only(self, model, sentences):
        loss = FlowNLLLoss(model, sentences, noise=0.5)
        batch = [model.preprocess(sentences[:8])]
        model.train()
        assert loss(batch).item() != loss(batch).item()
        model.eval()
        assert loss(batch).item() == loss(batch).item()

    def test_noise_has_the_size_it_says(self, model, sentences):
        FlowNLLLoss(model, sentences, noise=0)
        x = encoder_before_flow(model).encode(sentences)
        unit = np.sqrt(x.var(axis=0).mean())
        layer, seen = model[-1], []
        layer.flow.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        embedding = torch.zeros(20_000, 32)
        layer({"sentence_embedding": embedding}, noise=0.5)
        assert seen[0].std().item() == pytest.approx(0.5 * unit, rel=0.01)

    def test_gradients_reach_the_flow_and_no_graph_the_encoder(self, model, sentences):
        loss = FlowNLLLoss(model, sentences)
        graphs = []
        model[1].register_forward_hook(lambda m, args, out: graphs.append(out["sentence_embedding"].requires_grad))
        model.gradient_checkpointing_enable()
        model.train()
        loss([model.preprocess(sentences[:8])]).backward()
        assert graphs == [False]
        assert all(p.grad is None for p in model[0].parameters())
        assert all(p.grad is not None for p in model[-1].parameters())

    def test_the_flow_computes_in_float32_under_autocast(self, model, sentences):
        fit_flow(model, sentences[:100], recipe="noise", show_progress_bar=False)
        layer = model[-1].eval()
        x = torch.from_numpy(encoder_before_flow(model).encode(sentences[:20]))
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            z = layer({"sentence_embedding": x}, return_log_det=True)["flow_latent"]
        torch.testing.assert_close(z, layer.latents(x), atol=1e-6, rtol=1e-6)

    def test_card(self, model, sentences):
        loss = FlowNLLLoss(model, sentences, noise=0.25)
        assert loss.get_config_dict() == {"noise": 0.25}
        assert "emnlp" in loss.citation


class TestFront:
    def test_the_flow_behind_it_trains_and_the_loss_is_its_density(self, tiny_encoder, sentences):
        model = build_model(tiny_encoder, recipe="surface-flow")
        fit_flow(model, sentences[:200], recipe="surface-flow", show_progress_bar=False)
        layer, front = model[-1], model[-1].affine.matrix.clone()
        loss = FlowNLLLoss(model, noise=0.3)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
        before = weights(model)
        for start in (0, 32):
            optimizer.zero_grad()
            model.train()
            loss([model.preprocess(sentences[start : start + 32])]).backward()
            optimizer.step()
        assert torch.equal(layer.affine.matrix, front)
        assert changed(before, weights(model))
        model.eval()
        x = encoder_before_flow(model).encode(sentences[:32], convert_to_tensor=True)
        with torch.no_grad():
            value = loss([model.preprocess(sentences[:32])])
        torch.testing.assert_close(value, -layer.log_prob(x).mean() / (32 * math.log(2)), atol=1e-4, rtol=1e-5)

    def test_one_that_was_never_set_is_refused(self, tiny_encoder, sentences):
        with pytest.raises(ValueError, match="front of this FlowLayer was never set"):
            FlowNLLLoss(build_model(tiny_encoder, recipe="surface-flow"), sentences)

    def test_a_linear_map_has_nothing_to_train(self, tiny_encoder, sentences):
        with pytest.raises(ValueError, match="without trained steps"):
            FlowNLLLoss(build_model(tiny_encoder, recipe="surface"), sentences)


class TestConstruction:
    def test_an_uninitialised_flow_is_refused(self, model):
        with pytest.raises(ValueError, match=r"not initialised. Give the loss init_sentences"):
            FlowNLLLoss(model)

    def test_an_initialised_flow_is_not_initialised_again(self, model, sentences):
        fit_flow(model, sentences[:100], recipe="noise", show_progress_bar=False)
        before = weights(model)
        FlowNLLLoss(model, init_sentences=sentences[100:])
        assert not changed(before, weights(model))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"init_sentences": ["one"]}, "at least 16 different sentences"),
            ({"init_sentences": [None] * 20}, "item 0 is None"),
            ({"noise": -1}, "noise must be at least 0, but got -1"),
            ({"noise": float("nan")}, "noise must be at least 0, but got nan"),
        ],
    )
    def test_bad_arguments(self, model, arguments, message):
        with pytest.raises(ValueError, match=message):
            FlowNLLLoss(model, **arguments)

    def test_models_without_a_flow(self, model):
        with pytest.raises(ValueError, match="must have one FlowLayer"):
            FlowNLLLoss(SentenceTransformer(modules=list(model.children())[:2]))

    def test_noise_without_a_unit(self, model):
        model[-1].initialized.fill_(True)  # what a foreign checkpoint leaves
        with pytest.raises(ValueError, match="Give noise=0"):
            FlowNLLLoss(model)
        FlowNLLLoss(model, noise=0)


class TestModelFit:
    def test_input_examples(self, model, sentences, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # fit writes ./checkpoints
        encoder, before = weights(model, 0), weights(model)
        loss = FlowNLLLoss(model, sentences)
        start = weights(model)
        loader = DataLoader([InputExample(texts=[s]) for s in sentences], batch_size=32, shuffle=True)
        model.fit([(loader, loss)], epochs=1, warmup_steps=0, scheduler="constantlr", show_progress_bar=False,
                  optimizer_class=FlowAdamW, optimizer_params={"lr": 1e-3})  # fmt: skip
        assert changed(before, start) and changed(start, weights(model))
        assert not changed(encoder, weights(model, 0))

    def test_evaluator_and_output(self, model, sentences, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # fit writes ./checkpoints
        loss = FlowNLLLoss(model, sentences)
        evaluator = EmbeddingSimilarityEvaluator(sentences[:20], sentences[20:40], list(range(20)), name="dev")
        loader = DataLoader(
            [InputExample(texts=[s, t]) for s, t in zip(sentences[:64], sentences[64:128], strict=True)], batch_size=16
        )
        scores = []
        model.fit([(loader, loss)], evaluator=evaluator, evaluation_steps=2, warmup_steps=0, output_path="out",
                  show_progress_bar=False, callback=lambda score, epoch, steps: scores.append(score))  # fmt: skip
        assert scores and all(np.isfinite(scores))
        assert np.isfinite(load("out").encode(sentences[:3])).all()


class TestTrainer:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"gradient_accumulation_steps": 2},
            {"bf16": True},
            {"gradient_checkpointing": True},
            {"torch_compile": True, "torch_compile_backend": "eager"},
            {"weight_decay": 0.5},
        ],
        ids=lambda options: "-".join(options) or "plain",
    )
    def test_trains_the_flow_and_nothing_else(self, model, sentences, tmp_path, options):
        loss = FlowNLLLoss(model, sentences)
        encoder, start = weights(model, 0), weights(model)
        train(model, loss, Dataset.from_dict({"text": sentences}), tmp_path, **options)
        after = weights(model)
        assert changed(start, after)
        assert all(torch.isfinite(value).all() for value in after.values())
        assert after["flow.levels.0.0.0.shift"].dtype == torch.float32
        assert not changed(encoder, weights(model, 0))

    def test_the_loss_falls(self, model, sentences, tmp_path):
        loss = FlowNLLLoss(model, sentences, noise=0)
        batch = [model.preprocess(sentences[:100])]
        before = loss.eval()(batch).item()
        train(model, loss, Dataset.from_dict({"text": sentences}), tmp_path, max_steps=30)
        assert loss([model.preprocess(sentences[:100])]).item() < before - 0.05

    def test_pairs_and_labels(self, model, sentences, pairs, tmp_path):
        loss = FlowNLLLoss(model, sentences)
        start = weights(model)
        train(model, loss, pairs.add_column("label", [0.5] * len(pairs)), tmp_path)
        assert changed(start, weights(model))

    @pytest.mark.parametrize("averaged", [False, True])
    def test_resume_equals_an_uninterrupted_run(self, tiny_encoder, model, sentences, tmp_path, averaged):
        data = Dataset.from_dict({"text": sentences})

        def run(model, resume=None):
            loss = FlowNLLLoss(model, sentences, noise=0.5)
            callbacks = [FlowAveragingCallback(model, 0.9)] if averaged else None
            train(model, loss, data, tmp_path / "run", callbacks, resume=resume, save_strategy="steps", save_steps=4)
            return weights(model)

        whole = run(model)
        torch.manual_seed(99)
        other = build_model(tiny_encoder)  # another start, other buffers
        other.model_card_data.generate_widget_examples = False
        resumed = run(other, str(tmp_path / "run" / "checkpoint-4"))
        assert all(torch.equal(value, resumed[name]) for name, value in whole.items())

    def test_best_model_at_the_end(self, model, sentences, tmp_path):
        loss = FlowNLLLoss(model, sentences)

        class Declining(EmbeddingSimilarityEvaluator):
            """Says that the first evaluation was the best."""

            calls = 0

            def __call__(self, model, *args, **kwargs):
                self.calls += 1
                self.primary_metric = "dev_score"
                return {"dev_score": -float(self.calls)}

        evaluator = Declining(sentences[:4], sentences[4:8], [0, 1, 2, 3], name="dev")
        train(model, loss, Dataset.from_dict({"text": sentences}), tmp_path, evaluator=evaluator,
              save_strategy="steps", save_steps=4, eval_strategy="steps", eval_steps=4, load_best_model_at_end=True,
              metric_for_best_model="dev_score")  # fmt: skip
        saved = load_file(tmp_path / "checkpoint-4" / "2_FlowLayer" / "model.safetensors")
        assert all(torch.equal(value, saved[name]) for name, value in weights(model).items())
        later = load_file(tmp_path / "checkpoint-8" / "2_FlowLayer" / "model.safetensors")
        assert changed(saved, later)

    def test_loss_on_an_evaluation_set(self, model, sentences, tmp_path):
        loss = FlowNLLLoss(model, sentences)
        trainer = SentenceTransformerTrainer(
            model, args=arguments(tmp_path), train_dataset=Dataset.from_dict({"text": sentences}),
            eval_dataset=Dataset.from_dict({"text": sentences[:64]}), loss=loss,
        )  # fmt: skip
        assert np.isfinite(trainer.evaluate()["eval_loss"])

    def test_the_card_names_loss_and_paper(self, model, sentences, tmp_path):
        loss = FlowNLLLoss(model, sentences)
        train(model, loss, Dataset.from_dict({"text": sentences}), tmp_path / "run")
        model.save_pretrained(str(tmp_path / "m"))
        card = (tmp_path / "m" / "README.md").read_text()
        assert "FlowNLLLoss" in card and '"noise": 0.5' in card and "emnlp" in card


class TestAveraging:
    def test_against_the_average_written_out(self, model, sentences, tmp_path):
        loss = FlowNLLLoss(model, sentences)
        raw = []

        class Watch(FlowAveragingCallback):
            def on_step_end(self, *args, **kwargs):
                raw.append(copy.deepcopy(dict(self.flow.named_parameters())))
                super().on_step_end(*args, **kwargs)

        start = {name: p.detach().clone() for name, p in model[-1].flow.named_parameters()}
        train(model, loss, Dataset.from_dict({"text": sentences}), tmp_path, [Watch(model, 0.7)])
        expected = start
        for step, values in enumerate(raw, start=1):
            a = min(0.7, (1 + step) / (10 + step))
            expected = {name: a * expected[name] + (1 - a) * values[name].detach() for name in expected}
        for name, parameter in model[-1].flow.named_parameters():
            torch.testing.assert_close(parameter.detach(), expected[name], atol=1e-6, rtol=1e-5)

    def test_checkpoints_hold_the_average_and_training_goes_on_with_the_raw_weights(self, model, sentences, tmp_path):
        data = Dataset.from_dict({"text": sentences})
        plain = copy.deepcopy(model)
        train(model, FlowNLLLoss(model, sentences, noise=0), data, tmp_path / "a", [FlowAveragingCallback(model)],
              save_strategy="steps", save_steps=4)  # fmt: skip
        train(plain, FlowNLLLoss(plain, sentences, noise=0), data, tmp_path / "b", save_strategy="steps", save_steps=4)
        for step in (4, 8):
            kept = load_file(tmp_path / "a" / f"checkpoint-{step}" / FILE)
            raw = load_file(tmp_path / "b" / f"checkpoint-{step}" / "2_FlowLayer" / "model.safetensors")
            averaged = load_file(tmp_path / "a" / f"checkpoint-{step}" / "2_FlowLayer" / "model.safetensors")
            assert all(torch.equal(value, raw[f"flow.{name}"]) for name, value in kept.items())
            assert changed(raw, averaged)

    def test_resuming_without_the_raw_weights_is_said(self, model, sentences, tmp_path):
        data, loss = Dataset.from_dict({"text": sentences}), FlowNLLLoss(model, sentences)
        train(model, loss, data, tmp_path, save_strategy="steps", save_steps=4)  # without the callback
        with pytest.warns(UserWarning, match="resumes from the averaged weights"):
            train(model, loss, data, tmp_path, [FlowAveragingCallback(model)], resume=str(tmp_path / "checkpoint-4"))

    def test_the_optimiser_keeps_nothing_for_a_frozen_encoder(self, model, sentences):
        FlowNLLLoss(model, sentences)
        optimizer = FlowAdamW(model.parameters())
        assert len(optimizer.state) == len(list(model[-1].parameters()))

    def test_weight_of_the_average(self):
        assert average_weight(0.99, 1) == pytest.approx(2 / 11)
        assert average_weight(0.99, 10_000) == 0.99

    @pytest.mark.parametrize("decay", [0, 1, 1.5, float("nan")])
    def test_decay_out_of_range(self, model, decay):
        with pytest.raises(ValueError, match="decay must be between 0 and 1"):
            FlowAveragingCallback(model, decay)
