"""The limit distribution of the statistic from eigenvalues of H: p-values without draws."""

import math
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal import convert
from jaxcal.nulls.contract import Needs, Outcome, Sums
from jaxcal.nulls.resampling import float_type
from jaxcal.nulls.weighted_chi_square import tail
from jaxcal.numerics import at_least, at_most
from jaxcal.quadratic import count
from jaxcal.typing import Features, Key, Scalar


def _columns(value: object) -> int:
    return convert.integer(value, "columns", least=2)


class Eigenvalues(eqx.Module):
    r"""The limit distribution: n U against :math:`\sum_j \lambda_j (\chi^2_1 - 1)`, by inversion.

    The eigenvalues :math:`\lambda` of H / n are those of a sketch of H with some columns, which are
    never too large. Trace and Frobenius norm of H are exact, and leave two extremes for the rest:
    equal weights, or all in the largest one. The p-value is the geometric mean of those of the two.
    Random features of a test (`jaxcal.RandomFeatures`) have all their eigenvalues, and need no
    sketch. There is no least p-value as with draws: p = 1e-10 costs what p = 0.1 costs.

    ``result.p_value_error`` is the distance to the farther extreme, plus a standard error for
    having seen the spectrum in n observations. How far the limit distribution is from that of n
    observations is not in it: see the level study in `experiments/linear`.

    Args:
        columns: Columns of the sketch, at least 2.

    Cost: 2 n^2 columns multiplications in the engine's pass, of which `Wild` takes n^2 n_draws.

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

    columns: int = eqx.field(default=64, static=True, converter=_columns)

    def needs(self, key: Key, features: Features) -> Needs:
        n = count(features)
        shape = (n, min(self.columns, n))
        return Needs(squares=True, sketch=jax.random.normal(key, shape, float_type(features)))

    def outcome(self, sums: Sums) -> Outcome:
        n, values = sums.n, sums.eigenvalues
        if values is None:
            raise ValueError("Eigenvalues: these sums over pairs come without eigenvalues")
        traces = jnp.sum(sums.diagonal, axis=1) / n
        norms = (sums.squares + jnp.sum(sums.diagonal**2, axis=1)) / float(n**2)
        statistic = float(n) * sums.unbiased
        lengths = jnp.var(sums.diagonal, axis=1)
        spectra = (statistic + traces, values / n, traces, norms, lengths)
        p, error = jax.vmap(partial(p_value_of_spectrum, n=n))(*spectra)
        return sums.outcome(statistic, p)._replace(p_error=error)

    def least_p_value(self, n: int) -> float:
        r"""That of h = 1 for all pairs, where n U is largest beside its distribution:
        :math:`P(\chi^2_1 \geq n)`."""
        return math.erfc((n / 2) ** 0.5)


def p_value_of_spectrum(
    x: Scalar,
    values: Float[Array, " k"],
    trace: Scalar,
    norm: Scalar,
    lengths: Scalar,
    n: int,
) -> tuple[Scalar, Scalar]:
    r"""P(Q > x) and by how much it may be off.

    Args:
        x: The value that the sum Q of weighted chi-square variables exceeds.
        values: The largest weights of Q, in ascending order.
        trace: Sum of all weights.
        norm: Sum of their squares.
        lengths: Variance of :math:`h_{ii} = |z_i|^2` over the observations.
        n: Observations that the weights come from.

    Returns:
        The p-value and its error.
    """
    largest = values[-1]
    mean = at_least(trace - jnp.sum(values), 0)
    square = at_least(norm - jnp.sum(values**2), 0)
    # the thinnest tail: the rest of the trace and norm in equal weights
    even = jnp.where(mean > 0, square / jnp.where(mean > 0, mean, 1), 0)
    even = at_most(even, largest)
    # well above rounding, which a compiler may do twice, and differently
    least = 1000 * jnp.finfo(x.dtype).eps
    none = (mean <= least * trace) | (square <= least * norm)
    degrees = jnp.where(none, 1, mean / jnp.where(none, 1, even))
    degrees = jnp.append(jnp.ones_like(values), degrees)
    thin = tail(jnp.where(none, x - mean, x), jnp.append(values, jnp.where(none, 0, even)), degrees)
    # the heaviest: the rest of the norm in the largest weight, and of the trace in a constant
    raised = jnp.sqrt(largest**2 + square)
    heavy = tail(x - mean + (raised - largest), values.at[-1].set(raised))
    p = jnp.exp((thin.log_p + heavy.log_p) / 2)
    between = at_least(jnp.abs(heavy.p - p), jnp.abs(p - thin.p))
    # the variance of p over the spectra of n observations, from those of normal vectors, times how
    # much more the length of these vectors varies
    ratio = at_least(lengths / jnp.where(norm > 0, 2 * norm, 1), 1)
    spread = 2 * jnp.sum(thin.slopes**2 / degrees) * ratio / n
    return p, between + p * jnp.sqrt(spread)
