r"""Compute p-values without draws: Student's t for blocks, and the limit of a U-statistic.

The limit of a U-statistic needs tail probabilities of
:math:`Q = \sum_j \lambda_j \chi^2_{\nu_j}`, far into the tail:

.. math:: P(Q > x) = \frac{1}{2\pi i} \int e^{g(t)}\,dt, \qquad
          g(t) = -\tfrac12 \sum_j \nu_j \log(1 - 2 \lambda_j t) - x t - \log t,

over a contour that crosses the real axis between the pole at 0 and the branch points
:math:`1 / 2\lambda_j`. It crosses at the minimum of g and bends around the branch points like a
parabola, so that terms hardly cancel even for tiny probabilities and the trapezoidal rule converges
exponentially. Inversion as in Imhof (1961), on the contour of Rice (1980).
"""

import math
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import betainc, ndtr
from jaxtyping import Array, Float

from jaxcal.engine.quadratic import count
from jaxcal.nulls.contract import Needs, Outcome, Sums
from jaxcal.nulls.resampling import float_type
from jaxcal.numerics import at_least, at_most, bisected
from jaxcal.read import convert
from jaxcal.typing import ArrayLike, Features, Key, Scalar

STEP, NODES = 1 / 8, 96  # trapezoidal rule in u, v = sinh(u), up to u = 12
BENDS = tuple(0.25 * 2.0**-k for k in range(9))  # bends of the parabola, in widths of the peak
# nearly straight: only these avoid cancellation for a small weight with many degrees, up to 10^9
STRAIGHT = tuple(2.0**-k for k in range(12, 34, 3))


class Tail(NamedTuple):
    """Tail probability ``p`` []; ``log_p`` [], which is finite even if p underflows; ``slopes``
    [k], the derivatives of log p with respect to the logarithm of each weight."""

    p: Scalar
    log_p: Scalar
    slopes: Float[Array, " k"]


