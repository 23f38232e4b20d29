"""WhiteningLayer: whitening as a sentence-transformers module.

``sbert_flow.modules.whitening_layer.WhiteningLayer`` is written into the modules.json of saved models: never move it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sbert_flow.flows import live_dimensions
from sbert_flow.modules.map_layer import MapLayer
from sbert_flow.modules.validation import check_embeddings

SMALLEST_EIGENVALUE = 1e-7
"""Below this share of the largest one an eigenvalue of a covariance of float32 embeddings is rounding."""


class WhiteningLayer(MapLayer):
    r"""Whitens sentence embeddings (Su et al., "Whitening Sentence Representations", 2021):

    .. math:: z = (x - \mu) U_k \Lambda_k^{-1/2}, \qquad \Sigma = U \Lambda U^\top

    with the mean and covariance of unlabelled embeddings, largest eigenvalues first. Fitted by
    :func:`sbert_flow.fit_whitening`; put after the pooling and before any ``Normalize``, like
    :class:`sbert_flow.FlowLayer`. It computes in float32 and returns the dtype of the encoder.

    Args:
        embedding_dimension: d >= 2, the width of the embeddings.
        k: how many principal directions to keep, 1 to d; None keeps all.

    Raises:
        ValueError: an argument is outside its range.
    """

    config_keys = ["embedding_dimension", "k"]  # noqa: RUF012
    map_name = "whitening"
    fit_hint = "sbert_flow.fit_whitening(model, sentences)"

    mean: Tensor
    transform: Tensor

    def __init__(self, embedding_dimension: int, k: int | None = None) -> None:
        super().__init__()
        if not isinstance(embedding_dimension, int) or embedding_dimension < 2:
            raise ValueError(f"embedding_dimension must be a whole number >= 2, but got {embedding_dimension!r}.")
        if k is not None and (not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= embedding_dimension):
            raise ValueError(f"k must be None or a whole number from 1 to {embedding_dimension}, but got {k!r}.")
        self.embedding_dimension = embedding_dimension
        self.k = k
        self.register_buffer("mean", torch.zeros(embedding_dimension))
        self.register_buffer("transform", torch.eye(embedding_dimension)[:, : k or embedding_dimension].contiguous())

    def get_embedding_dimension(self) -> int:
        return self.k or self.embedding_dimension

    def forward(self, features: dict[str, Tensor | Any], **kwargs: Any) -> dict[str, Tensor | Any]:
        """Replace ``features["sentence_embedding"]``, x of shape (n, d), by z of shape (n, k).

        Raises:
            ValueError: x has another width than the layer.
        """
        embeddings = features["sentence_embedding"]
        self._check_input(embeddings)
        with torch.autocast(device_type=embeddings.device.type, enabled=False):
            z = (embeddings.float() - self.mean) @ self.transform
        features["sentence_embedding"] = z.to(embeddings.dtype)
        return features

    def latents(self, embeddings: Any) -> Tensor:
        """Map embeddings (n, d), as they come before the layer, to z (n, k), float32: for cached embeddings.

        Raises:
            ValueError: wrong shape, NaN or infinite values.
        """
        x = check_embeddings(embeddings, self.embedding_dimension).to(self.mean.device)
        return (x - self.mean) @ self.transform

    def set_moments(self, mean: Tensor, covariance: Tensor) -> None:
        """Whiten embeddings of this mean (d,) and covariance (d, d).

        Dead dimensions (standard deviation below 1e-3 of the median one) are left out: whitened, they would be
        rounding noise blown up. Where fewer than k directions are live, the columns after them are zero.

        Raises:
            ValueError: the covariance of the live dimensions is singular, as it is for fewer embeddings than
                dimensions without shrinkage.
        """
        mean, covariance = mean.double(), covariance.double()
        live = live_dimensions(covariance.diagonal().clamp(min=0).sqrt())
        if not live.any():
            raise ValueError(
                "all embeddings are equal, so there is nothing to whiten. Check the text and the encoder."
            )
        eigenvalues, vectors = torch.linalg.eigh(covariance[live][:, live])
        if eigenvalues[0] < SMALLEST_EIGENVALUE * eigenvalues[-1]:
            singular = int((eigenvalues < SMALLEST_EIGENVALUE * eigenvalues[-1]).sum())
            if self.k is None or self.k > len(eigenvalues) - singular:
                raise ValueError(
                    f"{singular} of {len(eigenvalues)} directions have no variance, so they cannot be whitened. Give "
                    "more sentences than dimensions, a smaller k, or leave shrinkage to its default."
                )
        kept = min(self.get_embedding_dimension(), len(eigenvalues))
        vectors, eigenvalues = vectors.flip(1)[:, :kept], eigenvalues.flip(0)[:kept]
        transform = torch.zeros(self.transform.shape, dtype=torch.float64)
        transform[live, :kept] = vectors * eigenvalues.rsqrt()
        self.mean.copy_(mean)
        self.transform.copy_(transform)
        self.initialized.fill_(True)
