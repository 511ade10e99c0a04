r"""h(i, j) = k(p_i, p_j) < t_i, t_j >: one statistic for every residual with mean zero.

A kernel on predictions times an inner product of residuals of their targets. The residual may be a
vector (`Inner`: a moment, a one-hot label minus its probabilities, an outcome minus its confidence)
or a function (`jaxcal.statistics.stein.Stein`: the Stein feature of a score;
`jaxcal.statistics.skce.KernelResidual`: a kernel at the target minus its mean).
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.divergences.vectors import gram_block, gram_diagonal
from jaxcal.typing import DivergenceLike, Features, KernelLike, Pairwise


class Inner(eqx.Module):
    """The inner product of residuals [n, q], which are the features themselves."""

    @property
    def channels(self) -> int:
        return 1

    def block(self, rows: Float[Array, "r q"], cols: Float[Array, "c q"]) -> Array:
        return (rows @ cols.T)[None]

    def diagonal(self, features: Float[Array, "n q"]) -> Array:
        return jnp.sum(features**2, axis=1)[None]

    def vectors(self, features: Float[Array, "n q"]) -> Float[Array, "1 q n"]:
        """The residuals, whose products these are."""
        return features.T[None]


class WeightedFeatures(NamedTuple):
    """``predictions``: features for the divergence between them; ``residual``: those of the
    statistic of the targets."""

    predictions: Features
    residual: Features


class Weighted(eqx.Module):
    """A kernel on predictions times each channel of a statistic of the targets.

    Cost a pair: one kernel on predictions, and the statistic.
    """

    prediction_kernel: KernelLike
    divergence: DivergenceLike
    statistic: Pairwise = Inner()

    @property
    def channels(self) -> int:
        return self.statistic.channels

    @property
    def route(self) -> str:
        """How the statistic takes its averages; empty where it takes none."""
        return getattr(self.statistic, "route", "")

    def block(self, rows: WeightedFeatures, cols: WeightedFeatures) -> Float[Array, "c r s"]:
        k = gram_block(self.prediction_kernel, self.divergence, rows.predictions, cols.predictions)
        return k[None] * self.statistic.block(rows.residual, cols.residual)

    def diagonal(self, features: WeightedFeatures) -> Float[Array, "c n"]:
        k = gram_diagonal(self.prediction_kernel, self.divergence, features.predictions)
        return k[None] * self.statistic.diagonal(features.residual)
