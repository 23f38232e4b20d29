from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sbert_flow.flows import (
    ActNorm,
    AdditiveCoupling,
    AffineCoupling,
    Composition,
    Glow,
    Reverse,
    bits_per_dimension,
    live_dimensions,
)


def randomise(module, seed, std=0.1):
    """Weights far from the identity that a flow starts as."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(std * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return module


def make(kind, width, dtype):
    maps = {
        "actnorm": lambda: ActNorm(width),
        "reverse": lambda: Reverse(),
        "additive": lambda: AdditiveCoupling(width, 8),
        "affine": lambda: AffineCoupling(width, 8),
        "glow-additive": lambda: Glow(width, levels=3, steps_per_level=2, hidden_width=8),
        "glow-affine": lambda: Glow(width, levels=4, steps_per_level=2, hidden_width=8, coupling="affine"),
    }
    return randomise(maps[kind](), seed=width).to(dtype)


KINDS = ["actnorm", "reverse", "additive", "affine", "glow-additive", "glow-affine"]


@pytest.mark.parametrize("kind", KINDS)
@given(width=st.integers(2, 41), rows=st.integers(1, 5), seed=st.integers(0, 99))
def test_log_det_is_that_of_the_jacobian(kind, width, rows, seed):
    bijection = make(kind, width, torch.float64)
    x = torch.randn(rows, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    _, log_det = bijection(x)
    assert log_det.shape == (rows,)
    for row, value in zip(x, log_det, strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda v: bijection(v[None])[0][0], row)
        assert torch.linalg.slogdet(jacobian).logabsdet.item() == pytest.approx(value.item(), abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@given(width=st.integers(2, 60), dtype=st.sampled_from([torch.float32, torch.float64]), seed=st.integers(0, 99))
def test_inverse_gives_the_input_back(kind, width, dtype, seed):
    bijection = make(kind, width, dtype)
    x = torch.randn(7, width, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    z, log_det = bijection(x)
    assert z.shape == x.shape and z.dtype == log_det.dtype == dtype
    back = bijection.inverse(z)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    torch.testing.assert_close(back, x, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("width", [2, 3, 5, 50, 300, 381, 768])
@pytest.mark.parametrize("coupling", ["additive", "affine"])
def test_any_width_trains_and_inverts(width, coupling):
    flow = Glow(width, coupling=coupling)
    x = torch.randn(64, width)
    flow.initialize(x)
    bits_per_dimension(*flow(x)).mean().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in flow.parameters())
    torch.testing.assert_close(flow.inverse(flow(x)[0]), x, atol=1e-4, rtol=1e-4)


def test_levels_with_fewer_than_two_channels_are_left_out():
    assert Glow(50, levels=3).widths == [50, 25, 13]
    assert Glow(2, levels=3).widths == [2]
    assert Glow(5, levels=9).widths == [5, 3, 2]


def test_latents_are_in_the_order_in_which_they_leave():
    """Against the map written out: identity couplings, so that only reversals and splits move the channels."""
    x = torch.arange(1.0, 8.0)[None]
    z, log_det = Glow(7, levels=3, steps_per_level=1)(x)
    # 7 channels reversed: 7 6 5 4 | 3 2 1; the first four reversed: 4 5 | 6 7; the first two reversed: 5 4.
    assert z.tolist() == [[3, 2, 1, 6, 7, 5, 4]]
    assert log_det.tolist() == [0]


@given(width=st.integers(2, 60), levels=st.integers(1, 5), steps=st.integers(0, 4))
def test_order_puts_the_coordinates_back(width, levels, steps):
    """A new flow moves nothing but the order."""
    glow = Glow(width, levels=levels, steps_per_level=steps, hidden_width=4)
    x = torch.randn(3, width, generator=torch.Generator().manual_seed(width))
    torch.testing.assert_close(glow(x)[0][:, glow.order], x)


def test_every_parameter_gets_a_gradient_and_modes_agree():
    flow = randomise(Glow(11, levels=2, steps_per_level=2), seed=0)
    x = torch.randn(16, 11)
    bits_per_dimension(*flow(x)).mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in flow.parameters())
    torch.testing.assert_close(flow.train()(x), flow.eval()(x), atol=0, rtol=0)


def test_actnorm_standardises_its_sample_and_nothing_later():
    norm = ActNorm(4)
    x = 5 + torch.tensor([0.1, 1.0, 10.0, 3.0]) * torch.randn(1000, 4)
    y = norm.initialize(x)
    torch.testing.assert_close(y.mean(0), torch.zeros(4), atol=1e-4, rtol=0)
    torch.testing.assert_close(y.std(0, correction=0), torch.ones(4), atol=1e-4, rtol=0)
    state = {name: value.clone() for name, value in norm.state_dict().items()}
    norm.train()(100 * x)
    norm.eval()(100 * x)
    assert all(torch.equal(value, state[name]) for name, value in norm.state_dict().items())


def test_dead_dimensions_are_not_scaled_up_at_initialisation_or_in_training():
    torch.manual_seed(0)
    x = torch.randn(512, 12)
    x[:, 3] = 0.25
    x[:, 8] = 1e-9 * torch.randn(512)
    flow = Glow(12, levels=2, steps_per_level=3)
    flow.initialize(x)
    optimizer = torch.optim.AdamW(flow.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        bits_per_dimension(*flow(x)).mean().backward()
        optimizer.step()
    nudged = x.clone()
    nudged[:, [3, 8]] += 1e-6
    moved = (flow(nudged)[0] - flow(x)[0]).abs().max().item()
    assert moved < 1e-3  # a dead dimension scaled to unit variance would move by 1e3
    assert torch.isfinite(flow(x)[0]).all()


def test_live_dimensions_compare_with_the_median():
    std = torch.tensor([1.0, 2.0, 0.9e-3, 1.2e-3, 0.0, 1e-33, 1.0, 1.0])
    assert live_dimensions(std).tolist() == [True, True, False, True, False, False, True, True]
    assert not live_dimensions(torch.zeros(3)).any()


def test_bits_per_dimension_against_torch_distributions():
    z, log_det = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(torch.zeros(5).double(), torch.eye(5).double())
    expected = -(normal.log_prob(z) + log_det) / (5 * torch.tensor(2.0).double().log())
    torch.testing.assert_close(bits_per_dimension(z, log_det), expected)


def test_log_prob_is_a_density():
    """exp(log_prob) over a fine grid of the plane sums to one."""
    flow = randomise(Glow(2, levels=1, steps_per_level=2, coupling="affine"), seed=5).double()
    axis = torch.linspace(-30, 30, 1201, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        mass = flow.log_prob(grid).exp().sum() * (axis[1] - axis[0]) ** 2
    assert mass.item() == pytest.approx(1, abs=1e-3)


def test_reset_is_reproducible_and_forgets():
    flow = Glow(9)
    flow.reset_parameters(torch.Generator().manual_seed(3))
    first = {name: value.clone() for name, value in flow.state_dict().items()}
    flow.initialize(torch.randn(50, 9))
    flow.reset_parameters(torch.Generator().manual_seed(3))
    assert all(torch.equal(value, first[name]) for name, value in flow.state_dict().items())


def test_weights_are_drawn_where_their_generator_is(monkeypatch):
    """A GPU's tensors refuse the CPU's generator of a fit; here "meta" stands for another device."""
    draw = torch.Tensor.normal_

    def checked(self, *args, generator=None):
        assert generator is None or self.device == generator.device
        return draw(self, *args, generator=generator)

    monkeypatch.setattr(torch.Tensor, "normal_", checked)
    Glow(8).to("meta").reset_parameters(torch.Generator().manual_seed(0))


def test_composition_runs_in_order():
    x = torch.tensor([[1.0, 2.0, 3.0]])
    norm = ActNorm(3)
    with torch.no_grad():
        norm.shift.copy_(torch.tensor([1.0, 0, 0]))
    assert Composition(norm, Reverse())(x)[0].tolist() == [[3, 2, 2]]
    assert Composition(Reverse(), norm)(x)[0].tolist() == [[4, 2, 1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 1}, "width must be a whole number of at least 2, but got 1"),
        ({"width": 4, "levels": 0}, "levels must be"),
        ({"width": 4, "steps_per_level": 1.5}, "steps_per_level must be"),
        ({"width": 4, "coupling": "spline"}, "'additive', 'affine', but got 'spline'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Glow(**arguments)
