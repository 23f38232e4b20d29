"""Shift and adaptation, percentiles, and what must not be lost."""

from __future__ import annotations

import importlib
import warnings

import numpy as np
import pytest
import torch
from scipy.linalg import fractional_matrix_power
from scipy.stats import kstest

from sbert_flow import FlowLayer, adapt, build_model, fit_flow, load
from sbert_flow.fitting import Advice, measure_shift
from sbert_flow.fitting.adapt import warn_if_shifted
from sbert_flow.fitting.sampling import HELD_OUT, held_out
from sbert_flow.modules import save
from sbert_flow.modules.pipeline import encoder_before_flow

WIDTH = 6


def text_like(n: int, seed: int, mean: float = 0.0, scales: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, WIDTH, generator=generator) * torch.linspace(0.5, 2, WIDTH) ** scales
    return x + mean + 3


def fitted(recipe: str = "surface") -> tuple[FlowLayer, torch.Tensor, np.ndarray]:
    x = text_like(2000, 0)
    nuisance = np.diag(np.linspace(2, 0, WIDTH)).astype(np.float64)
    return fit_flow(embeddings=x, nuisance=nuisance, recipe=recipe).layer, x, nuisance


def test_shift_of_the_same_distribution_is_nothing() -> None:
    layer, _, _ = fitted()
    shift = measure_shift(layer, text_like(1000, 1))
    assert shift.interval[0] < 0 < shift.interval[1] and not shift.large
    assert shift.distance < 0.1


def test_shift_of_a_moved_gaussian_is_its_divergence() -> None:
    """For a linear map of N(m, T) to z, moving the mean by e costs |A e|^2 / 2 nats."""
    layer, x, _ = fitted()
    shift, none = measure_shift(layer, x + 1), measure_shift(layer, x)
    step = layer.affine.matrix @ torch.ones(WIDTH)
    expected = step.square().sum().item() / 2 / (WIDTH * np.log(2))
    assert shift.bits_per_dimension - none.bits_per_dimension == pytest.approx(expected, rel=0.02)
    assert shift.distance == pytest.approx(step.square().mean().sqrt().item(), rel=1e-2)
    assert shift.large and shift.interval[0] < expected < shift.interval[1]


@pytest.mark.parametrize("spread", [0.0, 0.15])
def test_the_interval_holds_nothing_as_often_as_it_says(spread: float) -> None:
    """Rows of the fitted kind, of which some 16 of 300 are held out, also where lengths differ as those of text do."""
    held = 0
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(1300, 16, generator=generator) * torch.linspace(0.3, 2, 16)
        x *= torch.randn(1300, 1, generator=generator).mul(spread).exp()
        layer = fit_flow(embeddings=x[:300], nuisance=np.eye(16), recipe="surface").layer
        low, high = measure_shift(layer, x[300:]).interval
        held += low < 0 < high
    assert held >= 180  # 190 are expected


def test_a_fit_on_few_sentences_does_not_know_its_shift() -> None:
    x = text_like(1000, 3)
    shift = measure_shift(fit_flow(embeddings=x[:100], nuisance=np.eye(WIDTH), recipe="surface").layer, x + 100)
    assert not shift.large and shift.bits_per_dimension > 1


def test_a_density_switches_no_adaptation_off() -> None:
    """Another thread may be encoding."""
    layer, x, _ = fitted("surface")
    layer.adapt(layer.center + 5)
    seen: list[bool] = []
    layer.flow.register_forward_hook(lambda *_: seen.append(layer.adapted))
    layer.log_prob(x)
    assert seen == [True]


