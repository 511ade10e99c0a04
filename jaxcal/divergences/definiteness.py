r"""Is this kernel on predictions positive definite, on these predictions?

SKCE is a squared norm, its biased estimate is never negative and the distributions of its nulls are
what they are only for positive definite kernels. Distances between vectors give them, and so do
``Laplace`` on total variation and every kernel on MMD. `Bures` between general Gaussians and
`MixtureWasserstein` give no such promise.
"""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxcal import checks, convert
from jaxcal.divergences.vectors import check_rows, gram_block
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import median_heuristic
from jaxcal.models import Standardized, Units
from jaxcal.results import Result, Sentences, recorded
from jaxcal.typing import Contents, DivergenceLike, KernelLike, KeyLike, PredictionsLike, Scalar


class Definiteness(Result):
    """The ends of the spectrum of a kernel matrix of n predictions.

    An eigenvalue below minus ``rounding`` proves that the kernel is not positive definite; none
    below proves nothing about other predictions.

    Attributes:
        smallest: Smallest eigenvalue, [].
        largest: Largest eigenvalue, [].
        rounding: Eigenvalues above minus this are 0 as far as arithmetic can tell, [].
        n: Number of predictions.
    """

    _scalar: ClassVar[str] = "smallest"

    smallest: Scalar
    largest: Scalar
    rounding: Scalar
    n: int = eqx.field(static=True)

    @property
    def indefinite(self) -> Array:
        """Whether an eigenvalue is negative beyond rounding, [] of bool."""
        return self.smallest < -self.rounding

    def _sentences(self) -> Sentences:
        smallest = np.asarray(self.smallest)
        unknown, negative = np.any(np.isnan(smallest)), np.any(np.asarray(self.indefinite))
        least = np.nanmin(smallest) if negative else 0
        return [
            (
                "the kernel matrix has NaN or infinite entries: nothing can be said"
                " [nonfinite-kernel]",
                unknown,
            ),
            (
                f"the kernel is not positive definite (eigenvalue {least:.3g}): the biased SKCE "
                f"may be negative, its root not a number, and p-values are not backed by theory; "
                f"use a kernel on an embedding, such as MMD [indefinite-kernel]",
                negative,
            ),
        ]

    def _contents(self) -> Contents:
        return super()._contents() | {"indefinite": self.indefinite}

    def _batch_lines(self) -> list[str]:
        low = np.asarray(self.smallest)
        head = f"{low.size} kernel matrices of {self.n} predictions, smallest eigenvalue"
        return [f"{head} {np.min(low):.4g} to {np.max(low):.4g}"]

    def _lines(self) -> list[str]:
        ends = f"{float(self.smallest):.4g} to {float(self.largest):.4g}"
        return [f"kernel matrix of {self.n} predictions, eigenvalues {ends}"]


@recorded
def positive_definiteness(
    predictions: PredictionsLike,
    *,
    divergence: DivergenceLike,
    prediction_kernel: KernelLike = points.Gaussian(),
    key: KeyLike | None = None,
) -> Definiteness:
    """The eigenvalues of a kernel on n predictions, with the divergence and kernel of a test.

    Divergences of scores at nodes are distances of vectors and need no such look.

    Args:
        predictions: n predictions, compared in the units they came in.
        divergence: Divergence that compares them.
        prediction_kernel: Radial kernel on it; an unset bandwidth follows the median
            heuristic.
        key: Random key, for divergences that draw.

    Returns:
        The ends of the spectrum: ``smallest`` and ``largest`` eigenvalue, ``rounding`` and
        ``indefinite``.

    Cost: n^2 distances and O(n^3); memory n^2.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> predictions = dist.Normal(jax.random.normal(jax.random.key(0), (30,)), 1.0)
        >>> divergence = jaxcal.divergences.Wasserstein()
        >>> spectrum = jaxcal.divergences.positive_definiteness(predictions, divergence=divergence)
        >>> bool(spectrum.indefinite)
        False
    """
    distance: Any = checks.divergence(divergence)
    if distance.needs_nodes:
        raise ValueError(
            f"divergence: {type(distance).__name__} is a distance of vectors, so that every "
            f"radial kernel here is positive definite on it"
        )
    if shape := getattr(predictions, "batch_shape", getattr(predictions, "shape", ())):
        check_rows(distance, shape[0])
    features = distance.features(
        convert.key(0 if key is None else key), _unchanged(predictions), None
    )
    if hasattr(distance, "center") and (offset := distance.center(features)) is not None:
        features = features - offset
    kernel = points.as_kernel(prediction_kernel, "prediction_kernel")
    if points.needs_bandwidth(kernel):
        kernel = points.with_bandwidth(kernel, median_heuristic(divergence, features)[0])
    return spectrum(gram_block(kernel, divergence, features, features))


def _unchanged(predictions: PredictionsLike) -> Any:
    """Predictions as a test hands them to a divergence, in the units they came in."""
    event = getattr(predictions, "event_shape", None)
    if event is None:
        return predictions
    return Standardized(predictions, Units.unchanged(jnp.zeros((1, math.prod(event)))), event)


def spectrum(matrix: Array) -> Definiteness:
    """The same for a kernel matrix that you have. ValueError where it is not square."""
    matrix = jnp.asarray(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] < 1:
        raise ValueError(f"matrix: wanted a kernel matrix of shape [n, n], got {matrix.shape}")
    n = matrix.shape[0]
    values = jnp.linalg.eigvalsh((matrix + matrix.T) / 2)
    finite = jnp.all(jnp.isfinite(matrix))
    low, high = (jnp.where(finite, values[i], jnp.nan) for i in (0, -1))
    return Definiteness(low, high, 10 * n * jnp.finfo(matrix.dtype).eps * jnp.abs(high), n)
