r"""CKCE without label noise as a U-statistic, to second order around its mean.

With features phi of the kernel and the ridge and kernel held fixed, the fitted regression moves by

.. math:: \hat\theta - \theta = \hat A^{-1} \tfrac1n \sum_i \xi_i, \qquad
          \xi_i = \phi_i (r_i - \theta^\top \phi_i)^\top - \lambda \theta, \quad E \xi_i = 0,

exactly, with :math:`\hat A = \frac1n \sum_i \phi_i \phi_i^\top + \lambda`. So

.. math:: \|\hat\theta\|^2 - \|\theta\|^2 =
          \tfrac1n \sum_i 2 \langle \theta, A^{-1} \xi_i \rangle
          + \tfrac1{n^2} \sum_{i, j} \langle A^{-1} \xi_i, A^{-1} \xi_j \rangle
          + \text{rest},

of which the products of an observation with itself are taken away. The first sum rules where a
model is wrong, the second where it is calibrated (theta = 0). The rest comes from
:math:`\hat A - A`: in a calibrated model it is nothing given the predictions, elsewhere it is
smaller than the first sum by a factor n^(-1/2).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.ckce import solve
from jaxcal.ckce.features import TILE, FeatureMap, normal_equations
from jaxcal.typing import Key, Scalar

BLOCKS = 1024  # a power of two: so many sums of observations at most


class Expansion(NamedTuple):
    r"""A U-statistic and its two influence functions, summed over k blocks of observations.

    Attributes:
        estimate: [] The V-statistic, with the products of observations with themselves.
        value: [] The U-statistic, without them.
        bias: [] How far the mean of the value lies from :math:`\|\theta\|^2`, to the order 1/n:
            0 but for O(n^-2) in a calibrated model.
        first: [k] Sums of the first influence function, estimated without the observation itself;
            they add up to 0.
        second: [k, k] Sums of the second influence function, with rows that add up to 0 but for
            the diagonal, which is 0.
    """

    estimate: Scalar
    value: Scalar
    bias: Scalar
    first: Float[Array, " k"]
    second: Float[Array, "k k"]


def by_features(
    key: Key,
    features: FeatureMap,
    points: Float[Array, "n m"],
    residuals: Float[Array, "n p"],
    ridge: Scalar,
    weights: Float[Array, " n"],
) -> tuple[Expansion, Scalar, Float[Array, "r r"]]:
    r"""The expansion for the kernel F F^T, the trace of F F^T, and the factor of F^T F + n ridge I.

    Observations count with ``weights`` 0 or 1; the ridge is that of the sum of them. Up to `BLOCKS`
    observations each is a block; more are dealt out at random.
    Cost 2 n r (r + p) and k^2 r p multiplications; memory k r p + k^2 beyond the data.
    """
    n = points.shape[0]
    with jax.default_matmul_precision("highest"):
        sums = normal_equations(features, points, residuals, weights, side=min(n, TILE))
        low = solve.factor(
            (sums.products + sums.products.T) / 2,
            ridge * (jnp.sum(weights) / sums.products.shape[0]),
        )
        theta = solve.solve(low, sums.moments)
        along = solve.solve(low, theta)

        def parts(x: Array, r: Array, weight: Array) -> tuple[Array, ...]:
            """A^-1 F, the fit's residuals, the first influence, each one's product with itself,
            which the value leaves out, and its part of the bias."""
            f = features(x) * weight[:, None]
            errors = r - f @ theta
            pulled = solve.solve(low, f.T).T
            drift = f @ along
            square = jnp.sum(pulled**2, axis=1)
            alone = square * jnp.sum(r**2, axis=1)
            leverage = jnp.sum(f * pulled, axis=1)
            bias = _bias(
                square,
                leverage,
                jnp.sum(r**2, axis=1),
                jnp.sum(r * errors, axis=1),
                jnp.sum(drift * errors, axis=1),
            )
            first = 2 * jnp.sum(drift * errors, axis=1)
            return pulled, errors, first, alone, bias

        if n <= BLOCKS:
            pulled, errors, first, alone, bias = parts(points, residuals, weights)
            second = (pulled @ pulled.T) * (errors @ errors.T)
            sizes = weights
        else:
            first, alone, bias, second, sizes = _in_blocks(key, parts, points, residuals, weights)
    estimate = jnp.sum(theta**2)
    value = estimate - jnp.sum(alone)
    bias = jnp.sum(bias)
    return (
        _expansion(estimate, value, bias, first, second, sizes / jnp.sum(weights)),
        sums.kept,
        low,
    )


def _in_blocks(
    key: Key,
    parts: Callable[..., tuple[Array, ...]],
    points: Array,
    residuals: Array,
    weights: Array,
) -> tuple[Array, ...]:
    """Sums over random blocks: of the first influence, of what is left out, of the bias, the
    products of the sums of the second, and how many observations are in each."""
    rows = _dealt(key, points, residuals, weights)
    side = rows[0].shape[1]
    tile = 2 ** max(0, min(TILE // side, BLOCKS).bit_length() - 1)  # blocks at a time

    def chunk(rows: tuple[Array, ...]) -> tuple[Array, ...]:
        x, r, weight = rows
        pulled, errors, *sums = parts(
            x.reshape(-1, x.shape[2]), r.reshape(-1, r.shape[2]), weight.reshape(-1)
        )
        pulled, errors = (a.reshape(tile, side, -1) for a in (pulled, errors))
        products = jnp.einsum("ksr,ksp->krp", pulled, errors)
        sums = (jnp.sum(a.reshape(tile, side), axis=1) for a in sums)
        return *sums, products.reshape(tile, -1)

    chunks = jax.tree.map(lambda a: a.reshape(BLOCKS // tile, tile, *a.shape[1:]), rows)
    *sums, products = (a.reshape(BLOCKS, *a.shape[2:]) for a in jax.lax.map(chunk, chunks))
    return *sums, products @ products.T, jnp.sum(rows[2], axis=1)


def by_products(
    key: Key, gram: Float[Array, "n n"], products: Float[Array, "n n"], ridge: Scalar
) -> Expansion:
    r"""The expansion where only the products D = R R^T of the residuals are known.

    Cost 5 n^3 multiplications, memory O(n^2).
    """
    n = gram.shape[0]
    with jax.default_matmul_precision("highest"):
        low = solve.factor(gram, ridge)
        half = solve.solve(low, products)
        s = solve.solve(low, half.T)
        s = (s + s.T) / 2
        along = solve.solve(low, gram)
        w = solve.solve(low, along.T)
        w = (w + w.T) / 2
    scale = n * ridge
    first = 2 * scale * jnp.sum(along.T * s, axis=1)
    terms = w * products
    estimate = jnp.sum(terms)
    second, sizes = w * scale**2 * s, jnp.ones(n, gram.dtype)
    value = estimate - jnp.trace(terms)
    bias = jnp.sum(
        _bias(
            jnp.diagonal(w),
            jnp.diagonal(along),
            jnp.diagonal(products),
            scale * jnp.diagonal(half),
            scale * jnp.sum(w * half, axis=1),
        )
    )
    if n > BLOCKS:
        block = jax.random.permutation(key, jnp.arange(n) % BLOCKS)

        def summed(a: Array) -> Array:
            return jax.ops.segment_sum(a, block, BLOCKS)

        first, second, sizes = summed(first), summed(summed(second).T), summed(sizes)
    return _expansion(estimate, value, bias, first, second, sizes / n)


def _bias(square: Array, leverage: Array, rr: Array, re: Array, de: Array) -> Array:
    r"""Each observation's part in the bias of the value, from its residual r, the fit's residual e,
    the drift d, sum over j of W_ij r_j, and the squared norm W_ii of A^-1 phi.

    :math:`-W_{ii} r \cdot f_{-i} - 2 h (d - W_{ii} r) \cdot e_{-i}`, where the fit leaves i out:
    :math:`e_{-i} = e / (1 - h)` and :math:`f_{-i} = r - e_{-i}`. So the first part has mean 0
    in a calibrated model.
    """
    left_out = 1 / (1 - leverage)
    return -square * (rr - re * left_out) - 2 * leverage * (de - square * re) * left_out


def _expansion(
    estimate: Scalar, value: Scalar, bias: Scalar, first: Array, second: Array, share: Array
) -> Expansion:
    """Centred; no observation meets itself in the second term, nor in the estimate of the first."""
    rows = jnp.sum(second, axis=1)
    second = second - share[:, None] * rows[None] - rows[:, None] * share[None]
    second = second + jnp.sum(rows) * share[:, None] * share[None]
    alone = jnp.diagonal(second)
    first = first - 2 * alone
    first = first - share * jnp.sum(first)
    return Expansion(estimate, value, bias, first, second - jnp.diag(alone))


def _dealt(key: Key, points: Array, residuals: Array, weights: Array) -> tuple[Array, ...]:
    """Rows as [k, s, ..] in a random order, with weight 0 for those that fill the last places."""
    n = points.shape[0]
    side = -(-n // BLOCKS)
    order = jax.random.permutation(key, n)
    order = jnp.concatenate([order, order[: side * BLOCKS - n]]).reshape(side, BLOCKS).T
    real = (jnp.arange(side * BLOCKS) < n).reshape(side, BLOCKS).T
    return points[order], residuals[order], weights[order] * real.astype(weights.dtype)
