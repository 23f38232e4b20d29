"""The folded form of the flow and its written-out gradient against its modules, one after the other."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor

from sbert_flow.flows import Glow
from sbert_flow.flows.gradient import gradient_function

WIDTHS = [2, 3, 5, 7, 50, 64]


def random_flow(width: int, seed: int = 0, dtype: torch.dtype = torch.float64, coupling: str = "additive") -> Glow:
    torch.manual_seed(seed)
    flow = Glow(width, levels=3, steps_per_level=3, hidden_width=6, coupling=coupling).to(dtype)
    sample = 3 * torch.randn(200, width, dtype=dtype) + 1
    flow.initialize(sample)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return flow


def by_modules(flow: Glow, x: Tensor) -> tuple[Tensor, Tensor]:
    """The definition: every module's own forward, splits between the levels."""
    left: list[Tensor] = []
    log_det = torch.zeros(len(x), dtype=x.dtype)
    for width, level in zip(flow.widths, flow.levels, strict=True):
        left.append(x[:, width:])
        x, term = level(x[:, :width])
        log_det = log_det + term
    return torch.cat([*left, x], dim=-1), log_det


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [0, 1, 1025])
def test_folded_equals_modules(width: int, rows: int) -> None:
    flow = random_flow(width)
    x = 3 * torch.randn(rows, width, dtype=torch.float64) + 1
    with torch.no_grad():
        z, log_det = flow(x)
        back = flow.inverse(z)
        expected, expected_log_det = by_modules(flow, x)
    torch.testing.assert_close(z, expected, atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(log_det, expected_log_det, atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(back, x, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("width", [384, 768])
def test_folded_errs_no_more_than_the_modules_in_float32(width: int) -> None:
    flow = random_flow(width, dtype=torch.float32)
    x = 3 * torch.randn(300, width) + 1
    with torch.no_grad():
        exact = by_modules(copy.deepcopy(flow).double(), x.double())[0]
        folded_error = (flow(x)[0] - exact).abs().max()
        modules_error = (by_modules(flow, x)[0] - exact).abs().max()
    assert folded_error < 1e-5
    assert folded_error < 3 * modules_error


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("coupling", ["additive", "affine"])
def test_written_out_gradients_are_those_of_autograd(width: int, coupling: str) -> None:
    flow = random_flow(width, coupling=coupling)
    x = torch.randn(9, width, dtype=torch.float64)
    weights = torch.randn(9, width, dtype=torch.float64)

    def loss(z: Tensor, log_det: Tensor) -> Tensor:
        return (weights * z).sin().sum() + (log_det * weights[:, 0]).sum()

    expected_loss = loss(*by_modules(flow, x))
    expected = torch.autograd.grad(expected_loss, list(flow.parameters()))
    for parameter in flow.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.testing.assert_close(gradient_function(flow)(x, loss), expected_loss.detach())
    for parameter, gradient in zip(flow.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient + 1, atol=1e-10, rtol=1e-10)  # added to what was there


def test_affine_flow_takes_the_modules() -> None:
    flow = Glow(10, levels=2, steps_per_level=2, coupling="affine")
    x = torch.randn(6, 10)
    with torch.no_grad():
        torch.testing.assert_close(flow(x), by_modules(flow, x), atol=0, rtol=0)


def change_in_place(flow: Glow) -> None:
    with torch.no_grad():
        flow.get_parameter("levels.0.0.0.shift").add_(1)


def change_by_optimizer(flow: Glow) -> None:
    optimizer = torch.optim.AdamW(flow.parameters(), lr=0.01, fused=True)
    flow(torch.randn(8, 6, dtype=torch.float64))[0].square().sum().backward()
    optimizer.step()


def change_by_loading(flow: Glow) -> None:
    flow.load_state_dict(random_flow(6, seed=5).state_dict())


def change_by_assigning(flow: Glow) -> None:
    flow.load_state_dict(random_flow(6, seed=5).state_dict(), assign=True)


def change_by_initializing(flow: Glow) -> None:
    flow.initialize(torch.randn(50, 6, dtype=torch.float64))


def change_of_data_in_training(flow: Glow) -> None:
    flow.train()
    parameter = flow.get_parameter("levels.0.0.0.shift")
    parameter.data = parameter.data + 1  # leaves no trace in the tensor's version
    flow.eval()


@pytest.mark.parametrize(
    "change",
    [change_in_place, change_by_optimizer, change_by_loading, change_by_assigning, change_by_initializing,
     change_of_data_in_training],
)  # fmt: skip
@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_a_folded_form_never_outlives_its_weights(change, guard) -> None:
    flow = random_flow(6).eval()
    x = torch.randn(20, 6, dtype=torch.float64)
    with guard():
        before = flow(x)[0].clone()
    change(flow)
    with guard():
        after = flow(x)[0]
        expected = by_modules(flow, x)[0]
    torch.testing.assert_close(after, expected, atol=1e-11, rtol=1e-11)
    assert not torch.allclose(before, after)


def test_encoding_before_training_leaves_no_inference_tensors() -> None:
    flow = random_flow(6).eval()
    x = torch.randn(20, 6, dtype=torch.float64)
    with torch.inference_mode():
        flow(x)
    flow.train()
    flow(x)[0].sum().backward()
    with torch.no_grad():
        folded = flow(x)[0]
    assert not folded.is_inference()
    (folded * torch.ones(6, dtype=torch.float64, requires_grad=True)).sum().backward()


def test_moved_to_another_dtype() -> None:
    flow = random_flow(6)
    x = torch.randn(20, 6, dtype=torch.float64)
    with torch.no_grad():
        double = flow(x)[0]
        single = flow.float()(x.float())[0]
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, atol=1e-4, rtol=1e-4)


def test_a_folded_form_is_neither_saved_nor_copied() -> None:
    flow = random_flow(6)
    keys = set(flow.state_dict())
    with torch.no_grad():
        expected = flow(torch.ones(1, 6, dtype=torch.float64))[0]
    assert set(flow.state_dict()) == keys
    size = len(pickle.dumps(random_flow(6)))
    assert len(pickle.dumps(flow)) == size
    restored = pickle.load(io.BytesIO(pickle.dumps(flow)))
    with torch.no_grad():
        assert torch.equal(restored(torch.ones(1, 6, dtype=torch.float64))[0], expected)
