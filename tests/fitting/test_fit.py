from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from sbert_flow import FlowLayer, build_model, fit_flow
from sbert_flow.fitting.train import FlatParameters, number_of_steps
from sbert_flow.losses import FlowAdamW, FlowNLLLoss
from sbert_flow.measures import mean_cosine
from sbert_flow.modules.pipeline import encoder_before_flow
from sbert_flow.modules.recipes import RECIPES


@pytest.fixture(scope="module")
def space():
    """Embeddings in a narrow cone: a large mean, a decaying spectrum, two dead dimensions."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 24, generator=generator) @ torch.randn(24, 24, generator=generator) * 0.1
    x = x * torch.linspace(2, 0.2, 24) + 3
    x[:, 5] = 1.0
    x[:, 6] = 1e-12 * torch.randn(1000, generator=generator)
    return x


@pytest.mark.parametrize("recipe", ["noise", "paper"])
def test_a_fit_makes_the_space_isotropic_and_likely(space, recipe):
    result = fit_flow(embeddings=space, recipe=recipe)
    z = result.layer.latents(space)
    assert mean_cosine(space.numpy()) > 0.9
    assert abs(mean_cosine(z.numpy())) < 0.05
    assert torch.isfinite(z).all()
    assert result.history[-1]["bits_per_dimension"] < result.history[0]["bits_per_dimension"]
    assert result.rows == 1000 and result.history[-1]["step"] == number_of_steps(1000, RECIPES[recipe].batch_size)


def test_paper_recipe_beats_a_gaussian_with_the_same_variances(space):
    """The likelihood against an independent model: scipy's normal density per dimension, on the live dimensions."""
    from scipy.stats import norm

    live = [k for k in range(24) if k not in (5, 6)]
    x = space[:, live]
    flow = fit_flow(embeddings=x, recipe="paper").layer
    gaussian = norm.logpdf(x.numpy(), x.mean(0).numpy(), x.std(0).numpy()).sum(1)
    assert flow.log_prob(x).mean().item() > gaussian.mean() + 1


def test_the_same_seed_gives_the_same_weights(space):
    torch.manual_seed(1)
    first = fit_flow(embeddings=space, seed=5).layer.state_dict()
    torch.manual_seed(2)
    second = fit_flow(embeddings=space, seed=5).layer.state_dict()
    other = fit_flow(embeddings=space, seed=6).layer.state_dict()
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert not torch.equal(
        first["flow.levels.0.0.2.network.linear1.weight"], other["flow.levels.0.0.2.network.linear1.weight"]
    )


def test_a_second_fit_forgets_the_first(space):
    layer = FlowLayer(24)
    fit_flow(layer, embeddings=space * 5 - 1)
    fit_flow(layer, embeddings=space)
    fresh = fit_flow(embeddings=space).layer
    torch.testing.assert_close(layer.latents(space), fresh.latents(space), atol=0, rtol=0)


def test_sentences_and_their_embeddings_give_the_same_fit(tiny_encoder, sentences):
    model = build_model(tiny_encoder)
    embeddings = encoder_before_flow(model).encode(sentences)
    from_text = fit_flow(model, iter([*sentences, *sentences[:50]]), recipe="noise", show_progress_bar=False)
    assert from_text.rows == len(sentences)  # duplicates count once
    other = fit_flow(embeddings=embeddings)
    np.testing.assert_array_equal(from_text.layer.latents(embeddings), other.layer.latents(embeddings))


def test_the_encoder_is_not_touched(tiny_encoder, sentences):
    model = build_model(tiny_encoder)
    before = {name: value.clone() for name, value in model[0].state_dict().items()}
    fit_flow(model, sentences, recipe="noise", show_progress_bar=False)
    assert all(torch.equal(value, before[name]) for name, value in model[0].state_dict().items())


def test_training_after_encode(tiny_encoder, sentences):
    """encode runs in inference mode; nothing of it may stick to the layer."""
    model = build_model(tiny_encoder)
    with pytest.warns(UserWarning, match="never fitted"):
        model.encode(sentences[:3])
    fit_flow(model, sentences, recipe="noise", show_progress_bar=False)
    model.encode(sentences[:3])
    loss = FlowNLLLoss(model, noise=0)
    loss([model.preprocess(sentences[:8])]).backward()
    assert all(p.grad is not None for p in model[-1].parameters())


def test_an_interrupt_leaves_the_layer_as_it_was(space, monkeypatch):
    layer = fit_flow(embeddings=space).layer
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    calls = iter(range(50))

    def stop(*args, **kwargs):
        if next(calls) == 20:
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    step = FlowAdamW.step
    monkeypatch.setattr(FlowAdamW, "step", stop)
    with pytest.raises(KeyboardInterrupt):
        fit_flow(layer, embeddings=space + 1, seed=1)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_a_loss_that_is_not_finite_stops_with_step_and_rate(space, monkeypatch):
    layer = fit_flow(embeddings=space).layer
    before = layer.latents(space)
    hot = dataclasses.replace(RECIPES["paper"], learning_rate=1e6)
    monkeypatch.setitem(RECIPES, "paper", hot)
    with (
        pytest.warns(UserWarning, match="shape"),
        pytest.raises(ValueError, match=r"after step \d+ at learning rate 1000000"),
    ):
        fit_flow(layer, embeddings=space, recipe="paper")
    torch.testing.assert_close(layer.latents(space), before, atol=0, rtol=0)