def test_adapting_the_mean_undoes_a_move() -> None:
    layer, x, _ = fitted("surface-flow")
    before = layer.latents(x)
    layer.adapt(layer.center + 5)
    torch.testing.assert_close(layer.latents(x + 5), before, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(layer.inverse(layer.latents(x)), x, atol=1e-3, rtol=1e-3)
    assert not torch.allclose(layer.log_prob(x + 5), layer.log_prob(x))  # the density stays that of the fitted text
    layer.reset_adaptation()
    assert torch.equal(layer.latents(x), before)


def test_adapting_the_covariance_is_the_map_with_half_of_each() -> None:
    layer, x, nuisance = fitted()
    y = text_like(3000, 2, mean=1.0, scales=-1.0)
    mean, covariance = y.double().mean(dim=0), torch.cov(y.double().T, correction=0)
    layer.adapt(mean, covariance)
    kept = x[~held_out(torch.arange(len(x)))].double().numpy()
    total, n = np.cov(kept.T, bias=True), len(kept)
    shrunk = n / (n + 6) * total + 6 / (n + 6) * np.trace(total) / 6 * np.eye(6)
    moment = (shrunk + covariance.numpy()) / 2 + 10 * nuisance + 0.1 * np.trace(shrunk) / 6 * np.eye(6)
    expected = (y.double().numpy() - mean.numpy()) @ np.real(fractional_matrix_power(moment, -0.5))

    def cosines(z: np.ndarray) -> np.ndarray:
        z = z / np.linalg.norm(z, axis=1, keepdims=True)
        return z[:50] @ z[50:100].T

    # Two roots of one matrix differ by a rotation, which no cosine sees.
    np.testing.assert_allclose(cosines(layer.latents(y).numpy()), cosines(expected), atol=1e-4)


def test_percentiles_of_new_text_of_the_same_kind_are_uniform() -> None:
    """A flow that learnt its text by heart finds it too likely (.68 here): rows that it has not seen count."""
    x = torch.randn(3000, 48, generator=torch.Generator().manual_seed(4)) * torch.linspace(0.2, 2, 48)
    layer = fit_flow(embeddings=x[:1000], recipe="paper", epochs=20).layer
    places = layer.percentile(layer.log_prob(x[1000:])) / 100
    assert kstest(places.numpy(), "uniform").statistic < 1.63 / np.sqrt(1000 / HELD_OUT)  # its 99 % quantile
    assert not measure_shift(layer, x[1000:]).large


def test_percentiles_are_those_of_the_fitted_text() -> None:
    layer, x, _ = fitted()
    x = x[held_out(torch.arange(len(x)))]  # the fit's text is represented by what the fit did not see
    values = layer.log_prob(x)
    places = layer.percentile(values)
    ranks = values.argsort().argsort().double() / len(x) * 100
    assert (places - ranks).abs().max() < 1.5 * 100 / len(x)
    assert layer.percentile(values.min()[None] - 100).item() == 0
    assert layer.percentile(values.max()[None] + 100).item() == 100


def test_adapted_model_saved_and_replaced_and_reset(
    tiny_encoder: str, sentences: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    decided(monkeypatch, "flow")
    model = build_model(tiny_encoder, recipe="surface")
    fit_flow(model, sentences[:300], recipe="surface", show_progress_bar=False)
    plain = model.encode(sentences[:5])
    adapt(model, sentences[300:360])
    first = model.encode(sentences[:5])
    shift = adapt(model, sentences[:350]).shift
    again = model.encode(sentences[:5])
    assert shift.sentences == 350 and not np.allclose(first, plain, atol=1e-3)
    loaded = load(save(model, tmp_path / "model"))
    np.testing.assert_array_equal(loaded.encode(sentences[:5]), again)
    adapt(loaded, sentences[300:360])
    np.testing.assert_allclose(loaded.encode(sentences[:5]), first, atol=1e-5)
    loaded[-1].reset_adaptation()
    np.testing.assert_array_equal(loaded.encode(sentences[:5]), plain)


def test_fitting_again_forgets_the_adaptation_and_a_failed_fit_does_not() -> None:
    layer, x, nuisance = fitted("surface-flow")
    plain = layer.latents(x)
    layer.adapt(layer.center + 5)
    adapted = layer.latents(x)
    with pytest.raises(ValueError, match="finite"):
        fit_flow(layer, embeddings=x, nuisance=nuisance * np.nan, recipe="surface-flow")
    assert torch.equal(layer.latents(x), adapted)
    fit_flow(layer, embeddings=x, nuisance=nuisance, recipe="surface-flow")
    assert not layer.adapted and torch.allclose(layer.latents(x), plain)


def test_bad_use(tiny_encoder: str, sentences: list[str]) -> None:
    model = build_model(tiny_encoder, recipe="surface")
    with pytest.raises(ValueError, match="never fitted"):
        adapt(model, sentences)
    with pytest.raises(ValueError, match="must have one FlowLayer"):
        adapt(encoder_before_flow(model), sentences)
    fit_flow(model, sentences, recipe="surface", show_progress_bar=False)
    before = model.encode(sentences[:3])
    with pytest.raises(ValueError, match="at least 50"):
        adapt(model, sentences[:49])
    np.testing.assert_array_equal(model.encode(sentences[:3]), before)
    foreign = FlowLayer(4)
    with pytest.raises(ValueError, match="does not know"):
        foreign.percentile(torch.zeros(2))
    with pytest.raises(ValueError, match="does not know"):
        foreign.adapt(torch.zeros(4))


def test_warning_on_another_domain_and_none_on_its_own(tiny_encoder: str, sentences: list[str]) -> None:
    model = build_model(tiny_encoder, recipe="surface")
    fit_flow(model, sentences[:300], recipe="surface", show_progress_bar=False)
    far = [f"turkey turkey turkey turkey {word}" for word in " ".join(sentences).split()[:100]]
    with pytest.warns(UserWarning, match="bits per dimension more than the text the flow was fitted on"):
        warn_if_shifted(model, far)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_shifted(model, sentences[:300])
        warn_if_shifted(encoder_before_flow(model), far)
        adapt(model, far)
        warn_if_shifted(model, far)


def decided(monkeypatch: pytest.MonkeyPatch, decision: str) -> None:
    """Let the advice on any text be this one."""
    module = importlib.import_module("sbert_flow.fitting.adapt")
    monkeypatch.setattr(module, "advise", lambda *args, **kwargs: Advice(decision, None, "by the test.", {}))


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_an_adapted_model_follows_the_advice_on_the_new_text(
    tiny_encoder: str, sentences: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    new, probe = sentences[300:], sentences[:5]
    model = build_model(tiny_encoder, recipe="surface")
    fit_flow(model, sentences[:300], recipe="surface", show_progress_bar=False)
    raw = encoder_before_flow(model).encode(probe)
    as_fitted = model.encode(probe)
    decided(monkeypatch, "flow")
    assert adapt(model, new).advice.decision == "flow"
    flow = model.encode(probe)
    decided(monkeypatch, "mix")
    adapt(model, new)
    np.testing.assert_allclose(model.encode(probe), 0.6 * unit(raw) + 0.4 * unit(flow), atol=1e-5)
    decided(monkeypatch, "leave")
    with pytest.warns(UserWarning, match="the encoder without the map is likely better.*: by the test"):
        adapt(model, new)
    np.testing.assert_allclose(model.encode(probe), raw, atol=1e-6)
    loaded = load(save(model, tmp_path / "model"))
    np.testing.assert_allclose(loaded.encode(probe), raw, atol=1e-6)
    decided(monkeypatch, "too little text")
    adapt(loaded, new)
    np.testing.assert_allclose(loaded.encode(probe), flow, atol=1e-5)  # as fitted: nothing of the raw embedding
    loaded[-1].reset_adaptation()
    np.testing.assert_array_equal(loaded.encode(probe), as_fitted)


def test_mixtures_change_their_share(tiny_encoder: str, sentences: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A 'mix' becomes the map alone where the advice is "flow"; twice as wide it keeps its width."""
    model = build_model(tiny_encoder, recipe="mix")
    fit_flow(model, sentences[:300], recipe="mix", show_progress_bar=False)
    decided(monkeypatch, "flow")
    adapt(model, sentences[:350])
    x = encoder_before_flow(model).encode(sentences[:5], convert_to_tensor=True)
    torch.testing.assert_close(model[-1].outputs(x), model[-1].latents(x))
    assert not torch.equal(model[-1].adaptation.matrix, torch.eye(x.shape[1]))  # the covariance too
    wide = FlowLayer(WIDTH, levels=1, steps_per_level=0, front=True, raw_weight=0.5)
    x = text_like(100, 0)
    wide.set_front(torch.eye(WIDTH), x.mean(dim=0))
    wide.note_fit(x.mean(dim=0), wide.log_prob(x))
    wide.adapt(x.mean(dim=0), raw_weight=1)
    torch.testing.assert_close(wide.outputs(x), torch.cat([torch.nn.functional.normalize(x), 0 * x], dim=1))


def test_a_trained_flow_is_mixed_in_the_order_of_the_coordinates(
    tiny_encoder: str, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model(tiny_encoder, recipe="surface-flow")
    fit_flow(model, sentences[:300], recipe="surface-flow", show_progress_bar=False)
    raw = encoder_before_flow(model).encode(sentences[:5])
    decided(monkeypatch, "mix")
    adapt(model, sentences[300:])
    latents = model[-1].latents(raw).numpy()[:, ::-1]  # three steps, each of which reverses it
    np.testing.assert_allclose(model.encode(sentences[:5]), 0.6 * unit(raw) + 0.4 * unit(latents), atol=1e-5)
    for bad in (1.5, -0.1):
        with pytest.raises(ValueError, match=f"raw_weight must be from 0 to 1, but got {bad}"):
            model[-1].adapt(model[-1].center, raw_weight=bad)
