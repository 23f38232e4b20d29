"""FlowLayer with a frozen front and with the raw embedding beside the latents."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sbert_flow import FlowLayer, build_model, load
from sbert_flow.modules import save
from sbert_flow.modules.recipes import get_recipe

WIDTH = 9


def fitted(steps: int = 2, **kwargs) -> tuple[FlowLayer, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, WIDTH, generator=generator) @ torch.randn(WIDTH, WIDTH, generator=generator) + 5
    layer = FlowLayer(WIDTH, levels=1, steps_per_level=steps, act_norm=False, front=True, **kwargs)
    layer.set_front(torch.randn(WIDTH, WIDTH, generator=generator), x.mean(dim=0))
    if steps:
        layer.initialize(x)
        for parameter in layer.flow.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return layer.eval(), x


@pytest.mark.parametrize("steps", [0, 3])
def test_one_invertible_map_with_its_density(steps: int) -> None:
    layer, x = fitted(steps)
    z = layer.latents(x)
    torch.testing.assert_close(layer.inverse(z), x, atol=1e-3, rtol=1e-4)
    jacobian = torch.autograd.functional.jacobian(lambda row: layer._map(row[None])[0][0], x[0])
    normal = torch.distributions.MultivariateNormal(torch.zeros(WIDTH), torch.eye(WIDTH))
    expected = normal.log_prob(z[0]) + torch.linalg.slogdet(jacobian)[1]
    torch.testing.assert_close(layer.log_prob(x[:1])[0], expected, atol=1e-3, rtol=1e-4)


def test_the_linear_map_is_the_matrix() -> None:
    layer, x = fitted(0)
    torch.testing.assert_close(layer.latents(x), (x - x.mean(dim=0)) @ layer.affine.matrix.T)
    assert layer.initialized and not list(layer.parameters())


def test_trained_parts_still_need_initialisation_after_the_front_is_set() -> None:
    layer = FlowLayer(WIDTH, front=True)
    layer.set_front(torch.eye(WIDTH), torch.zeros(WIDTH))
    assert not layer.initialized


@pytest.mark.parametrize("weight", [0.25, 0.5])
def test_raw_weight_mixes_the_cosines(weight: float) -> None:
    layer, x = fitted(0, raw_weight=weight)
    out = layer({"sentence_embedding": x})["sentence_embedding"]
    assert out.shape == (300, 2 * WIDTH) and layer.get_embedding_dimension() == 2 * WIDTH
    cosine = torch.nn.functional.cosine_similarity
    z = layer.latents(x)
    mixed = weight * cosine(x[:150], x[150:]) + (1 - weight) * cosine(z[:150], z[150:])
    torch.testing.assert_close(cosine(out[:150], out[150:]), mixed)
    torch.testing.assert_close(layer.outputs(x), out)
    assert z.shape == x.shape and layer.log_prob(x).shape == (300,)


def test_adding_keeps_the_width() -> None:
    layer, x = fitted(0, raw_weight=0.6, mixing="add")
    out = layer({"sentence_embedding": x})["sentence_embedding"]
    assert out.shape == x.shape and layer.get_embedding_dimension() == WIDTH
    z = layer.latents(x)
    torch.testing.assert_close(out, 0.6 * x / x.norm(dim=1, keepdim=True) + 0.4 * z / z.norm(dim=1, keepdim=True))
    torch.testing.assert_close(layer.inverse(z), x, atol=1e-3, rtol=1e-4)
    raw, _ = fitted(0)
    torch.testing.assert_close(layer.log_prob(x), raw.log_prob(x))


@pytest.mark.parametrize("mixing", ["add", "concatenate"])
def test_zero_embedding_stays_finite_beside_its_latents(mixing: str) -> None:
    layer, _ = fitted(0, raw_weight=0.5, mixing=mixing)
    assert torch.isfinite(layer.outputs(torch.zeros(1, WIDTH))).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps_per_level": 0}, "steps_per_level must be at least 1"),
        ({"steps_per_level": 0, "levels": 2, "front": True}, "steps_per_level must be at least 1"),
        ({"raw_weight": 1.0}, "raw_weight must be"),
        ({"raw_weight": -0.1}, "raw_weight must be"),
        ({"raw_weight": "half"}, "raw_weight must be"),
        ({"mixing": "blend"}, "mixing must be one of 'concatenate', 'add', but got 'blend'"),
    ],
)
def test_bad_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FlowLayer(WIDTH, **arguments)


def test_set_front_without_one() -> None:
    with pytest.raises(ValueError, match="no front"):
        FlowLayer(WIDTH).set_front(torch.eye(WIDTH), torch.zeros(WIDTH))


def test_reset_forgets_the_front() -> None:
    layer, x = fitted(0)
    layer.reset_parameters()
    assert not layer.initialized
    torch.testing.assert_close(layer.latents(x), x)


@pytest.mark.parametrize("recipe", ["surface", "surface-flow", "mix"])
def test_saved_and_loaded(recipe: str, tiny_encoder: str, tmp_path) -> None:
    model = build_model(tiny_encoder, recipe=recipe)
    layer = model[-1]
    sample = model.encode([f"a sentence with number {i}" for i in range(40)])[:, :32]
    layer.set_front(torch.diag(torch.linspace(0.5, 2, 32)), torch.ones(32))
    if layer.steps_per_level:
        layer.initialize(np.random.default_rng(0).normal(size=sample.shape))
    loaded = load(save(model, tmp_path / "model"))
    as_fitted = {"adapted": False, "adapted_raw_weight": None}
    assert loaded[-1].get_config_dict() == {"embedding_dimension": 32, **get_recipe(recipe).shape, **as_fitted}
    np.testing.assert_array_equal(loaded.encode(["a red boat"]), model.encode(["a red boat"]))


def test_models_saved_before_there_were_fronts_load(tiny_encoder: str, sentences: list[str], tmp_path) -> None:
    model = build_model(tiny_encoder)
    model[-1].initialize(np.random.default_rng(0).normal(size=(50, 32)))
    folder = save(model, tmp_path / "model") / "2_FlowLayer"
    config = json.loads((folder / "config.json").read_text())
    old = ("embedding_dimension", "levels", "steps_per_level", "hidden_width", "coupling")
    (folder / "config.json").write_text(json.dumps({key: config[key] for key in old}))
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if name.startswith(("flow.", "initialized", "noise_unit"))}
    save_file(kept, folder / "model.safetensors")
    np.testing.assert_array_equal(load(tmp_path / "model").encode(["a red boat"]), model.encode(["a red boat"]))
