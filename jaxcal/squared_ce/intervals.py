r"""Intervals for a squared calibration error, and a paired test of two risks.

Both go beyond the paper. For a residual r fitted on other data,

.. math:: \psi(p, o) = 2 \langle p - o, r(p)\rangle - |r(p)|^2, \qquad
          E\,\psi = E|r^*|^2 - E|r - r^*|^2

so the mean of psi (the one-step estimate) is at most the squared error in expectation. Its error is
of second order in the error of r; that of the plug-in mean of |r|^2 is of first order. Of several
r, the one with the largest expected psi is closest.
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

    ``standard_error`` []: the larger of the observed and the claimed one. ``interval``: normal;
    valid if the residual is estimated well (its squared error is small against the standard error).
    ``lower_bound`` []: one-sided, of the same confidence; valid also if it is estimated badly.
    """

    squared: Float[Array, ""]
    standard_error: Float[Array, ""]
    interval: Interval
    lower_bound: Float[Array, ""]


class RiskDifference(NamedTuple):
    """Comparison of the risks of two functions on the same pairs.

    ``difference`` []: first minus second. ``standard_error`` []: by the jackknife. ``p_value`` []:
    one-sided, small if the first risk is lower. ``interval``: two-sided.
    """

    difference: Float[Array, ""]
    standard_error: Float[Array, ""]
    p_value: Float[Array, ""]
    interval: Interval


def one_step_terms(
    residuals: Float[Array, "n d"], estimated: Float[Array, "n d"]
) -> Float[Array, " n"]:
    """Return psi of each observation, from its residual and the estimated residual at its input."""
    return jnp.sum(2 * residuals * estimated - estimated**2, axis=1)


def claimed_parts(
    inputs: Float[Array, "n d"], estimated: Float[Array, "n d"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    r"""Return moments of r at an outcome drawn from the prediction: the mean :math:`\sum_k p_k r_k`
    and the mean square, :math:`\sum_k p_k r_k^2`."""
    return jnp.sum(inputs * estimated, axis=1), jnp.sum(inputs * estimated**2, axis=1)


def one_step(
    terms: Float[Array, " n"], level: float = 0.05, claimed: Float[Array, " n"] | None = None
) -> OneStep:
    """Return the one-step estimate of the squared error and its intervals, from the terms psi [n].

    ``claimed`` [n]: variances of the terms for calibrated predictions. The standard error is the
    larger of the observed and the claimed one: an outcome that did not occur adds to the latter
    only.
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
    """Test whether the first of two functions has the lower risk on the same observations.

    Both functions must be fitted on other data. The standard error is the jackknife's for a
    U-statistic, which is rather too large if the two functions are nearly equal. Identical
    functions have difference 0 and p = 1 / 2. ``first`` and ``second`` [n]: row means of the two
    risks.
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
    """Return the root of an interval of a square, whose ends are clipped to [0, ``most``]; ``most``
    is the largest possible square."""
    low, high = (np.sqrt(np.clip(np.asarray(end), 0, most)) for end in interval[:2])
    return Interval(low, high, interval.level)  # pyright: ignore[reportArgumentType]


def _normal_quantile(probability: float, like: Array) -> Scalar:
    """Return the normal quantile in the type of ``like``."""
    return ndtri(jnp.asarray(probability, like.dtype))
