"""Compute p-values of the hypothesis that J features, one per location, have mean 0.

`Signs` compares the estimate with its values under random signs; `F` is a formula for Hotelling's
statistic.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.special import betainc, gammaincc
from jaxtyping import Array, Bool, Float

from jaxcal.nulls import contract
from jaxcal.nulls.resampling import Wild
from jaxcal.numerics import independent_signs
from jaxcal.read import convert
from jaxcal.typing import Key, Scalar

COLLINEAR = 1e4  # largest condition number of the features' correlations without a warning


class Judgement(NamedTuple):
    """Outcome of a test at locations: ``statistic`` [], ``p_value`` [], its draws under calibration
    (``samples`` [b], none for a formula), and whether nearly collinear features invalidate the
    level (``collinear`` [])."""

    statistic: Scalar
    p_value: Scalar
    samples: Float[Array, " b"]
    collinear: Bool[Array, ""]


@runtime_checkable
class LocationNull(Protocol):
    """Protocol of nulls for the hypothesis that features at J locations have mean 0.

    ``judge(key, z)`` takes the features z [n, J] and returns a `Judgement`. ``least(j)`` is the
    smallest number of observations for which the null is defined, ``enough(j)`` the smallest for
    which its level is close to nominal, and ``least_p_value(n)`` the smallest possible p-value for
    n observations.
    """

    def judge(self, key: Key, z: Float[Array, "n j"], /) -> Judgement: ...

    def least(self, j: int, /) -> int: ...

    def enough(self, j: int, /) -> int: ...

    def least_p_value(self, n: int, /) -> float: ...


class Signs(eqx.Module):
    r"""Null that compares the estimate :math:`\|\bar Z\|^2 / J` with its values under random signs.

    :math:`\bar Z` is the mean of the features at J locations; each observation gets one sign.
    With 16 observations or more the level holds for normal forecasts (`experiments/ucme_level`),
    also with close locations or more locations than observations. p is NaN if all features are 0,
    which happens if every observation is far from all locations.

    Args:
        n_draws: Number of draws of signs.

    Cost: O(n J n_draws).

    Source: as `jaxcal.nulls.Wild`; Widmann et al. (2021), Section 3.3, for the estimate.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> null = jaxcal.ucme.Signs(n_draws=200)
        >>> result = jaxcal.ucme_test(1, dist.Normal(centers, 1.0), centers + noise, null=null)
        >>> result.null_samples.shape
        (200,)
    """

    n_draws: int = eqx.field(
        default=500, static=True, converter=lambda value: convert.integer(value, "n_draws")
    )

    def judge(self, key: Key, z: Float[Array, "n j"]) -> Judgement:
        n, j = z.shape
        means = jnp.mean(z, axis=0)
        drawn = independent_signs(key, n, self.n_draws, z.dtype).T @ z / n
        statistic, samples = jnp.sum(means**2) / j, jnp.sum(drawn**2, axis=1) / j
        p = contract.p_value(statistic[None], samples[None])[0]
        any_near = jnp.any(z != 0)
        return Judgement(statistic, jnp.where(any_near, p, jnp.nan), samples, jnp.zeros((), bool))

    def least(self, j: int) -> int:
        return 2

    def enough(self, j: int) -> int:
        return 10

    def least_p_value(self, n: int) -> float:
        return Wild(self.n_draws).least_p_value(n)


class F(eqx.Module):
    r"""Null for Hotelling's statistic Q: :math:`\frac{n - J}{J (n - 1)} Q \sim F_{J, n - J}`.

    Exact for n normal features at J locations. With skewed features it rejects too often: at level
    .05, with 5 locations in one dimension, .10 of calibrated models at n = 16, .09 at 32, .08 at 64
    and 128 (`experiments/ucme_level`; .13 at 16 with the default bandwidths). The result warns
    below 25 observations per location.

    Cost: O(n J^2 + J^3).

    Source: Hotelling (1931), for the mean of a normal distribution.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 200))
        >>> null = jaxcal.ucme.F()
        >>> jaxcal.ucme_test(1, dist.Normal(centers, 1.0), centers + 0.8 + noise, null=null).verdict
        'rejected'
    """

    def __call__(self, q: Scalar, n: int, j: int) -> Scalar:
        a, b = (jnp.asarray(x / 2, q.dtype) for x in (n - j, j))
        if q.dtype != jnp.float32 or n < max(1000, 200 * j):
            return betainc(a, b, 1 / (1 + q / (n - 1)))
        # betainc loses digits in float32; Bartlett (1938), to second order (Box, 1949)
        m = n - j / 2 - 1
        x = m * jnp.log1p(q / (n - 1)) / 2
        first, third = gammaincc(b, x), gammaincc(b + 2, x)
        return first + j * (j**2 - 4) / (48 * m**2) * (third - first)

    def judge(self, key: Key, z: Float[Array, "n j"]) -> Judgement:
        q, condition = hotelling(z)
        return Judgement(q, self(q, *z.shape), jnp.zeros(0, z.dtype), ~(condition < COLLINEAR))

    def least(self, j: int) -> int:
        return j + 1

    def enough(self, j: int) -> int:
        return 25 * j

    def least_p_value(self, n: int) -> float:
        return 0.0


def hotelling(z: Float[Array, "n j"]) -> tuple[Scalar, Scalar]:
    r"""Return :math:`Q = n \bar z^\top S^{-1} \bar z` and the condition number of z's correlations.

    S is the sample covariance of the columns of z [n, J]. Q is computed from eigenvectors of their
    correlation matrix, and is NaN if that is numerically singular. Cost O(n J^2 + J^3).
    """
    n, j = z.shape
    mean, deviation = jnp.mean(z, axis=0), jnp.std(z, axis=0, ddof=1)
    deviation = jnp.where(deviation > 0, deviation, 1)
    scaled = (z - mean[None]) / deviation[None]
    values, vectors = jnp.linalg.eigh(scaled.T @ scaled / (n - 1))
    condition = jnp.where(values[0] > 0, values[-1] / values[0], jnp.inf)
    singular = ~(values[0] > j * jnp.finfo(z.dtype).eps * values[-1])
    whitened = (mean / deviation) @ vectors / jnp.sqrt(jnp.where(singular, 1, values))
    return jnp.where(singular, jnp.nan, n * jnp.sum(whitened**2)), condition
