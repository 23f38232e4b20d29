"""Speed of the flow and of the whole fit, against zuko, normflows and nflows at equal depth. Prints Markdown.

    python benchmarks/speed.py --encoder ENCODER --text FILE            # everything
    python benchmarks/speed.py --only maps training                     # no encoder needed
    python benchmarks/speed.py --only growth --rows 1000 10000 1000000

All contenders run in one process on one thread, interleaved; figures are medians of CPU time, and ratios are of
medians. Our flow has 3 levels of 3 steps, the peers nine steps (nflows 3 x 3, as ours), hidden layers of 32.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from sbert_flow.data import read_sentences
from sbert_flow.fitting import fit_flow
from sbert_flow.fitting.train import FlatParameters, train_flow
from sbert_flow.flows import Glow, bits_per_dimension
from sbert_flow.flows.gradient import gradient_function
from sbert_flow.losses import FlowAdamW, FlowNLLLoss
from sbert_flow.modules import FlowLayer, build_model
from sbert_flow.modules.pipeline import encoder_before_flow, split_at_flow
from sbert_flow.modules.recipes import RECIPES

STEPS = 9
HIDDEN = 32
OURS = "sbert-flow"
SECTIONS = ("maps", "training", "encode", "fit", "growth")

Clock = Callable[[], float]


def randomise(module: nn.Module) -> nn.Module:
    """No contender may profit from zeros."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return module


def ours(width: int) -> Glow:
    flow = Glow(width, levels=3, steps_per_level=3, hidden_width=HIDDEN)
    flow.initialize(torch.randn(512, width))
    return randomise(flow)  # type: ignore[return-value]


def zuko_flow(width: int, additive: bool) -> Any:
    import zuko

    kind = {"univariate": zuko.transforms.AdditiveTransform, "shapes": [()]} if additive else {}
    return randomise(zuko.flows.NICE(width, transforms=STEPS, hidden_features=(HIDDEN, HIDDEN), **kind))


def normflows_flow(width: int) -> Any:
    import normflows as nf

    half = (width + 1) // 2
    steps: list[nn.Module] = []
    for _ in range(STEPS):
        network = nf.nets.MLP([half, HIDDEN, HIDDEN, width - half], init_zeros=True)
        steps += [
            nf.flows.AffineCouplingBlock(network, scale=False),
            nf.flows.Permute(width, "swap"),
            nf.flows.ActNorm(width),
        ]
    flow = nf.NormalizingFlow(nf.distributions.DiagGaussian(width, trainable=False), steps)
    flow.forward_kld(torch.randn(512, width))
    return randomise(flow)


def nflows_flow(width: int) -> Any:
    from nflows.distributions.normal import StandardNormal
    from nflows.flows.base import Flow
    from nflows.nn.nets import MLP
    from nflows.transforms import (
        ActNorm,
        AdditiveCouplingTransform,
        CompositeTransform,
        MultiscaleCompositeTransform,
        ReversePermutation,
    )  # fmt: skip

    class Network(MLP):
        def forward(self, inputs: Tensor, context: Any = None) -> Tensor:
            return super().forward(inputs)

    def step(width: int) -> list[nn.Module]:
        mask = torch.arange(width) >= (width + 1) // 2
        coupling = AdditiveCouplingTransform(
            mask.int(), lambda inputs, out: Network([inputs], [out], [HIDDEN, HIDDEN])
        )
        return [ActNorm(width), ReversePermutation(width), coupling]

    levels = MultiscaleCompositeTransform(num_transforms=3)
    left = width
    for _ in range(3):
        shape = levels.add_transform(CompositeTransform([part for _ in range(3) for part in step(left)]), (left,))
        left = shape[0] if shape else left
    return randomise(Flow(levels, StandardNormal([width])))


def contenders(width: int) -> dict[str, tuple[nn.Module, Callable, Callable, Callable]]:
    """For each its module and x -> (z, log_det), z -> x and x -> loss."""
    flow = ours(width)
    found: dict[str, tuple[nn.Module, Callable, Callable, Callable]] = {
        OURS: (flow, flow, flow.inverse, lambda x: bits_per_dimension(*flow(x)).mean())
    }
    for name, additive in (("zuko NICE, additive", True), ("zuko NICE, affine", False)):
        zuko = zuko_flow(width, additive)
        found[name] = (
            zuko,
            lambda x, zuko=zuko: zuko().transform.call_and_ladj(x),
            lambda z, zuko=zuko: zuko().transform.inv(z),
            lambda x, zuko=zuko: -zuko().log_prob(x).mean(),
        )
    norm = normflows_flow(width)
    found["normflows, additive"] = (norm, norm.inverse_and_log_det, norm.forward, norm.forward_kld)
    nflow = nflows_flow(width)
    transform = nflow._transform
    found["nflows, additive"] = (
        nflow, transform.forward, lambda z: transform.inverse(z)[0], lambda x: -nflow.log_prob(x).mean(),
    )  # fmt: skip
    return found


