"""Maps under domain shift: fitted on general text or on one STS task, used on the others, with and without adaptation.

    python benchmarks/new_domain.py --encoder ENCODER --sts STS --text general.txt [--pooling layer:3] [--pairs 300]

Adaptation sees the sentences of the task it is used on, never its scores. "Advised": the recipe that the advice on the
fitted text names, where it names one. "Large shift": the cells where sbert-flow calls the shift large, and asks for
adaptation. Beside it stands the same recipe fitted on the new text itself. Spearman x 100.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from spaces import drawn

from sbert_flow.data import SentencePairs, read_sentences, read_sts
from sbert_flow.fitting import fit_flow, measure_shift, nuisance_moment
from sbert_flow.fitting.adapt import adapt_layer
from sbert_flow.fitting.advise import SAMPLE, Advice, decide, measure
from sbert_flow.fitting.statistics import moments
from sbert_flow.fitting.store import EmbeddingStore
from sbert_flow.fitting.surface import viewed
from sbert_flow.fitting.variety import variety
from sbert_flow.modules.pooling import pooling_modules

RECIPES = ("noise", "surface", "surface-flow", "mix")
TEXT_SENTENCES = 3000
EDITED = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--sts", required=True)
    parser.add_argument("--text", required=True, type=Path, help="general text, one sentence a line")
    parser.add_argument("--pooling", action="append")
    parser.add_argument("--pairs", type=int, help="pairs of each task, drawn at random; default all")
    parser.add_argument("--store")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tasks = [drawn(task, options.pairs) for task in read_sts(options.sts)]
    sources = {"text": shuffled(list(islice(read_sentences(options.text), TEXT_SENTENCES)))}
    sources |= {task.name: shuffled(task.sentences) for task in tasks}
    edited = {name: viewed(sentences, None, seed=0, count=EDITED) for name, sentences in sources.items()}
    texts = list(dict.fromkeys(
        [s for block in sources.values() for s in block]
        + [s for chosen, views in edited.values() for view in (chosen, *views.values()) for s in view]
    ))  # fmt: skip
    place = {text: index for index, text in enumerate(texts)}
    transformer = SentenceTransformer(options.encoder, device="cpu")[0].float()
    poolings = {name: pooling_modules(transformer, name) for name in options.pooling or ["layer:3", "mean"]}
    with TemporaryDirectory() as temporary:
        store = EmbeddingStore.open(options.store or temporary, texts)
        for pooling, found in store.embed_poolings(transformer, poolings).items():
            array = torch.from_numpy(np.array(found[:], dtype=np.float32))

            def of(sentences: list[str], array: torch.Tensor = array) -> torch.Tensor:
                return array[[place[sentence] for sentence in sentences]]

            moment = {
                name: nuisance_moment(of(chosen), {edit: of(view) for edit, view in views.items()})
                for name, (chosen, views) in edited.items()
            }
            advice = {}
            for name, (chosen, views) in edited.items():
                few = {edit: of(view).numpy() for edit, view in views.items()}
                sample = list(dict.fromkeys([*chosen, *sources[name]]))[:SAMPLE]
                seen = measure(of(sample).numpy(), few)
                advice[name] = decide({**seen, "sentences": len(sources[name]), **variety(chosen, sample)})
                print(f"{pooling}, {name}: {advice[name]}")
            report(pooling, sources, tasks, of, moment, advice)


def shuffled(sentences: list[str]) -> list[str]:
    return random.Random(0).sample(sentences, len(sentences))


def report(
    pooling: str,
    sources: dict[str, list[str]],
    tasks: list[SentencePairs],
    of: Callable[[list[str]], torch.Tensor],
    moment: dict[str, torch.Tensor],
    advice: dict[str, Advice],
) -> None:
    raw = {task.name: spearman(task, of, lambda x: x) for task in tasks}
    print(f"\n{pooling}: raw average {np.mean(list(raw.values())):.1f}")
    print("recipe | fitted on | as fitted | adapted | least gain on raw, as fitted | adapted | ahead | bits per dim")
    cells = []
    for recipe in RECIPES:
        fitted = {
            source: fit_flow(embeddings=of(sentences), nuisance=moment[source], recipe=recipe, show_progress_bar=False)
            for source, sentences in sources.items()
        }
        own = {
            task.name: spearman(task, of, fitted[task.name].layer.eval().outputs) - raw[task.name] for task in tasks
        }
        for source in sources:
            layer = fitted[source].layer.eval()
            before, after, anew, shifts = [], [], [], []
            for task in tasks:
                if task.name == source:
                    continue
                new = of(sources[task.name])
                before.append(spearman(task, of, layer.outputs) - raw[task.name])
                shifts.append(measure_shift(layer, new))
                adapt_layer(layer, moments(new), advice[task.name].decision)
                after.append(spearman(task, of, layer.outputs) - raw[task.name])
                layer.reset_adaptation()
                anew.append(own[task.name])
            base = np.mean([raw[task.name] for task in tasks if task.name != source])
            ahead = np.mean(np.array(after) > np.array(before))
            bits = np.mean([shift.bits_per_dimension for shift in shifts])
            print(
                f"{recipe} | {source} | {base + np.mean(before):.1f} | {base + np.mean(after):.1f} | "
                f"{min(before):+.1f} | {min(after):+.1f} | {ahead:.0%} | {bits:+.3f}",
                flush=True,
            )
            large = [shift.large for shift in shifts]
            cells += [(recipe, source, *cell) for cell in zip(before, after, anew, large, strict=True)]
    advised = [cell for cell in cells if cell[0] == advice[cell[1]].recipe]
    groups = {recipe: [cell for cell in cells if cell[0] == recipe] for recipe in RECIPES} | {"advised": advised}
    for name, group in groups.items():
        for title, few in {name: group, f"{name}, large shift": [cell for cell in group if cell[5]]}.items():
            if few:
                summary(title, few)


def summary(title: str, cells: list[tuple[str, str, float, float, float, bool]]) -> None:
    before, after, anew = np.array([cell[2:5] for cell in cells]).T
    print(
        f"{title}: {len(after)} cells, adapted below raw by more than .3 in {np.sum(after < -0.3)} (as fitted "
        f"{np.sum(before < -0.3)}), worst {after.min():+.1f} ({before.min():+.1f}), ahead of as fitted in "
        f"{np.mean(after > before):.0%}, mean gain on raw {after.mean():+.1f} ({before.mean():+.1f}); fitted on "
        f"the new text itself: ahead of as fitted in {np.mean(anew > before):.0%}, below raw by more than .3 in "
        f"{np.sum(anew < -0.3)}, mean gain {anew.mean():+.1f}",
        flush=True,
    )


def spearman(
    task: SentencePairs,
    of: Callable[[list[str]], torch.Tensor],
    mapped: Callable[[torch.Tensor], torch.Tensor],
) -> float:
    first, second = mapped(of(task.sentences1)), mapped(of(task.sentences2))
    return 100 * float(spearmanr(torch.nn.functional.cosine_similarity(first, second), task.scores)[0])


if __name__ == "__main__":
    main()
