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
from jaxcal.ckce.features import TILE, normal_equations
from jaxcal.kernels.low_rank import NystroemFeatures
from jaxcal.numerics import at_least
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


class Fitted(NamedTuple):
    r"""The regression of s sets of residuals, in the eigenbasis V of F^T F.

    Attributes:
        expansions: Every leaf has a leading axis s.
        kept: [] The trace of F F^T.
        spectrum: [r] The eigenvalues of A = F^T F + n ridge I.
        moments: What else was asked for, in the basis V: V^T F^T M.
    """

    expansions: Expansion
    kept: Scalar
    spectrum: Float[Array, " r"]
    moments: Float[Array, "r q"]


def by_features(
    key: Key,
    features: NystroemFeatures,
    points: Float[Array, "n m"],
    residuals: Float[Array, "s n p"],
    ridge: Scalar,
    weights: Float[Array, " n"],
    also: Callable[[Array], Array] = lambda points: points[:, :0],
) -> Fitted:
    r"""The expansions for the kernel F F^T, of s sets of residuals at the same points.

    Features are made twice for all sets: for F^T F, and, once its eigenvectors V are known, as F V,
    in which A is diagonal, so that an observation's leverage and its product with itself cost
    O(r). ``also``: further columns M at given points, whose products F^T M the first pass makes.
    Observations count with ``weights`` 0 or 1; the ridge is that of the sum of them. Up to `BLOCKS`
    observations each is a block; more are dealt out at random. Cost 3 n r^2 + 3 n r s p and s k^2 r
    p multiplications, 9 r^3 for the eigenvectors; memory s k r p + s k^2 beyond the data.
    """
    s, n, p = residuals.shape
    rows = jnp.moveaxis(residuals, 0, 1).reshape(n, s * p)

    def apart(a: Array) -> Array:
        """[.., s p] as [s, .., p]."""
        return jnp.moveaxis(a.reshape(*a.shape[:-1], s, p), -2, 0)

    with jax.default_matmul_precision("highest"):
        sums = normal_equations(features, points, rows, weights, side=min(n, TILE), also=also)
        values, vectors = jnp.linalg.eigh((sums.products + sums.products.T) / 2)
        spectrum = at_least(values, 0) + jnp.sum(weights) * ridge
        inverse = 1 / spectrum
        moments = vectors.T @ sums.moments
        theta = inverse[:, None] * moments[:, : s * p]
        along = inverse[:, None] * theta
        turned = features.turned(vectors)

        def parts(x: Array, rows: Array, weight: Array) -> tuple[Array, ...]:
            """F V, and of each set the fit's residuals, the first influence, each one's product
            with itself, which the value leaves out, and its part of the bias."""
            f = turned(x) * weight[:, None]
            leverage, square = (f**2 @ jnp.stack([inverse, inverse**2], axis=1)).T

            def of_one(r: Array, theta: Array, along: Array) -> tuple[Array, ...]:
                errors = r - f @ theta
                drift = f @ along
                drifts = jnp.sum(drift * errors, axis=1)
                rr, re = jnp.sum(r**2, axis=1), jnp.sum(r * errors, axis=1)
                return errors, 2 * drifts, square * rr, _bias(square, leverage, rr, re, drifts)

            return f, *jax.vmap(of_one)(apart(rows), apart(theta), apart(along))

        if n <= BLOCKS:
            f, errors, first, alone, bias = parts(points, rows, weights)
            pulled = f * inverse[None]
            second = (pulled @ pulled.T)[None] * (errors @ jnp.swapaxes(errors, 1, 2))
            sizes = weights
        else:
            first, alone, bias, second, sizes = _in_blocks(
                key, parts, inverse, points, rows, weights
            )
    estimate = jnp.sum(apart(theta) ** 2, axis=(1, 2))
    value = estimate - jnp.sum(alone, axis=1)
    bias = jnp.sum(bias, axis=1)
    each_set = jax.vmap(_expansion, in_axes=(0, 0, 0, 0, 0, None))
    expansions = each_set(estimate, value, bias, first, second, sizes / jnp.sum(weights))
    return Fitted(expansions, sums.kept, spectrum, moments[:, s * p :])


def _in_blocks(
    key: Key,
    parts: Callable[..., tuple[Array, ...]],
    inverse: Array,
    points: Array,
    residuals: Array,
    weights: Array,
) -> tuple[Array, ...]:
    """Of each set, sums over random blocks: of the first influence, of what is left out, of the
    bias, the products of the sums of the second; and how many observations are in each block."""
    rows = _dealt(key, points, residuals, weights)
    side = rows[0].shape[1]
    tile = 2 ** max(0, min(TILE // side, BLOCKS).bit_length() - 1)  # blocks at a time

    def chunk(rows: tuple[Array, ...]) -> tuple[Array, ...]:
        x, r, weight = rows
        f, errors, *sums = parts(
            x.reshape(-1, x.shape[2]), r.reshape(-1, r.shape[2]), weight.reshape(-1)
        )
        f = f.reshape(tile, side, -1)
        errors = errors.reshape(len(errors), tile, side, -1)
        products = jnp.einsum("bir,sbip->bsrp", f, errors) * inverse[None, None, :, None]
        sums = (jnp.sum(a.reshape(-1, tile, side), axis=2).T for a in sums)
        return *sums, products.reshape(*products.shape[:2], -1)

    chunks = jax.tree.map(lambda a: a.reshape(BLOCKS // tile, tile, *a.shape[1:]), rows)
    parts_of_blocks = (a.reshape(BLOCKS, *a.shape[2:]) for a in jax.lax.map(chunk, chunks))
    *sums, products = (jnp.moveaxis(a, 1, 0) for a in parts_of_blocks)
    return *sums, products @ jnp.swapaxes(products, 1, 2), jnp.sum(rows[2], axis=1)


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