def tail(x: Scalar, weights: Float[Array, " k"], degrees: Float[Array, " k"] | None = None) -> Tail:
    """Return the `Tail` probability that a weighted sum of chi-square variables exceeds ``x``, [].

    At least one weight [k] must be positive; negative weights count as 0. ``degrees`` of freedom
    [k] are 1 by default. p is 1 for x <= 0, and NaN if x or a weight is NaN or no weight is
    positive. In float64 relative errors are below 1e-9 for p < 0.9, absolute errors below 1e-5 for
    larger p. In float32 they are below 2e-4, or 1e-3 if a small weight has more than 10^4 degrees.
    Cost: 1,700 k complex logarithms. Source: Imhof (1961), eq. 3.2; Rice (1980).
    """
    degrees = jnp.ones_like(weights) if degrees is None else degrees
    bad = jnp.isnan(x) | jnp.any(jnp.isnan(weights)) | ~jnp.any(weights > 0)
    scale = jnp.where(bad, 1, jnp.max(weights))
    lam = jnp.where(bad, 1, at_least(weights, 0) / scale)
    # 1 - lam: exactly 0 for the largest weight, for any rounding of the division
    below = jnp.where(bad, 0, (scale - at_least(weights, 0)) / scale)
    level = jnp.where(bad | (x <= 0), 1, x / scale)
    logit = jax.lax.stop_gradient(_crossing(level, lam, below, degrees))
    # the crossing point c, and 1 - 2 c without cancellation
    c, room = jax.nn.sigmoid(logit) / 2, jax.nn.sigmoid(-logit)
    gaps = below + lam * room
    width = jax.lax.rsqrt(jnp.sum(2 * degrees * (lam / gaps) ** 2) + c**-2)
    step = STEP * jnp.arange(NODES, dtype=lam.dtype)
    v, speed = jnp.sinh(step), jnp.where(step == 0, 0.5, 1) * STEP * jnp.cosh(step)

    def along(bend: Scalar) -> tuple[Array, Array, Array, Array]:
        """Return at each node t = c + width (bend v^2 + i v): g(t) - g(c); dt / (i width) times the
        weight of the node; t - c; and the ratios (1 - 2 lambda t) / (1 - 2 lambda c)."""
        shift = jax.lax.complex(width * bend * v**2, width * v)
        direction = jax.lax.complex(speed, -2 * bend * v * speed)
        ratios = 1 - shift[None, :] * _complex(2 * lam / gaps)[:, None]
        growth = -_complex(degrees / 2) @ jnp.log(ratios)
        growth = growth - _complex(level) * shift - jnp.log1p(shift / _complex(c))
        return growth, direction, shift, ratios

    def size(bend: Scalar) -> Scalar:
        # in real arithmetic: the absolute value of a complex overflow may lose its NaN
        growth = along(bend)[0].real
        return jnp.sum(jnp.exp(growth) * speed * jnp.sqrt(1 + (2 * bend * v) ** 2))

    # choose the bend with the least cancellation
    bends = jnp.asarray(BENDS + STRAIGHT, lam.dtype)
    sizes = jax.lax.map(size, bends)
    sizes = jnp.where(jnp.isfinite(sizes), sizes, jnp.inf)
    bent = jnp.arange(bends.size) < len(BENDS)
    enough = jnp.any(bent & (sizes < 1e3))
    best = jnp.argmin(jnp.where(bent | ~enough, sizes, jnp.inf))
    growth, direction, shift, ratios = along(jax.lax.stop_gradient(bends[best]))
    terms = jnp.exp(growth) * direction
    mass = jnp.sum(terms.real)
    # d g / d log lambda_j = nu_j lambda_j t / (1 - 2 lambda_j t)
    pulls = ((_complex(c) + shift) * terms)[None] / ratios
    slopes = degrees * lam / gaps * jnp.sum(pulls.real, axis=1) / mass
    log_peak = -0.5 * jnp.sum(degrees * jnp.log(gaps)) - level * c - jnp.log(c)
    log_p = at_most(log_peak + jnp.log(width * mass / jnp.pi), 0)
    # Chernoff's bound on 1 - p, used where the terms above cancel
    s = 2.0 ** jnp.arange(-1, 8, dtype=lam.dtype) / level
    bound = s * level - 0.5 * jnp.log1p(2 * s[:, None] * lam[None]) @ degrees
    certain = (x <= 0) | (mass <= 0) | (jnp.min(bound) < math.log(1e-5))
    log_p = jnp.where(certain, 0, log_p)
    slopes = jnp.where(certain, 0, slopes)
    hide = jnp.where(bad, jnp.nan, 0)
    return Tail(jnp.exp(log_p) + hide, log_p + hide, slopes + hide)


def _complex(x: Array) -> Array:
    return jax.lax.complex(x, jnp.zeros_like(x))


def _crossing(
    level: Scalar,
    lam: Float[Array, " k"],
    below: Float[Array, " k"],
    degrees: Float[Array, " k"],
) -> Scalar:
    """Return logit(2 c), by bisection, for the minimum c of g (see the module) on (0, 1/2).
    ``level``: x / largest weight; ``lam``: weights / largest weight; ``below``: 1 - lam."""

    def falling(at: Scalar) -> Array:
        c, room = jax.nn.sigmoid(at) / 2, jax.nn.sigmoid(-at)
        return jnp.sum(degrees * lam / (below + lam * room)) - level - 1 / c <= 0

    end = jnp.asarray(40.0, lam.dtype)
    low, high = bisected(falling, -end, end, 40)
    return (low + high) / 2


