"""How many directions a set of embeddings uses: measures of the eigenvalues of its covariance."""

from __future__ import annotations

import numpy as np


def covariance(embeddings: np.ndarray) -> np.ndarray:
    """Covariance of the rows of ``embeddings`` (n, d), divided by n, in float64: shape (d, d).

    Raises:
        ValueError: another shape, fewer than two rows, NaN or infinite values, all rows equal.
    """
    x = np.asarray(embeddings, dtype=np.float64)
    if x.ndim != 2 or len(x) < 2:
        raise ValueError(f"embeddings must have shape (n, d) with n >= 2, but got {x.shape}.")
    if not np.isfinite(x.sum()):
        raise ValueError("the embeddings hold NaN or infinity. Remove those rows first.")
    centred = x - x.mean(axis=0)
    # Rounding of the mean leaves some 1e-16 of its size behind where all rows are equal.
    if np.abs(centred).max() <= 1e-14 * np.abs(x).max():
        raise ValueError(f"all {len(x)} embeddings are equal, so they have no directions.")
    return centred.T @ centred / len(x)


def eigenvalue_spectrum(embeddings: np.ndarray) -> np.ndarray:
    r"""Eigenvalues of the covariance, largest first: the variances :math:`\lambda_i` along the principal axes.

    Args:
        embeddings: shape (n, d), n >= 2.

    Returns:
        float64, shape (d,), in the squared unit of the embeddings; none is negative.

    Raises:
        ValueError: another shape, NaN or infinite values, all rows equal.
    """
    return np.linalg.eigvalsh(covariance(embeddings))[::-1].clip(min=0)  # rounding makes zeros slightly negative


def participation_ratio(embeddings: np.ndarray) -> float:
    r"""Participation ratio of the covariance T: how many directions share the variance,

    .. math:: \frac{(\operatorname{tr} T)^2}{\operatorname{tr} T^2} = \frac{(\sum_i \lambda_i)^2}{\sum_i \lambda_i^2}

    between 1 (a line) and d (isotropic). From the physics of localisation (Bell & Dean, 1970); in representations of
    neurons and networks, Gao et al., 2017. A sample of n rows cannot show more than n - 1.

    Args:
        embeddings: shape (n, d), n >= 2.

    Raises:
        ValueError: another shape, NaN or infinite values, all rows equal.
    """
    matrix = covariance(embeddings)
    return float(np.trace(matrix) ** 2 / np.square(matrix).sum())


def population_participation_ratio(embeddings: np.ndarray) -> float:
    r"""Participation ratio of the text behind a sample: that of a sample of n rows is below n whatever the text's is.

    The trace of the squared covariance is estimated without bias from S, the covariance with divisor n - 1
    (Srivastava, 2005, for normal rows):

    .. math:: \widehat{\operatorname{tr} T^2} = \frac{(n - 1)^2}{(n - 2)(n + 1)}
              \left( \operatorname{tr} S^2 - \frac{(\operatorname{tr} S)^2}{n - 1} \right)

    Args:
        embeddings: shape (n, d), n >= 3.

    Returns:
        :math:`(\operatorname{tr} S)^2 / \widehat{\operatorname{tr} T^2}`, between 1 and d; d where the estimate is not
        positive, as it may be by chance in few rows of an isotropic space.

    Raises:
        ValueError: fewer than three rows, another shape, NaN or infinite values, all rows equal.
    """
    n, d = np.shape(embeddings) if np.ndim(embeddings) == 2 else (0, 0)
    if n < 3:
        raise ValueError(f"embeddings must have shape (n, d) with n >= 3, but got {np.shape(embeddings)}.")
    matrix = covariance(embeddings) * n / (n - 1)
    square = np.trace(matrix) ** 2
    estimate = (n - 1) ** 2 / ((n - 2) * (n + 1)) * (np.square(matrix).sum() - square / (n - 1))
    return float(d if estimate <= square / d else min(square / estimate, d))


def effective_rank(embeddings: np.ndarray) -> float:
    r"""Effective rank of the covariance (Roy & Vetterli, EUSIPCO 2007): the exponential of its spectrum's entropy,

    .. math:: \exp\Bigl(-\sum_i p_i \ln p_i\Bigr), \qquad p_i = \lambda_i / \sum_j \lambda_j

    between 1 and d. Small eigenvalues count for more than in the participation ratio, which it is never below.

    Args:
        embeddings: shape (n, d), n >= 2.

    Raises:
        ValueError: another shape, NaN or infinite values, all rows equal.
    """
    eigenvalues = eigenvalue_spectrum(embeddings)
    p = eigenvalues[eigenvalues > 0] / eigenvalues.sum()  # p ln p -> 0
    return float(np.exp(-(p * np.log(p)).sum()))


def iso_score(embeddings: np.ndarray) -> float:
    r"""IsoScore (Rudman et al., Findings of ACL 2022): 1 where all directions vary equally, 0 on a line.

    The paper normalises the variances along the principal axes to length :math:`\sqrt d`, takes their distance
    :math:`\delta` from :math:`(1, \dots, 1)`, in units of the largest possible one, and maps it to

    .. math:: \iota = \frac{(d - \delta^2 (d - \sqrt d))^2 - d}{d (d - 1)}

    Written out, this is :math:`\iota = (r - 1) / (d - 1)` with the participation ratio r, which is how it is computed.
    It does not change with the mean, the scale or a rotation of the embeddings.

    Args:
        embeddings: shape (n, d), n >= 2 and d >= 2.

    Raises:
        ValueError: another shape, NaN or infinite values, all rows equal.
    """
    ratio = participation_ratio(embeddings)
    dimensions = np.shape(embeddings)[1]
    if dimensions < 2:
        raise ValueError(f"IsoScore needs at least two dimensions, but the embeddings have {dimensions}.")
    return float((ratio - 1) / (dimensions - 1))
