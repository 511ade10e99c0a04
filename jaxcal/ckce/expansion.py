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

Intervals and tests of such U-statistics and of their differences are right also where these
degenerate.
Every difference is divided by an estimate of its own standard deviation, and the ratio is compared
with the same ratio in draws of a multiplier bootstrap. With l and G the sums of the two influence
functions and v standard normal,

.. math:: D^* = \kappa\, v^\top l + v^\top G v, \qquad
          s^{*2} = 2 \|G\|^2 + (\|\kappa l + 2 G v\|^2 - 4 \|G\|^2)_+.

:math:`\|l\|^2` exceeds the variance of the first term by :math:`4 \|G\|^2` on average, since theta
is estimated: that is why an ordinary bootstrap is too wide where models are calibrated. It is taken
away from the variance, and from l by :math:`\kappa^2 = (1 - 4 \|G\|^2 / \|l\|^2)_+`.

Where labels are rare, the residuals do not say how large they could have been. So every test is
made twice, with the noise of the residuals and with the noise C that the predictions claim, whose
deviation :math:`\sqrt 2 \|C\|` is known and not estimated; what either does not contradict stays.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.ckce import solvers
from jaxcal.ckce.features import TILE, normal_equations
from jaxcal.kernels.grams import NystroemFeatures
from jaxcal.numerics import at_least
from jaxcal.typing import Key, Scalar

BLOCKS = 1024  # a power of two: so many sums of observations at most


class Expansion(NamedTuple):
    r"""A U-statistic and its influence functions, summed over k blocks of observations.

    Attributes:
        estimate: [] The V-statistic, with the products of observations with themselves.
        value: [] The U-statistic, without them.
        slope: [] Variance of the first term per unit of the true value. Both are quadratic in
            theta, and both ends of the ratio hold label noise twice: once in the data, and once on
            average, so that it is bounded by the noise where the estimate is 0.
        first: [k] Sums of the first influence function, estimated without the observation itself;
            they add up to 0.
        second: [k, k] Sums of the second influence function, with rows that add up to 0 but for
            the diagonal, which is 0.
        claimed: [k, k] As ``second``, with residuals as large as the predictions say they are. A
            few labels that are rare say little of their own variance; the predictions do.
    """

    estimate: Scalar
    value: Scalar
    slope: Scalar
    first: Float[Array, " k"]
    second: Float[Array, "k k"]
    claimed: Float[Array, "k k"]


class Fitted(NamedTuple):
    r"""The regression of residuals, in the eigenbasis V of F^T F.

    Attributes:
        expansion: That of the residuals.
        kept: [] The trace of F F^T.
        theta: [r, p] Coefficients in the basis V.
        others: [r, q] Coefficients of the other columns that were asked for.
    """

    expansion: Expansion
    kept: Scalar
    theta: Float[Array, "r p"]
    others: Float[Array, "r q"]


def claimed_residuals(
    key: Key, residuals: Float[Array, "n p"], noise: Float[Array, " n"]
) -> Float[Array, "n p"]:
    """Residuals scaled to squared lengths ``noise``, with random signs."""
    squares = jnp.sum(residuals**2, axis=1)
    sizes = jnp.sqrt(at_least(noise, 0) / jnp.where(squares > 0, squares, 1))
    signs = jax.random.rademacher(key, sizes.shape, dtype=sizes.dtype)
    return residuals * (signs * sizes)[:, None]