class BlockNormal(eqx.Module):
    r"""Null that compares the mean of unbiased estimates, one per block, with Student's t.

    Only pairs within blocks are used: cost O(n size), not O(n^2), but less power. The statistic is
    :math:`\sqrt m\,\bar\eta / sd(\eta)` of the estimates :math:`\eta` of m >= 2 blocks. It is
    compared with Student's t with m - 1 degrees of freedom; the sources use a normal limit.
    Estimates of large blocks are skewed, which makes the test conservative.

    Args:
        size: Observations in a block, at least 2; 2 is the linear-time test. By default the integer
            part of the square root of n.

    Source: Zaremba, Gretton and Blaschko (2013); Widmann et al. (2021), Remark B.1.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 400))
        >>> predictions, null = dist.Normal(centers, 1.0), jaxcal.nulls.BlockNormal(20)
        >>> jaxcal.skce_test(1, predictions, centers + 0.8 + noise, null=null).verdict
        'rejected'
    """

    size: int | None = eqx.field(
        default=None,
        static=True,
        converter=lambda value: None if value is None else convert.integer(value, "size", least=2),
    )

    def needs(self, key: Key, features: Features) -> Needs:
        n = count(features)
        size = max(2, int(n**0.5)) if self.size is None else self.size
        if n // size < 2:
            raise ValueError(
                f"the block test needs at least two blocks: n={n} observations and block size "
                f"{size} make {n // size}; use smaller blocks or another null"
            )
        return Needs(block_size=size)

    def outcome(self, sums: Sums) -> Outcome:
        statistic = sums.unbiased / sums.standard_error
        return sums.outcome(statistic, student_tail(statistic, sums.blocks - 1))

    def least_p_value(self, n: int) -> float:
        """Return 0: the statistic is unbounded, as blocks may have arbitrarily small spread."""
        return 0.0


def student_tail(t: Array, degrees: ArrayLike) -> Array:
    """Return P(T > t) of Student's t, in the common shape of ``t`` and ``degrees``.

    From 30 degrees of freedom on (10^4 in float64) by Hill's normal approximation. Its relative
    error is below 1e-5 in float32 and 1e-12 in float64, for tails above 1e-12. `betainc` loses
    digits there: in float32 it is wrong by 5 % at 10^5 degrees, and useless at 10^7.
    Source: Hill (1970), Algorithm 395.
    """
    most = 30 if t.dtype == jnp.float32 else 10**4
    degrees, half = jnp.asarray(degrees, t.dtype), jnp.asarray(0.5, t.dtype)
    many = degrees >= most
    few = jnp.where(many, most, degrees)
    exact = betainc(few / 2, half, few / (few + t**2)) / 2
    w = jnp.where(many, degrees, most) - 0.5
    # the tail at 40 is 0 in float64; powers of larger z overflow
    z = at_most(jnp.sqrt(w * jnp.log1p(t**2 / (w + 0.5))), 40)
    b = 48 * w**2
    second = (4 * z**7 + 33 * z**5 + 240 * z**3 + 855 * z) / (10 * b * (b + 0.8 * z**4 + 100))
    upper = jnp.where(many, ndtr(-(z + (z**3 + 3 * z) / b - second)), exact)
    return jnp.where(t < 0, 1 - upper, upper)


