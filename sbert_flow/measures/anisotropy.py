"""How anisotropic a set of embeddings is."""

from __future__ import annotations

import numpy as np


def mean_cosine(embeddings: np.ndarray) -> float:
    r"""Mean cosine similarity of two different rows, in closed form:

    .. math:: \frac{|\sum_i u_i|^2 - n}{n (n - 1)}, \qquad u_i = x_i / |x_i|

    0 for an isotropic set, near 1 for embeddings in a narrow cone (Ethayarajh, EMNLP 2019). Zero rows are left out.

    Args:
        embeddings: shape (n, d), n >= 2.

    Raises:
        ValueError: NaN or infinite values, or fewer than two rows that are not zero.
    """
    norms = np.linalg.norm(np.asarray(embeddings, dtype=np.float64), axis=1)  # half precision would overflow
    if not np.isfinite(norms).all():
        raise ValueError(f"{int((~np.isfinite(norms)).sum())} of {len(norms)} embeddings hold NaN or infinity.")
    unit = embeddings[norms > 0].astype(np.float64) / norms[norms > 0, None]
    n = len(unit)
    if n < 2:
        raise ValueError(f"at least two embeddings other than zero are needed, but got {n}.")
    total = unit.sum(axis=0)
    return float((total @ total - n) / (n * (n - 1)))
