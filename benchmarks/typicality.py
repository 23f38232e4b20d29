"""Does the likelihood of a flow tell typical text from other text? AUC against simpler scores.

    python benchmarks/typicality.py --encoder ENCODER --sts STS --text general.txt [--pooling layer:3]

Fitted on half of the STS sentences; the other half against the same sentences with their words shuffled, against
general text, code and random letters. 1 is perfect, .5 is chance.
"""

from __future__ import annotations

import argparse
import random
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from scipy.stats import mannwhitneyu

from sbert_flow import build_model
from sbert_flow.data import read_sentences, read_sts
from sbert_flow.fitting import estimate_nuisance, fit_flow
from sbert_flow.modules.pipeline import encoder_before_flow
from sbert_flow.views import shuffle_words

RECIPES = ("noise", "surface", "surface-flow")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--sts", required=True)
    parser.add_argument("--text", required=True, type=Path)
    parser.add_argument("--pooling", action="append")
    parser.add_argument(
        "--sentences", type=int, default=3000, help="of the fit; a tenth of it is scored in each class"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(0)
    pool = list(dict.fromkeys(s for task in read_sts(options.sts) for s in task.sentences))
    count = options.sentences // 10
    chosen = rng.sample(pool, options.sentences + count)
    typical = chosen[:count]
    sources = sorted(Path(torch.__file__).parent.glob("nn/modules/*.py"))
    code = [line.strip() for path in sources for line in path.read_text().splitlines() if len(line.strip()) > 20]
    other = {
        "words shuffled": [shuffle_words(sentence, rng) for sentence in typical],
        "general text": list(islice(read_sentences(options.text), count)),
        "code": rng.sample(code, count),
        "random letters": [
            " ".join("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(9))
            for _ in range(count)
        ],
    }
    for pooling in options.pooling or ["layer:3", "mean"]:
        encoder = encoder_before_flow(build_model(options.encoder, pooling))
        x = encoder.encode(chosen[count:], convert_to_tensor=True).clone()
        classes = {
            name: encoder.encode(texts, convert_to_tensor=True).clone()
            for name, texts in {"": typical, **other}.items()
        }
        nuisance = estimate_nuisance(encoder, chosen[count : count + 300])
        mean, covariance = x.double().mean(dim=0), torch.cov(x.double().T)
        precision = torch.linalg.inv(
            covariance + 1e-3 * covariance.trace() / len(covariance) * torch.eye(len(covariance))
        )

        def mahalanobis(rows: torch.Tensor, mean=mean, precision=precision) -> torch.Tensor:
            moved = rows.double() - mean
            return -((moved @ precision) * moved).sum(dim=1)

        scores = {
            "distance to the mean": lambda rows, mean=mean: -(rows - mean).norm(dim=1),
            "Mahalanobis": mahalanobis,
        }
        for recipe in RECIPES:
            fitted = fit_flow(embeddings=x, nuisance=nuisance, recipe=recipe, show_progress_bar=False)
            scores[f"log_prob, {recipe}"] = fitted.layer.eval().log_prob
        print(f"\n{pooling}\nscore | " + " | ".join(other))
        for name, score in scores.items():
            values = {kind: np.asarray(score(rows)) for kind, rows in classes.items()}
            cells = [mannwhitneyu(values[""], values[kind])[0] / count**2 for kind in other]
            print(f"{name} | " + " | ".join(f"{cell:.3f}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