class Eigenvalues(eqx.Module):
    r"""Null by the limit :math:`\sum_j \lambda_j (\chi^2_1 - 1)` of (n - 1) U, without draws.

    U is the mean of h over pairs, and H the matrix of all h. The :math:`\lambda` are the
    eigenvalues of H / n with diagonal 0, so that the sum has the variance and skewness of a
    bootstrap with signs. A random sketch of H estimates the largest eigenvalues. The others
    must agree with the exact trace and Frobenius norm of H. The p-value is the geometric mean of
    those of two extreme cases: the others are equal, or they are 0 and the largest are increased.
    For `jaxcal.RandomFeatures` no sketch is needed, and h_ii is treated as constant.

    ``result.p_value_error`` is the larger distance of the p-value from those two, plus a standard
    error for the estimation of eigenvalues from n observations. It omits the error of the limit at
    finite n: see the level study in `experiments/linear`.

    Args:
        columns: Columns of the sketch, at least 2.

    Cost: 2 n^2 columns multiplications in the pass over pairs; `Wild` takes n^2 n_draws.

    Source: Gretton et al. (2009) for the limit; Tropp et al. (2017) for the sketch; Imhof (1961)
    for the inversion.

    Example:
        >>> from jaxcal import ksd_test
        >>> from jaxcal.nulls import Eigenvalues
        >>> import jax, numpyro.distributions as dist
        >>> ys = 0.5 + jax.random.normal(jax.random.key(0), (300,))
        >>> result = ksd_test(0, dist.Normal(0.0, 1.0), ys, null=Eigenvalues())
        >>> bool(result.p_value < 1e-6)
        True
    """

    columns: int = eqx.field(
        default=64, static=True, converter=partial(convert.integer, name="columns", least=2)
    )

    def needs(self, key: Key, features: Features) -> Needs:
        n = count(features)
        shape = (n, min(self.columns, n))
        return Needs(squares=True, sketch=jax.random.normal(key, shape, float_type(features)))

    def outcome(self, sums: Sums) -> Outcome:
        n, values, squares = sums.n, sums.eigenvalues, sums.squares
        if values is None or squares is None:
            raise ValueError("Eigenvalues: these sums over pairs come without eigenvalues")
        statistic = float(n - 1) * sums.unbiased
        means, norms = jnp.mean(sums.diagonal, axis=1), squares / float(n**2)
        spectra = statistic, values / n, means, norms, jnp.var(sums.diagonal, axis=1)
        p, error = jax.vmap(partial(p_value_of_spectrum, n=n))(*spectra)
        return sums.outcome(statistic, p)._replace(p_error=error)

    def least_p_value(self, n: int) -> float:
        r"""Return :math:`P(\chi^2_1 \geq n + 1)`, a lower bound of the p-value for any h. The
        p-value is smallest for constant h."""
        return math.erfc(((n + 1) / 2) ** 0.5)


def p_value_of_spectrum(
    statistic: Scalar,
    values: Float[Array, " k"],
    trace: Scalar,
    norm: Scalar,
    lengths: Scalar,
    n: Scalar | int,
) -> tuple[Scalar, Scalar]:
    r"""Return the p-value of ``statistic`` = (n - 1) U, and a bound of its error.

    U and H are those of `Eigenvalues`. ``values``: the largest eigenvalues of H / n with diagonal
    0, ascending; ``trace``: the mean of :math:`h_{ii}`; ``norm``: the sum of :math:`h_{ij}^2 / n^2`
    over i != j; ``lengths``: the variance of :math:`h_{ii}`.
    """
    # well above rounding: compilers may evaluate one expression twice with different results
    least = 1000 * jnp.finfo(statistic.dtype).eps
    weights = at_least(values, least * jnp.sqrt(norm))
    sketched = jnp.sum(weights**2)
    square = at_least(norm - sketched, 0)
    # upper bound of the trace norm of the rest: with the diagonal no eigenvalue is negative
    mean = trace + at_least(trace - jnp.sum(weights), 0)
    x = statistic + jnp.sum(weights) + mean
    # thinnest tail: the rest has equal weights, as small as possible
    even = jnp.where(mean > 0, square / jnp.where(mean > 0, mean, 1), 0)
    none = square <= least * norm
    degrees = jnp.where(none, 1, mean / jnp.where(none, 1, even))
    degrees = jnp.append(jnp.ones_like(weights), degrees)
    thin = tail(
        jnp.where(none, x - mean, x), jnp.append(weights, jnp.where(none, 0, even)), degrees
    )
    # heaviest tail: the sketch underestimates its weights by the missing share, and has no rest
    raised = weights * jnp.sqrt(1 + square / jnp.where(sketched > 0, sketched, 1))
    heavy = tail(statistic + jnp.sum(raised), raised)
    p = jnp.exp((thin.log_p + heavy.log_p) / 2)
    between = at_least(jnp.abs(heavy.p - p), jnp.abs(p - thin.p))
    # variance of p over the spectra of n observations: its value for normal vectors, times the
    # ratio of the variances of squared lengths
    ratio = at_least(lengths / jnp.where(norm > 0, 2 * norm, 1), 1)
    spread = 2 * jnp.sum(thin.slopes**2 / degrees) * ratio / n
    return p, between + p * jnp.sqrt(spread)
