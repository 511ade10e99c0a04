"""MMCE: a kernel calibration error of confidences, on the one engine over pairs."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array

from jaxcal import checks
from jaxcal.divergences.vectors import Vectors
from jaxcal.kernels.points import Laplace, as_kernel
from jaxcal.pairwise.weighted import Weighted, WeightedFeatures
from jaxcal.quadratic import TILE, pair_means
from jaxcal.results import Estimate
from jaxcal.typing import ArrayLike, KernelLike


def mmce(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    kernel: KernelLike = Laplace(0.4),
    tile: int = TILE,
) -> Estimate:
    r"""Estimate the squared maximum mean calibration error, :math:`E\,k(R, R') (C - R) (C' - R')`.

    The MMCE is the root of ``biased``. It is half the squared kernel calibration error
    (`jaxcal.skce.skce`) of the binary problem with that kernel on confidences;
    `jaxcal.skce_test` tests it. Differentiable in the confidences.

    Args:
        confidence: Confidences R in [0, 1], [n]; for more classes see `confidences`. Inside jit
            one outside of [0, 1] makes both estimates NaN.
        correct: Whether they came true, C: booleans, or 0 and 1, [n].
        kernel: Kernel on confidences with a bandwidth; by default Laplace of width 0.4, as in the
            paper.
        tile: Rows and columns of a block of pairs that is computed at a time.

    Returns:
        `jaxcal.Estimate` of the square.

    Raises:
        ValueError: Shapes or values are wrong; the message names the argument.

    Cost: n^2 kernel values; memory O(tile^2 + n).

    Source: Kumar, Sarawagi and Jain (2018), eq. 1; Widmann et al. (2021), App. E.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> confidence, correct = jnp.full(20, 0.75), jnp.arange(20) < 10  # half come true
        >>> round(float(jaxcal.measures.mmce(confidence, correct).biased), 4)  # 0.25 squared
        0.0625
    """
    r = checks.unit(confidence, "confidence")
    if r.shape[0] < 2:
        raise ValueError(
            f"confidence: wanted one probability for each of at least 2 observations, shape [n], "
            f"got {r.shape}"
        )
    if not isinstance(r, Tracer) and not bool(jnp.all((r >= 0) & (r <= 1))):
        raise ValueError("confidence: wanted probabilities in [0, 1], without NaN")
    r = jnp.where(jnp.all((r >= 0) & (r <= 1)), r, jnp.nan)
    c = checks.labels(correct, r.shape[0], 2, "correct")
    return _estimate(as_kernel(kernel), r, c, tile=checks.integer(tile, "tile"))


@partial(jax.jit, static_argnames="tile")
def _estimate(kernel: KernelLike, r: Array, c: Array, *, tile: int) -> Estimate:
    # h = k(r, r') (c - r) (c' - r')
    features = WeightedFeatures(r[:, None], ((c.astype(r.dtype) - r)[:, None],))
    return pair_means(Weighted(kernel, Vectors(r[:0])), features, tile=tile)
