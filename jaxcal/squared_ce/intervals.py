r"""Intervals for a squared calibration error, and a paired test of two risks.

Both go beyond the paper. For a residual r fitted on other data,

.. math:: \psi(p, o) = 2 \langle p - o, r(p)\rangle - |r(p)|^2, \qquad
          E\,\psi = E|r^*|^2 - E|r - r^*|^2

so the mean of psi (the one-step estimate) is at most the squared error in expectation, and its
error is of second order in that of r, where the plug-in mean of |r|^2 has one of first order. Of
several r the largest mean is the closest, so the largest of their upper ends is the one to take.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float

from jaxcal.numerics import at_least, largest
from jaxcal.results import Interval
from jaxcal.squared_ce.functions import jackknife
from jaxcal.typing import Scalar


class OneStep(NamedTuple):
    """``squared`` []: the one-step estimate of the squared error, which may be negative.

    ``standard_error`` []: the larger of that seen and that claimed. ``interval``: normal, right
    where the residual is estimated well (its squared error small against the standard error).
    ``lower_bound`` []: one-sided with the same confidence; the squared error is above it also where
    the residual is estimated badly.
    """

    squared: Float[Array, ""]
    standard_error: Float[Array, ""]
    interval: Interval
    lower_bound: Float[Array, ""]


class RiskDifference(NamedTuple):
    """Is the risk of the first function lower than that of the second, on the same pairs?

    ``difference`` [] first minus second; ``standard_error`` [] by the jackknife; ``p_value`` []
    one-sided: small where the first is lower. ``interval`` two-sided.
    """

    difference: Float[Array, ""]
    standard_error: Float[Array, ""]
    p_value: Float[Array, ""]
    interval: Interval


def one_step_terms(
    residuals: Float[Array, "n d"], estimated: Float[Array, "n d"]
) -> Float[Array, " n"]:
    """psi of each observation, from its residual and the estimated one at its input."""
    return jnp.sum(2 * residuals * estimated - estimated**2, axis=1)


def claimed_parts(
    inputs: Float[Array, "n d"], estimated: Float[Array, "n d"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    r"""The r of the outcome under the prediction: the mean :math:`\sum_k p_k r_k` and that of
    the square, :math:`\sum_k p_k r_k^2`. Those of a vector are the sums over its classes."""
    return jnp.sum(inputs * estimated, axis=1), jnp.sum(inputs * estimated**2, axis=1)


def one_step(
    terms: Float[Array, " n"], level: float = 0.05, claimed: Float[Array, " n"] | None = None
) -> OneStep:
    """Return the one-step estimate of the squared error and its intervals, from the terms psi [n].

    ``claimed`` [n]: variances of the terms given the predictions, were these calibrated. An outcome
    that no label shows adds nothing to the observed variance, but something to the claimed one; the
    standard error is the larger of the two.
    """
    n, mean = terms.shape[0], jnp.mean(terms)
    error = jnp.std(terms, ddof=1) / n**0.5 if n > 1 else jnp.full((), jnp.nan, terms.dtype)
    if claimed is not None:
        error = at_least(error, jnp.sqrt(jnp.mean(claimed) / n))
    half = _normal_quantile(1 - level / 2, error) * error
    interval = Interval(mean - half, mean + half, level)
    return OneStep(mean, error, interval, mean - _normal_quantile(1 - level, error) * error)


def compare_risks(
    first: Float[Array, " n"], second: Float[Array, " n"], level: float = 0.05
) -> RiskDifference:
    """Paired test that the first of two functions has the lower risk on the same observations.

    Both functions have to be fitted on other data. The standard error is that of a U-statistic by
    the jackknife, which is too large rather than too small where the two functions are nearly the
    same. Identical functions have a difference of 0 and p = 1 / 2.

    ``first`` and ``second`` [n] are the row means of the two risks.
    """
    gaps = first - second
    difference, error = jnp.mean(gaps), jackknife(gaps)
    # rounding: rows of equal functions differ in the last digits
    size = largest(jnp.abs(first))
    same = largest(jnp.abs(gaps)) <= 1e3 * jnp.finfo(gaps.dtype).eps * size
    z = jnp.where(same, 0.0, difference / jnp.where(same, 1.0, error))
    half = _normal_quantile(1 - level / 2, error) * error
    interval = Interval(difference - half, difference + half, level)
    return RiskDifference(difference, error, ndtr(z), interval)


def root(interval: Interval, most: float = np.inf) -> Interval:
    """Return the interval of a square on the scale of its root; ends below 0 count as 0, those
    above the largest possible square ``most`` as that."""
    low, high = (np.sqrt(np.clip(np.asarray(end), 0, most)) for end in interval[:2])
    return Interval(low, high, interval.level)  # pyright: ignore[reportArgumentType]


def _normal_quantile(probability: float, like: Array) -> Scalar:
    """Return the normal quantile in the type of the other numbers, which a float64 would widen."""
    return ndtri(jnp.asarray(probability, like.dtype))