def by_features(
    key: Key,
    features: NystroemFeatures,
    points: Float[Array, "n m"],
    residuals: Float[Array, "n p"],
    claimed: Float[Array, "n p"],
    ridge: Scalar,
    weights: Float[Array, " n"],
    also: Callable[[Array], Array] = lambda points: points[:, :0],
) -> Fitted:
    r"""The expansion for the kernel F F^T.

    Features are made twice: for F^T F, and, once its eigenvectors V are known, as F V, in which A
    is diagonal, so that an observation's product with itself costs O(r). ``claimed``: residuals of
    the size that the predictions claim, see `claimed_residuals`. ``also``: further columns M at
    given points, whose products F^T M the first pass makes. Observations count with ``weights`` 0
    or 1; the ridge is that of the sum of them. Up to `BLOCKS` observations each is a block; more
    are dealt out at random. Cost 3 n r^2 + 4 n r p and 2 k^2 r p multiplications, 9 r^3 for the
    eigenvectors; memory 2 k r p + 2 k^2 beyond the data.
    """
    n, p = residuals.shape
    with jax.default_matmul_precision("highest"):
        sums = normal_equations(features, points, residuals, weights, side=min(n, TILE), also=also)
        values, vectors = jnp.linalg.eigh((sums.products + sums.products.T) / 2)
        spectrum = at_least(values, 0) + jnp.sum(weights) * ridge
        inverse = 1 / spectrum
        moments = inverse[:, None] * (vectors.T @ sums.moments)
        theta, others = moments[:, :p], moments[:, p:]
        along = inverse[:, None] * theta
        turned = features.turned(vectors)

        def parts(x: Array, r: Array, weight: Array) -> tuple[Array, ...]:
            """F V, the fit's residuals, the first influence, and the products with themselves."""
            f = turned(x) * weight[:, None]
            errors = r - f @ theta
            alone = f**2 @ inverse**2 * jnp.sum(r**2, axis=1)
            return f, errors, 2 * jnp.sum((f @ along) * errors, axis=1), alone

        if n <= BLOCKS:
            f, errors, first, alone = parts(points, residuals, weights)
            pulled = f * inverse[None]
            gram = pulled @ pulled.T
            second, noise = (gram * (each @ each.T) for each in (errors, claimed))
            sizes = weights
        else:
            first, alone, second, noise, sizes = _in_blocks(
                key, parts, inverse, (points, residuals, claimed, weights)
            )
    estimate = jnp.sum(theta**2)
    value = estimate - jnp.sum(alone)
    expansion = _expansion(estimate, value, first, second, noise, sizes / jnp.sum(weights))
    return Fitted(expansion, sums.kept, theta, others)