def test_another_kind_of_recipe_gets_a_layer_of_its_own(tiny_encoder, sentences):
    model = build_model(tiny_encoder, recipe="surface").eval()
    fit_flow(model, sentences[:100], recipe="surface", show_progress_bar=False)
    linear = model[-1]
    result = fit_flow(model, sentences[:100], recipe="noise", show_progress_bar=False)
    assert model[-1] is result.layer is not linear
    assert result.layer.initialized and not result.layer.front and not result.layer.training
    x = encoder_before_flow(model).encode(sentences[:100])
    assert not np.allclose(result.layer.latents(x), x, atol=0.1)
    with pytest.raises(ValueError, match=r"another kind of map .* than recipe 'noise' fits"):
        fit_flow(linear, embeddings=x)
    assert linear.initialized


def test_steps():
    assert number_of_steps(100, 128) == 200
    assert number_of_steps(27_778, 128) == 218
    assert number_of_steps(27_778, 32, epochs=2) == 1737


def test_flat_parameters_train_like_separate_ones():
    """One optimiser on two flat tensors against the same optimiser on the parameters themselves."""
    torch.manual_seed(0)
    x = torch.randn(64, 6)
    layers = [FlowLayer(6, levels=2, steps_per_level=2), FlowLayer(6, levels=2, steps_per_level=2)]
    layers[0].initialize(x)
    layers[1].load_state_dict(layers[0].state_dict())
    flat = FlatParameters(layers[0].flow)
    named = list(layers[1].flow.named_parameters())
    decayed = [p for name, p in named if "bias" not in name]
    exempt = [p for name, p in named if "bias" in name]
    optimizers = [
        FlowAdamW([{"params": [a]}, {"params": b, "weight_decay": 0.0}]) for a, b in ((flat.flat[0], [flat.flat[1]]),)
    ]
    optimizers.append(FlowAdamW([{"params": decayed}, {"params": exempt, "weight_decay": 0.0}]))
    for _ in range(5):
        flat.zero_grad()
        optimizers[1].zero_grad()
        for layer, optimizer in zip(layers, optimizers, strict=True):
            FlowNLLLoss.compute_loss_from_embeddings(*([value] for value in layer.flow(x))).backward()
            optimizer.step()
    flat.release(flat.flat)
    for first, second in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-5)
        assert first.is_contiguous() and first.untyped_storage().nbytes() == first.numel() * 4


def test_optimizer_against_its_formula():
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = FlowAdamW([parameter], lr=0.1, weight_decay=0.01, eps=1e-6)
    theta, m, v = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
    for step in range(1, 8):
        g = np.array([0.3, -0.1]) * step
        parameter.grad = torch.tensor(g)
        optimizer.step()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        theta = theta - 0.1 * (m / (np.sqrt(v) + 1e-6) + 0.01 * theta)
        np.testing.assert_allclose(parameter.detach().numpy(), theta, rtol=1e-6)


class TestBadInput:
    @pytest.fixture(scope="class")
    def model(self, tiny_encoder):
        return build_model(tiny_encoder)

    @pytest.mark.parametrize(
        ("sentences", "message"),
        [
            ([], "at least 16 different sentences are needed, but got 0"),
            (["One."], "at least 16 different sentences are needed, but got 1"),
            (["One."] * 500, "but got 1"),
            ("One sentence only.", "sentences must be a list of strings, but got str"),
            (7, "sentences must be a list of strings, but got int"),
            ([*map(str, range(20)), None], "item 20 is None"),
            ([*map(str, range(20)), 3.5], r"item 20 is 3\.5 \(float\)"),
        ],
    )
    def test_sentences(self, model, sentences, message):
        with pytest.raises(ValueError, match=message):
            fit_flow(model, sentences, recipe="noise")

    def test_empty_strings_are_counted(self, model, sentences):
        with pytest.warns(UserWarning, match="2 of the sentences are empty"):
            fit_flow(model, [*sentences, "", " "], recipe="noise", show_progress_bar=False)
        assert np.isfinite(model.encode(["", " "])).all()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({}, "either sentences or embeddings"),
            ({"sentences": ["a"], "embeddings": np.ones((2, 2))}, "either sentences or embeddings"),
            ({"embeddings": np.ones((50, 32))}, "all 50 embeddings are equal"),
            ({"embeddings": np.random.default_rng(0).normal(size=(50, 31))}, r"shape \(n, 32\), but got \(50, 31\)"),
            ({"embeddings": np.full((50, 32), np.nan)}, r"50 of 50 embeddings hold NaN or infinity \(rows 0, 1, 2"),
            ({"embeddings": np.zeros((0, 32))}, "at least 16 embeddings are needed, but got 0"),
            ({"sentences": ["a"], "recipe": "magic"}, "recipe must be one of"),
            ({"sentences": ["a"], "recipe": "whitening"}, "fitted by sbert_flow.fit_whitening"),
            ({"sentences": ["a"], "epochs": 0}, "epochs must be a whole number of at least 1, but got 0"),
        ],
    )
    def test_arguments(self, model, arguments, message):
        with pytest.raises(ValueError, match=message):
            fit_flow(model, **arguments)

    def test_models_without_a_flow(self, minilm, sentences):
        from sentence_transformers import SentenceTransformer

        with pytest.raises(ValueError, match="must have one FlowLayer, but its modules are: Transformer, Pooling"):
            fit_flow(SentenceTransformer(minilm), sentences)
        with pytest.raises(ValueError, match="needs a SentenceTransformer with a FlowLayer"):
            fit_flow(FlowLayer(4), sentences)
