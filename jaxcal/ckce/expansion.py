r"""Estimate CKCE and SKCE with the terms of the expansion in `jaxcal.ckce.errors`.

For kernel features phi and a fixed ridge lambda, fitted coefficients estimate theta with the error

.. math:: \hat\theta - \theta = \hat A^{-1} \tfrac1n \sum_i \xi_i, \qquad
          \xi_i = \phi_i (r_i - \theta^\top \phi_i)^\top - \lambda \theta, \quad E \xi_i = 0,

exactly, with residuals r and :math:`\hat A = \frac1n \sum_i \phi_i \phi_i^\top + \lambda`.
With :math:`A = E \hat A`,

.. math:: \|\hat\theta\|^2 - \|\theta\|^2 =
          \tfrac1n \sum_i 2 \langle \theta, A^{-1} \xi_i \rangle
          + \tfrac1{n^2} \sum_{i, j} \langle A^{-1} \xi_i, A^{-1} \xi_j \rangle
          + \text{rest},

where the code omits i = j. The rest is due to :math:`\hat A - A`. It is 0 for a calibrated model if
predictions are taken as fixed. For other models it is about n^(-1/2) times the first sum.

SKCE is the squared norm of the mean :math:`\mu` of :math:`\phi_i r_i^\top`, the limit of
:math:`\lambda^2` CKCE for large ridges: A is replaced by 1, the rest is 0, and
:math:`\xi_i = \phi_i r_i^\top - \mu`.
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxcal.ckce import kernels, solvers
from jaxcal.ckce.errors import (
    BLOCKS,
    Error,
    added_residuals,
    deal,
    redrawn_residuals,
    redrawn_values,
    without_diagonal,
)
from jaxcal.ckce.inputs import residuals
from jaxcal.ckce.solvers import TILE, low_rank, normal_equations
from jaxcal.kernels import grams
from jaxcal.kernels.grams import NystroemFeatures
from jaxcal.numerics import at_least
from jaxcal.typing import KernelLike, Key, Scalar

REDRAWN = 2 * 10**9  # multiplications up to which each draw for a calibrated model redraws labels


class Noise(NamedTuple):
    """Residuals of random labels.

    Attributes:
        added: Residuals of uniform labels, [n, p], which are added to those of the fit.
        drawn: Function that returns random residuals of a calibrated model, [n, p], from a key.
    """

    added: Float[Array, "n p"]
    drawn: Callable[[Key], Array]


class ByKernel(eqx.Module):
    """The measures "ckce" and "skce" of class probabilities, by a Gram matrix of low rank.

    Attributes:
        kernel: Kernel on predictions.
        root: Root of the Gram matrix of the classes (`class_root`); None for the identity.
        ridge: Ridge of CKCE, []; None for SKCE.
        width: Bandwidth for a kernel without one; None for the median distance of each model.
        rank: Largest rank of the Gram matrix.
        condition: Further variables, [n, a], and the kernel on them; None if there are none.

    Cost 3 n rank^2 and n_draws min(n, 1024) rank m multiplications.
    """

    largest: ClassVar[float] = float("inf")
    kernel: KernelLike
    root: Float[Array, "m m"] | None
    ridge: Scalar | None
    width: Scalar | None
    rank: int = eqx.field(static=True)
    condition: tuple[Float[Array, "n a"], KernelLike] | None = None

    def __call__(
        self,
        key: Key,
        signs_key: Key,
        q: Float[Array, "n m"],
        weights: Float[Array, " n"],
        labels: Int[Array, " n"],
        n_draws: int,
    ) -> tuple[Error, dict[str, Array]]:
        """Return the error of one model, and the fields of a `Comparison` that need a kernel."""
        deal_key, noise_key = jax.random.split(key)
        (n, m), root = q.shape, self.root
        kernel, bandwidths = kernels.fill(self.kernel, q, self.width)
        kernel, x, _ = kernels.conditioned(kernel, q, self.condition)
        features = low_rank(kernel, x, self.rank)

        def drawn(key: Key) -> Array:
            redrawn = redrawn_residuals(key, q)
            return redrawn if root is None else redrawn @ root

        added = added_residuals(noise_key, n, m, jnp.sum(weights))
        noise = Noise(added if root is None else added @ root, drawn)
        residual = residuals(q, labels, root)
        keys = (deal_key, signs_key)
        error, kept = by_features(keys, features, x, residual, noise, self.ridge, weights, n_draws)
        diagonal = grams.gram_diagonal(kernel, x)
        first = grams.gram(kernel, x, features.landmarks[:1])
        nonfinite = jnp.sum(~jnp.isfinite(q).all(axis=1))
        return error._replace(nonfinite=nonfinite), {
            "bandwidths": bandwidths.get("prediction", jnp.ones((), q.dtype)),
            "ridge": jnp.zeros((), q.dtype) if self.ridge is None else self.ridge,
            "left_out": at_least(1 - kept / jnp.sum(weights * diagonal), 0),
            "nonfinite_kernel": jnp.sum(~jnp.isfinite(first)) + jnp.sum(~jnp.isfinite(diagonal)),
        }


def by_features(
    keys: tuple[Key, Key],
    features: NystroemFeatures,
    points: Float[Array, "n m"],
    residuals: Float[Array, "n p"],
    noise: Noise,
    ridge: Scalar | None,
    weights: Float[Array, " n"],
    n_draws: int,
) -> tuple[Error, Scalar]:
    """Return the `Error` of CKCE, or of SKCE if ``ridge`` is None, and the trace of F F^T, [].

    F [n, r] are the ``features``; F F^T is the Gram matrix. A first pass computes F^T F and, for
    CKCE, its eigenvectors V. A second pass uses F V in place of F, which makes the matrix
    A = F^T F + sum(weights) ridge I diagonal. ``keys``: one for blocks and draws, one for signs.
    ``weights`` are 0 or 1.
    """
    n = points.shape[0]
    sums = normal_equations(features, points, residuals, weights, side=min(n, TILE))
    total = jnp.sum(weights)
    if ridge is None:
        turned, fit = features, jnp.zeros_like(sums.moments)
        inverse = jnp.full(len(fit), 1 / jnp.sqrt(total * (total - 1)))
        along = sums.moments / total**2
        estimate = jnp.sum((sums.moments / total) ** 2)
    else:
        values, vectors = jnp.linalg.eigh((sums.products + sums.products.T) / 2)
        inverse = 1 / (at_least(values, 0) + total * ridge)
        fit = inverse[:, None] * (vectors.T @ sums.moments)
        along, turned = inverse[:, None] * fit, features.turned(vectors)
        estimate = jnp.sum(fit**2)

    def parts(x: Array, r: Array, added: Array, weight: Array) -> tuple[Array, ...]:
        """Return w, the rows of F V A^-1; e, residuals of the fit plus ``added``; and arrays [n]:
        the first influence, the squared norms of w r^T and of w e^T for each row, and weights."""
        f = turned(x) * weight[:, None]
        e = r - f @ fit + added
        pulled = f * inverse[None]
        sizes = jnp.sum(pulled**2, axis=1)
        alone = (sizes * jnp.sum(a**2, axis=1) for a in (r, e))
        return pulled, e, 2 * jnp.sum((f @ along) * e, axis=1), *alone, weight

    rows = points, residuals, noise.added, weights
    block_key, null_key = jax.random.split(keys[0])
    of_each, second, null = summed((block_key, null_key), parts, rows, noise.drawn, n_draws)
    first, alone, alone_with_noise, sizes = of_each
    every = estimate if ridge is not None else estimate * (total / (total - 1))
    value, share = every - jnp.sum(alone), sizes / total
    noise_in = jnp.sum(alone_with_noise)
    error = _error(keys[1], estimate, value, noise_in, first, second, share, null)
    return error, sums.kept


def summed(
    keys: tuple[Key, Key],
    parts: Callable[..., tuple[Array, ...]],
    rows: tuple[Array, ...],
    drawn: Callable[[Key], Array],
    n_draws: int,
) -> tuple[list[Array], Float[Array, "k k"], Float[Array, " b"]]:
    r"""Return sums over k blocks, inner products of the blocks' second influences [k, k], and draws
    of the value for a calibrated model.

    ``parts(*rows)`` returns w [n, r], e [n, p] and further arrays [n]; the first output holds the
    sums of each further array over blocks, [k]. The second influence of observation i is w_i times
    the transposed e_i. ``rows``: points, residuals, added residuals, weights. ``drawn``: see
    `Noise`. ``keys``: for blocks, and for draws. If n <= `BLOCKS`, each observation is a block,
    else blocks are random. Each draw of the value redraws labels if this takes at most `REDRAWN`
    multiplications. Else labels are drawn once, and draws multiply blocks by normal numbers, which
    vary too little if labels are rare. Memory 2 k r p + 2 k^2 beyond the data, or n r with labels
    of each draw.
    """
    deal_key, null_key = keys
    if rows[0].shape[0] <= BLOCKS:
        pulled, e, *of_each = parts(*rows)
        null = redrawn_values(null_key, pulled, drawn, n_draws)
        return of_each, (pulled @ pulled.T) * (e @ e.T), null
    label_key, draw_key = jax.random.split(null_key)
    of_each, second, of_null = _in_blocks(deal_key, parts, rows, drawn(label_key))
    w, e = jax.eval_shape(parts, *rows)[:2]
    if w.size * e.shape[1] * n_draws <= REDRAWN:
        return of_each, second, redrawn_values(draw_key, parts(*rows)[0], drawn, n_draws)
    v = jax.random.normal(draw_key, (n_draws, BLOCKS), second.dtype)
    return of_each, second, draws(v, without_diagonal(of_null))


def _in_blocks(
    key: Key, parts: Callable[..., tuple[Array, ...]], rows: tuple[Array, ...], drawn: Array
) -> tuple[list[Array], Array, Array]:
    """Return sums and inner products as in `summed`, for random blocks. The inner products [k, k]
    are returned twice: with the residuals e of ``parts``, and with the residuals ``drawn``."""
    places, real = deal(key, rows[0].shape[0])
    side = places.shape[1]
    tile = 2 ** max(0, min(TILE // side, BLOCKS).bit_length() - 1)  # blocks at a time

    def chunk(of: tuple[Array, Array]) -> tuple[Array, ...]:
        place, real = (a.reshape(-1) for a in of)
        x, r, added, weight = (a[place] for a in rows)
        pulled, e, *of_each = parts(x, r, added, weight * real.astype(weight.dtype))
        pulled = pulled.reshape(tile, side, -1)
        sums = [
            jnp.einsum("bir,bip->brp", pulled, a.reshape(tile, side, -1)).reshape(tile, -1)
            for a in (e, drawn[place])
        ]
        return *(jnp.sum(a.reshape(tile, side), axis=1) for a in of_each), *sums

    chunks = tuple(a.reshape(BLOCKS // tile, tile, side) for a in (places, real))
    per_block = (a.reshape(BLOCKS, *a.shape[2:]) for a in jax.lax.map(chunk, chunks))
    *of_each, errors, of_null = per_block
    return of_each, errors @ errors.T, of_null @ of_null.T


def by_products(
    keys: tuple[Key, Key],
    gram: Float[Array, "n n"],
    products: Float[Array, "n n"],
    ridge: Scalar | None,
    n_draws: int,
) -> Error:
    r"""Return the `Error` from the inner products D = ``products`` of the residuals.

    The estimate is <D, W> with W = A^-1 K A^-1, K = ``gram`` and A = K + n ridge I for CKCE, or W =
    K / n^2 for SKCE (``ridge`` None). Draws for a calibrated model give the residuals random signs.
    ``keys``: for these draws, and for signs. Cost: 13/3 n^3 (CKCE) or O(n^2); memory O(n^2).
    """
    n = gram.shape[0]
    block_key, sign_key, null_key = jax.random.split(keys[0], 3)
    if ridge is None:
        w, pairs = gram / float(n) ** 2, n / (n - 1)
        second = pairs * w * products
        first = 2 * jnp.sum(w * products, axis=1)
    else:
        low, scale, pairs = solvers.factor(gram, ridge), n * ridge, 1.0
        s = solvers.solve(low, solvers.solve(low, products).T)
        s = (s + s.T) / 2
        along = solvers.solve(low, gram)
        w = solvers.solve(low, along.T)
        w = (w + w.T) / 2
        second = w * scale**2 * s
        first = 2 * scale * jnp.sum(along.T * s, axis=1)
    estimate = jnp.sum(w * products)
    plain = pairs * w * products
    sign = jax.random.rademacher(sign_key, (n,), dtype=gram.dtype)
    value, sizes = pairs * estimate - jnp.trace(plain), jnp.ones(n, gram.dtype)
    plain = without_diagonal(plain) * sign[:, None] * sign[None]
    noise = jnp.trace(second)
    if n > BLOCKS:
        block = jax.random.permutation(block_key, jnp.arange(n) % BLOCKS)
        per_block = partial(jax.ops.segment_sum, segment_ids=block, num_segments=BLOCKS)
        first, sizes = per_block(first), per_block(sizes)
        second, plain = (per_block(per_block(a).T) for a in (second, plain))
    v = jax.random.rademacher(null_key, (n_draws, len(plain)), gram.dtype)
    null = draws(v, without_diagonal(plain))
    return _error(keys[1], estimate, value, noise, first, second, sizes / n, null)


def _error(
    key: Key,
    estimate: Scalar,
    value: Scalar,
    noise: Scalar,
    first: Array,
    second: Array,
    share: Array,
    null: Array,
) -> Error:
    """Return an `Error` with centred influences, without products of observations with themselves.

    ``slope`` is the variance of the first sum divided by the value. Label noise is included in
    numerator and denominator, so that the ratio is bounded for a value of 0. ``noise``: sum of the
    products of each b_i with itself. ``share`` [k]: weights of the blocks, of sum 1.
    """
    rows = jnp.sum(second, axis=1)
    second = second - share[:, None] * rows[None] - rows[:, None] * share[None]
    second = second + jnp.sum(rows) * share[:, None] * share[None]
    alone, second = jnp.diagonal(second), without_diagonal(second)
    plain, first = (a - share * jnp.sum(a) for a in (first, first - 2 * alone))
    slope = jnp.sum(plain**2) + 4 * jnp.sum(second**2)
    total = at_least(value, 0) + 2 * noise
    slope = slope / jnp.where(total > 0, total, 1)
    terms = draws(jax.random.rademacher(key, (len(null), len(first)), first.dtype), second)
    return Error(estimate, value, slope, first, second, terms, null, jnp.zeros((), jnp.int32))


def draws(v: Float[Array, "b k"], second: Float[Array, "k k"]) -> Float[Array, " b"]:
    r"""Return :math:`v^\top G v` for each row of ``v``, with G = ``second``."""
    return jnp.sum((v @ second) * v, axis=1)