def _in_blocks(
    key: Key, parts: Callable[..., tuple[Array, ...]], inverse: Array, rows: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Sums over random blocks: of the first influence, of what is left out, the products of the
    sums of the second, with errors and as claimed; and how many observations are in each block."""
    rows = _dealt(key, *rows)
    side = rows[0].shape[1]
    tile = 2 ** max(0, min(TILE // side, BLOCKS).bit_length() - 1)  # blocks at a time

    def chunk(rows: tuple[Array, ...]) -> tuple[Array, ...]:
        x, r, claimed, weight = (a.reshape(-1, *a.shape[2:]) for a in rows)
        f, errors, *sums = parts(x, r, weight)
        pulled = (f * inverse[None]).reshape(tile, side, -1)
        products = [
            jnp.einsum("bir,bip->brp", pulled, each.reshape(tile, side, -1)).reshape(tile, -1)
            for each in (errors, claimed)
        ]
        return *(jnp.sum(a.reshape(tile, side), axis=1) for a in sums), *products

    chunks = jax.tree.map(lambda a: a.reshape(BLOCKS // tile, tile, *a.shape[1:]), rows)
    blocks = (a.reshape(BLOCKS, *a.shape[2:]) for a in jax.lax.map(chunk, chunks))
    first, alone, errors, claimed = blocks
    return first, alone, errors @ errors.T, claimed @ claimed.T, jnp.sum(rows[-1], axis=1)


def by_products(
    key: Key, gram: Float[Array, "n n"], products: Float[Array, "n n"], ridge: Scalar
) -> Expansion:
    r"""The expansion where only the products D = R R^T of the residuals are known.

    Residuals count as claimed as they are, without the fit. Cost 4 n^3 multiplications, memory
    O(n^2).
    """
    n = gram.shape[0]
    with jax.default_matmul_precision("highest"):
        low = solvers.factor(gram, ridge)
        s = solvers.solve(low, solvers.solve(low, products).T)
        s = (s + s.T) / 2
        along = solvers.solve(low, gram)
        w = solvers.solve(low, along.T)
        w = (w + w.T) / 2
    scale = n * ridge
    first = 2 * scale * jnp.sum(along.T * s, axis=1)
    claimed = w * products
    estimate = jnp.sum(claimed)
    value = estimate - jnp.trace(claimed)
    signs = jax.random.rademacher(jax.random.fold_in(key, 1), (n,), dtype=gram.dtype)
    claimed = claimed * signs[:, None] * signs[None]
    second, sizes = w * scale**2 * s, jnp.ones(n, gram.dtype)
    if n > BLOCKS:
        block = jax.random.permutation(key, jnp.arange(n) % BLOCKS)

        def summed(a: Array) -> Array:
            return jax.ops.segment_sum(a, block, BLOCKS)

        first, sizes = summed(first), summed(sizes)
        second, claimed = (summed(summed(a).T) for a in (second, claimed))
    return _expansion(estimate, value, first, second, claimed, sizes / n)


def _expansion(
    estimate: Scalar, value: Scalar, first: Array, second: Array, claimed: Array, share: Array
) -> Expansion:
    """Centred; no observation meets itself in the second term, nor in the estimate of the first."""

    def centred(a: Array) -> Array:
        rows = jnp.sum(a, axis=1)
        a = a - share[:, None] * rows[None] - rows[:, None] * share[None]
        return a + jnp.sum(rows) * share[:, None] * share[None]

    second, claimed = centred(second), centred(claimed)
    alone = jnp.diagonal(second)
    second, claimed = (a - jnp.diag(jnp.diagonal(a)) for a in (second, claimed))
    plain, first = (a - share * jnp.sum(a) for a in (first, first - 2 * alone))
    noise = 2 * estimate - value  # the estimate, and the noise in it once more
    slope = jnp.sum(plain**2) + 4 * jnp.sum(second**2)
    slope = slope / jnp.where(noise > 0, noise, 1)
    return Expansion(estimate, value, slope, first, second, claimed)


def _dealt(key: Key, *rows: Array) -> tuple[Array, ...]:
    """Rows as [k, s, ..] in a random order; those that fill the last places get the weight 0, the
    last of the arrays."""
    n = rows[0].shape[0]
    side = -(-n // BLOCKS)
    order = jax.random.permutation(key, n)
    order = jnp.concatenate([order, order[: side * BLOCKS - n]]).reshape(side, BLOCKS).T
    real = (jnp.arange(side * BLOCKS) < n).reshape(side, BLOCKS).T
    *others, weights = (a[order] for a in rows)
    return *others, weights * real.astype(weights.dtype)


CHUNK = 32  # draws at a time


class Studentized(NamedTuple):
    """Every pair of M statistics, row minus column, by two kinds of noise, and each statistic.

    Attributes:
        error: [2, M, M] Standard deviations of the differences: by the residuals, and as claimed
            where all are calibrated.
        ratios: [b, 2, M, M] Draws of difference over standard deviation.
        terms: [b, 2, M] Draws of the second term of each statistic, by both kinds of noise.
        normal: [b] Standard normal draws.
    """

    error: Float[Array, "2 M M"]
    ratios: Float[Array, "b 2 M M"]
    terms: Float[Array, "b 2 M"]
    normal: Float[Array, " b"]


def studentized(key: Key, expansions: Expansion, *, n_draws: int) -> Studentized:
    """The standard deviation of every difference, and draws of their ratio.

    Args:
        key: Random key.
        expansions: Of M statistics of the same observations, stacked, with the same blocks.
        n_draws: How many draws, b.

    Returns:
        `Studentized`; ratios are 0 where a standard deviation is.

    Cost: two products of b and M k^2 numbers, and b M^2 k multiplications for k blocks.
    """
    values, first, second, claimed = (
        getattr(expansions, name) for name in ("value", "first", "second", "claimed")
    )
    count, k = first.shape
    with jax.default_matmul_precision("highest"):
        lead = _between(first @ first.T)
        square, expected = (
            _between(flat @ flat.T) for flat in (a.reshape(count, -1) for a in (second, claimed))
        )
        magnitudes = jnp.maximum(jnp.sum(first**2, axis=1), jnp.sum(second**2, axis=(1, 2)))
    # of equal models rounding alone is left
    size = jnp.max(jnp.where(jnp.isfinite(magnitudes), magnitudes, 0))
    some = (lead + square) > 100 * jnp.finfo(values.dtype).eps * size
    lead, square, expected = (
        jnp.where(some | jnp.isnan(a), a, 0) for a in (lead, square, expected)
    )
    excess = at_least(lead - 4 * square, 0)
    kappa = jnp.sqrt(excess / jnp.where(lead > 0, lead, 1))
    error = jnp.sqrt(jnp.stack([2 * square + excess, 2 * expected]))

    def ratio(along: Array, draws: Array, cross: Array, products: Array) -> Array:
        """Of one draw: v'l [M], v'Gv and v'Cv [2, M], l'Gv and (Gv)'Gv [M, M], to difference over
        spread."""
        parts = jnp.diagonal(cross)
        cross = parts[:, None] + parts[None] - cross - cross.T
        drawn = draws[:, :, None] - draws[:, None]
        drawn = drawn.at[0].add(kappa * (along[:, None] - along[None]))
        moved = kappa**2 * lead + 4 * kappa * cross + 4 * _between(products)
        spread = jnp.sqrt(2 * square + at_least(moved - 4 * square, 0))
        spread = jnp.stack([spread, error[1]])
        drawn = drawn / jnp.where(spread > 0, spread, 1)
        return jnp.where((spread > 0) | jnp.isnan(spread), drawn, 0)

    def chunk(key: Key) -> tuple[Array, Array]:
        with jax.default_matmul_precision("highest"):
            v = jax.random.normal(key, (CHUNK, k), values.dtype)
            pulled, expected = (jnp.einsum("bk,ikl->bil", v, a) for a in (second, claimed))
            draws = jnp.stack([jnp.einsum("bil,bl->bi", a, v) for a in (pulled, expected)], axis=1)
            cross = jnp.einsum("il,bjl->bij", first, pulled)
            products = jnp.einsum("bil,bjl->bij", pulled, pulled)
            along = v @ first.T
        return jax.vmap(ratio)(along, draws, cross, products), draws

    normal_key = jax.random.fold_in(key, 1)
    keys = jax.random.split(key, -(-n_draws // CHUNK))
    ratios, terms = (a.reshape(-1, *a.shape[2:])[:n_draws] for a in jax.lax.map(chunk, keys))
    return Studentized(error, ratios, terms, jax.random.normal(normal_key, (n_draws,), error.dtype))


def value_interval(
    value: Scalar,
    slope: Scalar,
    terms: Float[Array, "b 2"],
    normal: Float[Array, " b"],
    level: float | Scalar,
) -> tuple[Scalar, Scalar]:
    r"""The values T >= 0 of one statistic that its draws do not contradict, confidence 1 - level.

    Where the true value is T the ``value`` U is drawn as :math:`T + \sqrt{s T} Z + v^\top G v`, s
    the ``slope``: the first term vanishes with T. Each draw is at least U exactly where T is at
    least the root of that equation (0, where there is none), so that the tests of all T are
    inverted by quantiles of the roots. ``terms`` holds draws of the last term by both kinds of
    noise.
    """
    gaps = value - terms
    first = jnp.sqrt(slope) * normal[:, None]
    roots = at_least((jnp.sqrt(at_least(first**2 + 4 * gaps, 0)) - first) / 2, 0) ** 2
    low = -order_statistic(-jnp.where(gaps > 0, roots, 0), 1 - level / 2)
    ends = jnp.min(low), jnp.max(order_statistic(roots, 1 - level / 2))
    low, high = (jnp.where(jnp.isfinite(value), end, jnp.nan) for end in ends)
    return low, high


def order_statistic(
    draws: Float[Array, "b *shape"], share: float | Scalar
) -> Float[Array, "*shape"]:
    """The draw below which a new one of the same distribution is with probability ``share``, at
    least; the largest where there are too few."""
    b = draws.shape[0]
    rank = jnp.ceil(jnp.asarray(share, draws.dtype) * (b + 1)).astype(jnp.int32)
    return jnp.sort(draws, axis=0)[jnp.clip(rank, 1, b) - 1]


def _between(products: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Squared distances from inner products."""
    squares = jnp.diagonal(products)
    return at_least(squares[:, None] + squares[None] - 2 * products, 0)