def interleaved(jobs: dict[str, Callable[[], Any]], rounds: int, seconds: float, clock: Clock) -> dict[str, float]:
    """Median seconds of one call of each job; in each round every job runs for about ``seconds``."""
    calls = {}
    for name, job in jobs.items():
        job()
        start = time.perf_counter()
        job()
        calls[name] = max(1, int(seconds / max(time.perf_counter() - start, 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            start = clock()
            for _ in range(calls[name]):
                job()
            times[name].append((clock() - start) / calls[name])
    return {name: statistics.median(values) for name, values in times.items()}


def table(headings: list[str], rows: list[list[str]]) -> None:
    print("| " + " | ".join(headings) + " |")
    print("|" + "---|" * len(headings))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def compare(title: str, columns: dict[str, dict[str, float]]) -> None:
    """Milliseconds, and how many times faster ours is, for each column."""
    print(f"### {title}\n")
    names = list(next(iter(columns.values())))

    def cell(name: str, times: dict[str, float]) -> str:
        ratio = "" if name == OURS else f" ({times[name] / times[OURS]:.1f}x)"
        return f"{1e3 * times[name]:.3f} ms{ratio}"

    rows = [[name, *(cell(name, times) for times in columns.values())] for name in names]
    fastest = [min(value for name, value in times.items() if name != OURS) / times[OURS] for times in columns.values()]
    rows.append(["**ours against the fastest of them**", *(f"**{ratio:.1f}x**" for ratio in fastest)])
    table(["", *columns], rows)


def maps(options: argparse.Namespace) -> None:
    forward, inverse = {}, {}
    for width in options.widths:
        for batch in (32, 256, 4096):
            x = torch.randn(batch, width)
            found = contenders(width)
            with torch.no_grad():
                rounds = max(5, options.repeats // (2 if batch > 1000 else 1))
                jobs = {name: (lambda f=map_, x=x: f(x)) for name, (_, map_, _, _) in found.items()}
                forward[f"d = {width}, batch {batch}"] = interleaved(jobs, rounds, 0.03, time.thread_time)
                jobs = {name: (lambda f=back, x=x: f(x)) for name, (_, _, back, _) in found.items()}
                inverse[f"d = {width}, batch {batch}"] = interleaved(jobs, rounds, 0.03, time.thread_time)
    compare("x to z and log-determinant, without gradients", forward)
    compare("z to x, without gradients", inverse)


def our_step(flow: Glow, x: Tensor) -> Callable[[], None]:
    """As in train_flow."""
    parameters = FlatParameters(flow)
    optimizer = FlowAdamW(parameters.flat)
    gradient = gradient_function(flow)

    def step() -> None:
        parameters.zero_grad()
        gradient(x, lambda z, log_det: FlowNLLLoss.compute_loss_from_embeddings([z], [log_det]))
        optimizer.step()

    return step


def peer_step(module: nn.Module, loss: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss(x).backward()
        optimizer.step()

    return step


def training(options: argparse.Namespace) -> None:
    columns = {}
    for width in options.widths:
        for batch in (64, 512):
            x = torch.randn(batch, width)
            jobs = {
                name: our_step(module, x) if isinstance(module, Glow) else peer_step(module, loss, x)
                for name, (module, _, _, loss) in contenders(width).items()
            }
            columns[f"d = {width}, batch {batch}"] = interleaved(
                jobs, max(5, options.repeats // 2), 0.05, time.process_time
            )
    compare("A training step: zero_grad, forward, backward, AdamW (fused for all)", columns)


def fitted_model(options: argparse.Namespace, sentences: list[str], recipe: str) -> Any:
    model = build_model(options.encoder, recipe=recipe, device="cpu")
    split_at_flow(model)[1].initialize(encoder_before_flow(model).encode(sentences[:64], show_progress_bar=False))
    return model


def encode(options: argparse.Namespace) -> None:
    sentences = list(islice(dict.fromkeys(read_sentences(options.text)), 640))
    model = fitted_model(options, sentences, "noise")
    layer = split_at_flow(model)[1]
    inside: list[float] = []
    forward = layer.forward

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.thread_time()
        features = forward(*args, **kwargs)
        inside.append(time.thread_time() - start)
        return features

    layer.forward = timed  # type: ignore[method-assign]
    shares, totals = [], []
    for _ in range(3):
        inside.clear()
        start = time.process_time()
        model.encode(sentences, batch_size=32, show_progress_bar=False)
        totals.append(time.process_time() - start)
        shares.append(sum(inside) / totals[-1])
    seconds = statistics.median(totals)
    print("### The flow's share of `encode`, batch 32\n")
    table(
        ["sentences", "encode", "per sentence", "flow's share"],
        [[str(len(sentences)), f"{seconds:.2f} s", f"{1e3 * seconds / len(sentences):.2f} ms",
          f"{100 * statistics.median(shares):.2f} %"]],
    )  # fmt: skip


def epoch_with_encoder(model: Any, sentences: list[str], dropout: bool) -> float:
    """CPU seconds of one epoch that encodes each batch when it comes, in random order, as the public port does.

    The port leaves the frozen encoder in training mode, so that its embeddings carry ``dropout``.
    """
    recipe = RECIPES["paper"]
    encoder, layer = encoder_before_flow(model), split_at_flow(model)[1]
    optimizer = torch.optim.AdamW(layer.parameters(), lr=recipe.learning_rate)
    order = torch.randperm(len(sentences), generator=torch.Generator().manual_seed(0)).tolist()
    encoder.train(dropout)
    layer.train()
    start = time.process_time()
    for first in range(0, len(order), recipe.batch_size):
        batch = [sentences[index] for index in order[first : first + recipe.batch_size]]
        with torch.no_grad():
            features = encoder(model.preprocess(batch))
        features = layer(features, return_log_det=True)
        loss = FlowNLLLoss.compute_loss_from_embeddings([features["flow_latent"]], [features["flow_log_det"]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seconds = time.process_time() - start
    model.eval()
    return seconds


def fit(options: argparse.Namespace) -> None:
    sentences = list(islice(dict.fromkeys(read_sentences(options.text)), options.sentences))
    model = fitted_model(options, sentences, "paper")
    epoch, noisy_epoch = (epoch_with_encoder(model, sentences, dropout) for dropout in (False, True))
    rows = []
    for recipe, epochs, bf16 in (("paper", 1, False), ("paper", 5, False), ("paper", 5, True), ("noise", 1, False)):
        model = fitted_model(options, sentences, recipe)
        start = time.process_time()
        result = fit_flow(model, sentences, recipe=recipe, epochs=epochs, bf16=bf16, show_progress_bar=False)
        whole = time.process_time() - start
        steps = result.history[-1]["step"]
        every = [f"{epochs * seconds:.1f} s (**{epochs * seconds / whole:.1f}x**)" for seconds in (epoch, noisy_epoch)]
        if recipe != "paper":  # another batch size
            every = ["", ""]
        rows.append([
            f"{recipe}{', bf16' if bf16 else ''}", str(epochs), *every, f"{whole:.1f} s ({steps} steps)",
            f"{100 * result.train_seconds / result.encode_seconds:.1f} %",
        ])  # fmt: skip
    print(f"### Whole fit of {len(sentences):,} sentences\n")
    table(
        ["recipe", "epochs", "encoder in every step", "the same with dropout", "encoded once (`fit_flow`)",
         "flow / encoding time"],
        rows,
    )  # fmt: skip


def growth(options: argparse.Namespace) -> None:
    recipe = RECIPES["noise"]
    rows = []
    for count in options.rows:
        x = torch.randn(count, 384)
        start = time.process_time()
        history = train_flow(FlowLayer(384), x, recipe)
        seconds = time.process_time() - start
        steps = history[-1]["step"]
        rows.append([f"{count:,}", str(steps), f"{seconds:.1f} s", f"{1e3 * seconds / steps:.2f} ms"])
    print("### Training, recipe noise (3 x 6 steps, batch 128), by number of embeddings, d = 384\n")
    table(["n", "steps", "seconds", "per step"], rows)
    rows = []
    for width in (96, 192, 384, 768, 1536):
        x = torch.randn(20_000, width)
        start = time.process_time()
        steps = train_flow(FlowLayer(width), x, recipe)[-1]["step"]
        seconds = time.process_time() - start
        rows.append(
            [str(width), f"{1e3 * seconds / steps:.2f} ms", f"{1e6 * seconds / steps / recipe.batch_size:.0f} us"]
        )
    print("### The same by width, 20,000 embeddings\n")
    table(["d", "per step", "per sentence and epoch"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", help="folder or hub id, for the sections encode and fit")
    parser.add_argument("--text", help="file of sentences, for the sections encode and fit")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--widths", nargs="+", type=int, default=[384, 768])
    parser.add_argument("--repeats", type=int, default=11, help="rounds of each measurement")
    parser.add_argument("--sentences", type=int, default=1600, help="of the section fit")
    parser.add_argument("--rows", nargs="+", type=int, default=[1000, 10_000, 100_000, 1_000_000], help="of growth")
    options = parser.parse_args()
    needs_text = {"encode", "fit"} & set(options.only)
    if needs_text and not (options.encoder and options.text):
        parser.error(f"{' and '.join(sorted(needs_text))} need --encoder and --text")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{date.today()}, {platform.machine()}, torch {torch.__version__}, one thread, CPU time\n")
    for section in SECTIONS:
        if section in options.only:
            globals()[section](options)


if __name__ == "__main__":
    main()
