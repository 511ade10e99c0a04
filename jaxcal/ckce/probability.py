r"""Squared calibration errors in units of probability.

The residuals :math:`d_i = e_{y_i} - q_i` are regressed on the predictions. The basis of the
regression is a constant and the leading components of the predictions, orthonormal columns F
[n, r], with leverages :math:`h_i = \|F_i\|^2`. The squared error :math:`T = E\|f(q)\|^2`, f the
population regression, is estimated without the products of an observation with itself,

.. math:: U = \sum_{i \ne j} a_i^\top a_j, \qquad
          a_i = \frac{F_i \otimes d_i}{\sqrt{n (1 - h_i)}},

so that its mean is 0 where the model is calibrated. The factor :math:`1 - h_i` makes it the
leave-one-out estimate, whose mean is T for linear residuals and equal leverages. Its influence
functions, in the expansion of `jaxcal.ckce.errors`, are

.. math:: l_i = \tfrac1n (2 \langle f_i, d_i\rangle - \|f_i\|^2 - T),

and b as a for the residuals of the fit. Everything is halved, so that for two classes T is the
squared error of the probability, and so that it is at most 1.
"""

from functools import partial
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxcal.ckce.errors import (
    ADDED,
    BLOCKS,
    Error,
    added_residuals,
    deal,
    redrawn_residuals,
    redrawn_values,
    signs,
    without_diagonal,
)
from jaxcal.ckce.results import Says
from jaxcal.numerics import at_least
from jaxcal.typing import Key

COMPONENTS = 30  # at most so many columns of the basis


