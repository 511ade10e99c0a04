r"""Compute h(i, j) = k(p_i, p_j) < t_i, t_j > for residuals t with mean zero under calibration.

The residual t is a vector or a function. `Inner` is for vectors: a moment, a one-hot label minus
its probabilities, or an outcome minus its confidence. `jaxcal.statistics.stein.Stein` uses the
Stein feature, `jaxcal.statistics.skce.KernelResidual` a kernel at the target minus its mean.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.divergences.vectors import gram_block, gram_diagonal
from jaxcal.typing import DivergenceLike, Features, KernelLike, Pairwise


class Inner(eqx.Module):
    """Statistic < t_i, t_j > of residuals t that are vectors; its features are t, [n, q]."""

    @property
    def channels(self) -> int:
        return 1

    def block(self, rows: Float[Array, "r q"], cols: Float[Array, "c q"]) -> Array:
        return (rows @ cols.T)[None]

    def diagonal(self, features: Float[Array, "n q"]) -> Array:
        return jnp.sum(features**2, axis=1)[None]

    def vectors(self, features: Float[Array, "n q"]) -> Float[Array, "1 q n"]:
        """Return the residuals [n, q] as columns of one channel."""
        return features.T[None]


class WeightedFeatures(NamedTuple):
    """Features of `Weighted`: ``predictions``, for the divergence, and ``residual``, for the
    statistic of the targets."""

    predictions: Features
    residual: Features


class Weighted(eqx.Module):
    """The statistic k(p_i, p_j) < t_i, t_j >: a kernel on predictions times a ``statistic``."""

    prediction_kernel: KernelLike
    divergence: DivergenceLike
    statistic: Pairwise = Inner()

    @property
    def channels(self) -> int:
        return self.statistic.channels

    @property
    def route(self) -> str:
        """Return a text on how the statistic computes kernel means; "" if it has none."""
        return getattr(self.statistic, "route", "")

    def block(self, rows: WeightedFeatures, cols: WeightedFeatures) -> Float[Array, "c r s"]:
        k = gram_block(self.prediction_kernel, self.divergence, rows.predictions, cols.predictions)
        return k[None] * self.statistic.block(rows.residual, cols.residual)

    def diagonal(self, features: WeightedFeatures) -> Float[Array, "c n"]:
        k = gram_diagonal(self.prediction_kernel, self.divergence, features.predictions)
        return k[None] * self.statistic.diagonal(features.residual)
