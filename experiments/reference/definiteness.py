r"""Is this kernel on predictions positive definite, on these predictions?

SKCE is a squared norm, its biased estimate is never negative and the distributions of its nulls are
what they are only for positive definite kernels. Distances between vectors give them, and so do
``Laplace`` on total variation and every kernel on MMD. `Bures` between general Gaussians and
`MixtureWasserstein` give no such promise.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxcal.divergences.vectors import check_rows, gram_block
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import median_heuristic
from jaxcal.read import Standardized, Units, checks, convert
from jaxcal.typing import DivergenceLike, KernelLike, KeyLike, PredictionsLike


class Spectrum(NamedTuple):
    """``smallest`` and ``largest`` eigenvalue [] of a kernel matrix; those above minus ``rounding``
    [] are 0 as far as arithmetic can tell. All are NaN where an entry is."""

    smallest: Float[Array, ""]
    largest: Float[Array, ""]
    rounding: Float[Array, ""]

    @property
    def indefinite(self) -> Bool[Array, ""]:
        """Whether an eigenvalue is negative beyond rounding, which proves that the kernel is not
        positive definite; none negative proves nothing about other predictions."""
        return self.smallest < -self.rounding


def positive_definiteness(
    predictions: PredictionsLike,
    *,
    divergence: DivergenceLike,
    prediction_kernel: KernelLike = points.Gaussian(),
    key: KeyLike = 0,
) -> Spectrum:
    """The spectrum of a kernel on n predictions in the units they came in, with the divergence and
    the kernel of a test; an unset bandwidth follows the median heuristic. O(n^3)."""
    distance: Any = checks.divergence(divergence)
    if distance.needs_nodes:
        raise ValueError(
            f"divergence: {type(distance).__name__} is a distance of vectors, so that every "
            f"radial kernel here is positive definite on it"
        )
    if shape := getattr(predictions, "batch_shape", getattr(predictions, "shape", ())):
        check_rows(distance, shape[0])
    event = getattr(predictions, "event_shape", None)
    if event is not None:
        unchanged = Units.unchanged(jnp.zeros((1, math.prod(event))))
        predictions = Standardized(predictions, unchanged, event)
    features = distance.features(convert.key(key), predictions, None)
    if hasattr(distance, "center") and (offset := distance.center(features)) is not None:
        features = features - offset
    kernel = points.as_kernel(prediction_kernel, "prediction_kernel")
    if points.needs_bandwidth(kernel):
        kernel = points.with_bandwidth(kernel, median_heuristic(distance, features)[0])
    return spectrum(gram_block(kernel, distance, features, features))


def spectrum(matrix: Float[Array, "n n"]) -> Spectrum:
    """The same for a kernel matrix."""
    n = matrix.shape[0]
    values = jnp.linalg.eigvalsh((matrix + matrix.T) / 2)
    finite = jnp.all(jnp.isfinite(matrix))
    low, high = (jnp.where(finite, values[i], jnp.nan) for i in (0, -1))
    return Spectrum(low, high, 10 * n * jnp.finfo(matrix.dtype).eps * jnp.abs(high))
