"""Our map against the outputs of the public PyTorch port, from its weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sbert_flow import FlowLayer
from sbert_flow.flows import bits_per_dimension

REFERENCE = Path(__file__).parent.parent / "reference"


@pytest.fixture(params=[48, 384])
def reference(request):
    return load_file(REFERENCE / f"glow_{request.param}.safetensors")


@pytest.fixture
def layer(reference, tmp_path):
    state = {name.removeprefix("state."): value for name, value in reference.items() if name.startswith("state.")}
    torch.save(state, tmp_path / "glow.bin")
    return FlowLayer.from_pytorch_bertflow(tmp_path / "glow.bin")


def test_latents_and_bits_per_dimension(reference, layer):
    z, log_det = layer.flow(reference["input"])
    torch.testing.assert_close(z, reference["latent"], atol=1e-5, rtol=0)
    torch.testing.assert_close(bits_per_dimension(z, log_det), reference["bits_per_dim_rows"], atol=1e-5, rtol=0)


def test_inverse(reference, layer):
    torch.testing.assert_close(layer.inverse(reference["latent"]), reference["input"], atol=1e-4, rtol=0)


def test_log_prob(reference, layer):
    d = reference["input"].shape[1]
    bits = -layer.log_prob(reference["input"]) / (d * torch.tensor(2.0).log())
    torch.testing.assert_close(bits, reference["bits_per_dim_rows"], atol=1e-5, rtol=0)


def test_gradients_against_finite_differences(reference, layer):
    """The flow in float64 on real weights: backward against central differences."""
    flow = layer.flow.double()
    x = reference["input"][:2].double().requires_grad_()
    flow.log_prob(x).sum().backward()
    step = torch.zeros_like(x)
    step[0, 1] = step[1, 7] = 1e-6
    with torch.no_grad():
        difference = (flow.log_prob(x + step) - flow.log_prob(x - step)) / 2e-6
    assert difference[0].item() == pytest.approx(x.grad[0, 1].item(), rel=1e-4)
    assert difference[1].item() == pytest.approx(x.grad[1, 7].item(), rel=1e-4)


def test_a_folder_is_searched_for_the_file(layer, tmp_path):
    assert FlowLayer.from_pytorch_bertflow(tmp_path).initialized


def test_damaged_foreign_or_missing_checkpoints(layer, tmp_path):
    whole = (tmp_path / "glow.bin").read_bytes()
    (tmp_path / "cut.bin").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OSError, match=r"cut\.bin is damaged, cut short or not a torch checkpoint"):
        FlowLayer.from_pytorch_bertflow(tmp_path / "cut.bin")
    with pytest.raises(FileNotFoundError):
        FlowLayer.from_pytorch_bertflow(tmp_path / "none.bin")
    torch.save({"encoder.weight": torch.zeros(2)}, tmp_path / "other.bin")
    with pytest.raises(ValueError, match=r"unknown key 'encoder\.weight'"):
        FlowLayer.from_pytorch_bertflow(tmp_path / "other.bin")
    state = torch.load(tmp_path / "glow.bin", weights_only=True)
    state["blocks.0.flows.0.invconv.weight"] = torch.eye(48)[:, :, None, None]
    torch.save(state, tmp_path / "permuted.bin")
    with pytest.raises(ValueError, match="not a reversal"):
        FlowLayer.from_pytorch_bertflow(tmp_path / "permuted.bin")
    state["blocks.0.flows.0.invconv.weight"] = torch.eye(48)[0]
    torch.save(state, tmp_path / "vector.bin")
    with pytest.raises(ValueError, match="not a reversal"):
        FlowLayer.from_pytorch_bertflow(tmp_path / "vector.bin")
    other = {**state, "blocks.1.flows.0.actnorm.loc": torch.zeros(1, 13, 1, 1)}
    del other["blocks.0.flows.0.invconv.weight"]
    torch.save(other, tmp_path / "narrow.bin")
    with pytest.raises(ValueError, match="not a Glow of pytorch-bertflow with additive couplings"):
        FlowLayer.from_pytorch_bertflow(tmp_path / "narrow.bin")
    other = {**state, "blocks.0.flows.0.invconv.weight": torch.eye(48).flip(0)[:, :, None, None]}
    other["blocks.0.flows.1.actnorm.initialized"] = torch.zeros((), dtype=torch.uint8)
    torch.save(other, tmp_path / "untrained.bin")
    with pytest.raises(ValueError, match="never initialised"):
        FlowLayer.from_pytorch_bertflow(tmp_path / "untrained.bin")
    del state["blocks.0.flows.0.invconv.weight"], state["blocks.1.flows.2.coupling.net.3.weight"]
    torch.save(state, tmp_path / "lacking.bin")
    with pytest.raises(ValueError, match=r"lacks 1 keys, first 'blocks\.1\.flows\.2"):
        FlowLayer.from_pytorch_bertflow(tmp_path / "lacking.bin")


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("pwned"),))


def test_a_pickle_with_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"x": Evil()}, "evil.bin")
    with pytest.raises(OSError, match="not a torch checkpoint"):
        FlowLayer.from_pytorch_bertflow("evil.bin")
    assert not Path("pwned").exists()
