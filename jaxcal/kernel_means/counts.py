r"""Any kernel averaged over counts: finite sums over points that all predictions share.

With the Gram matrix K of the m counts and probabilities p, q: :math:`\kappa_1(p, y) = p^\top k(y)`
and :math:`\kappa_2(p, q) = p^\top K q`. The products :math:`K p` are computed once per prediction;
a pair costs one inner product of length m.

Absolute error for kernels bounded by 1 in float64: `ERROR`. The probability beyond the last count
adds at most 4e-9 (`jaxcal.read.counts.OMITTED`); numpyro's probabilities that need Beta functions
(``BetaBinomial``, ``NegativeBinomial2``) are accurate to about 1e-7.
"""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.kernel_means.dispatch import Averages, check_dimension, gram, pair
from jaxcal.kernels.points import Scaled, Sum
from jaxcal.read.families import Lattice
from jaxcal.typing import KernelLike

ERROR = 1e-6


class Smoothed(NamedTuple):
    """``weights`` [n, m]: the probabilities; ``averages`` [n, m]: their products with K."""

    weights: Float[Array, "n m"]
    averages: Float[Array, "n m"]


class OverCounts(eqx.Module):
    """Kernel means from matrix products of length m."""

    route: ClassVar[str] = f"sums over counts, error below {ERROR:g}"
    error: ClassVar[float] = ERROR
    kernel: KernelLike
    points: Float[Array, "m d"]

    def first(self, rows: Smoothed, ys: Array) -> Array:
        check_dimension(ys, self.points.shape[1])
        return rows.weights @ gram(self.kernel, self.points, ys)

    def second(self, rows: Smoothed, cols: Smoothed) -> Array:
        return rows.averages @ cols.weights.T

    def own(self, features: Smoothed) -> Array:
        return jnp.sum(features.averages * features.weights, axis=1)


@pair(Sum, Lattice)
@pair(Scaled, Lattice)
@pair(object, Lattice)
def over_counts(kernel: KernelLike, distribution: Lattice) -> Averages:
    """Return kernel means of any kernel over counts."""
    points, weights = distribution
    averages = weights @ gram(kernel, points, points)
    return Smoothed(weights, averages), OverCounts(kernel, points)