def n_components(n: int, m: int) -> int:
    """Columns of the basis for n predictions of m classes: five observations each, at most m."""
    return max(1, min(m, n // 5, COMPONENTS))


def basis(
    q: Float[Array, "n m"], weights: Float[Array, " n"], components: int
) -> Float[Array, "n r"]:
    """Orthonormal columns: a constant and the leading components of the predictions.

    Rows with weight 0 are 0. Components with a standard deviation that rounding explains are 0.
    """
    total = jnp.sum(weights)
    mean = weights @ q / total
    centred = (q - mean[None]) * weights[:, None]
    variances, directions = jnp.linalg.eigh(centred.T @ centred / total)
    variances = variances[::-1][: components - 1]
    some = variances > (100 * jnp.finfo(q.dtype).eps) ** 2
    scale = jnp.where(some, 1 / jnp.sqrt(total * jnp.where(some, variances, 1)), 0)
    moving = centred @ directions[:, ::-1][:, : components - 1] * scale[None]
    return jnp.concatenate([weights[:, None] / jnp.sqrt(total), moving], axis=1)


class Probability(eqx.Module):
    """The measure "probability", by a regression on ``rank`` columns.

    Cost O(n m (r + m)) and b min(n, 1024) r m multiplications, memory O(n (r + m)).
    """

    largest: ClassVar[float] = 1.0
    rank: int = eqx.field(static=True)

    def __call__(
        self,
        key: Key,
        signs_key: Key,
        q: Float[Array, "n m"],
        weights: Float[Array, " n"],
        labels: Int[Array, " n"],
        n_draws: int,
    ) -> tuple[Error, dict[str, Array]]:
        """The error of one model, and the fields of a `Comparison` that only CKCE fills.

        Observations count with ``weights`` 0 or 1.
        """
        deal_key, noise_key, null_key = jax.random.split(key, 3)
        n, m = q.shape
        total = jnp.sum(weights)
        with jax.default_matmul_precision("highest"):
            f = basis(q, weights, self.rank)
            d = (jax.nn.one_hot(labels, m, dtype=q.dtype) - q) * weights[:, None]
            leverage = jnp.sum(f**2, axis=1)
            inflation = 1 / at_least(1 - leverage, 0.25)
            fitted = f @ (f.T @ d)
            without = (fitted - leverage[:, None] * d) * inflation[:, None]
            root = jnp.sqrt(inflation)[:, None]
            added = added_residuals(noise_key, n, m, total) * weights[:, None]
            e = (d - fitted) * root + added
            weighted = f * root / jnp.sqrt(2 * total)
            sizes = jnp.sum(weighted**2, axis=1)
            estimate = jnp.sum((weighted.T @ d) ** 2)
            value = estimate - sizes @ jnp.sum(d**2, axis=1)
            first = 2 * jnp.sum(without * d, axis=1) - jnp.sum(without**2, axis=1)
            first = (first - jnp.sum(first) / total) * weights / (2 * total)
            first, vectors = _summed(deal_key, first, weighted, e)
            second = without_diagonal(vectors @ vectors.T)
            noise = at_least(value, 0) + 2 * (sizes @ jnp.sum(e**2, axis=1))
            slope = (jnp.sum(first**2) + 4 * jnp.sum(second**2)) / noise
            slope = slope + 2 * ADDED / (m * total * (total + ADDED))
            terms = _draws(signs(signs_key, n_draws, len(first), q.dtype), vectors)
            null = _null(null_key, q, weighted, n_draws)
        lost = jnp.sum(jnp.any(~jnp.isfinite(q), axis=1))
        names, none = ("bandwidths", "ridge", "left_out"), jnp.zeros((), q.dtype)
        others = dict.fromkeys(names, none) | {"nonfinite_kernel": jnp.zeros((), jnp.int32)}
        return Error(estimate, value, slope, first, second, terms, null, lost), others


def _summed(
    key: Key, first: Float[Array, " n"], weighted: Float[Array, "n r"], e: Float[Array, "n m"]
) -> tuple[Float[Array, " k"], Float[Array, "k p"]]:
    """Sums over blocks of the first influence and of the vectors ``weighted`` times ``e``."""
    places, real = deal(key, first.shape[0])
    real = real.astype(first.dtype)
    vectors = jnp.einsum("ksr,ksm->krm", weighted[places] * real[:, :, None], e[places])
    return jnp.sum(first[places] * real, axis=1), vectors.reshape(len(places), -1)


def _draws(v: Float[Array, "b k"], vectors: Float[Array, "k p"]) -> Float[Array, " b"]:
    """Draws of the sum over i != j of the products of the vectors with factors v."""
    return jnp.sum((v @ vectors) ** 2, axis=1) - v**2 @ jnp.sum(vectors**2, axis=1)


def _null(
    key: Key, q: Float[Array, "n m"], weighted: Float[Array, "n r"], n_draws: int
) -> Float[Array, " b"]:
    """Values with labels drawn from the predictions; beyond `BLOCKS` observations they are drawn
    once, and the sums over blocks take normal factors."""
    n = len(q)
    if n <= BLOCKS:
        return redrawn_values(key, weighted, partial(redrawn_residuals, q=q), n_draws)
    label_key, deal_key, draw_key = jax.random.split(key, 3)
    d = redrawn_residuals(label_key, q)
    _, vectors = _summed(deal_key, jnp.zeros(n, q.dtype), weighted, d)
    return _draws(jax.random.normal(draw_key, (n_draws, len(vectors)), q.dtype), vectors)


def says(q: Float[Array, "n m"], labels: Int[Array, " n"], weights: Float[Array, " n"]) -> Says:
    """Of every class, the regression of its occurrence on its probability, a deviation either
    side of the mean."""
    total = jnp.sum(weights)
    y = jax.nn.one_hot(labels, q.shape[1], dtype=q.dtype)
    mean, occurs = weights @ q / total, weights @ y / total
    variance = weights @ (q - mean[None]) ** 2 / total
    some = variance > (100 * jnp.finfo(q.dtype).eps) ** 2
    slope = (weights @ ((q - mean[None]) * (y - occurs[None])) / total) / jnp.where(
        some, variance, 1
    )
    slope = jnp.where(some, slope, 0)
    deviation = jnp.where(some, jnp.sqrt(at_least(variance, 0)), 0)
    ends = jnp.stack([-deviation, deviation], axis=1)
    said = jnp.clip(mean[:, None] + ends, 0, 1)
    true = jnp.clip(occurs[:, None] + slope[:, None] * (said - mean[:, None]), 0, 1)
    return Says(said, true)
