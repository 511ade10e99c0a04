r"""Marginal means: moments t(p, y) that attribute shifts to coordinates, and tests of their means.

They need the score of p and no constant. With :math:`\Sigma_p` any matrix that is a function of p,

.. math:: t_q = (\Sigma_p s_p(y))_q / \sqrt{(\Sigma_p)_{qq}}, \qquad E_{y \sim p}\, t_q = 0.

For a Gaussian p with covariance :math:`\Sigma_p` the mean of t_q is (claimed minus actual mean of
coordinate q) / (claimed standard deviation), whatever the other coordinates are. The score itself
is :math:`-\Sigma_p^{-1}` times that difference: it concerns a coordinate *given the others* and,
with correlations, also indicates correct coordinates, with either sign.

For scores that are not linear :math:`t_q` depends on the other coordinates too: a nonzero mean then
shows that some coordinate is wrong, but not which one. If the mean :math:`\mu_p` is known,
:math:`(\mu_p - y)_q / \sqrt{(\Sigma_p)_{qq}}` is the shift of a coordinate for predictions of any
shape.
"""

from typing import Any

import jax.numpy as jnp
from jax.scipy.special import betainc, ndtri
from jaxtyping import Array, Bool, Float

from jaxcal.nulls.contract import holm
from jaxcal.nulls.resampling import dependence
from jaxcal.numerics import at_least
from jaxcal.read.families import distribution_of, mean_and_covariance
from jaxcal.results import Means
from jaxcal.typing import Nodes, Points, PredictionsLike, Scalar
from jaxcal.whitening import precisions as preconditioners


def shifts(scores: Points, covariances: Float[Array, "*n d d"]) -> Points:
    r"""Return the moment of the marginal mean, :math:`(\Sigma s)_q / \sqrt{\Sigma_{qq}}`, [n, d].

    ``scores`` [n, d] at the targets; ``covariances`` [n, d, d], or one [d, d], in the same units,
    functions of the predictions alone. In claimed standard deviations. Cost O(n d^2).
    """
    covariances = jnp.broadcast_to(covariances, (*scores.shape, scores.shape[1]))
    deviations = jnp.sqrt(jnp.diagonal(covariances, axis1=1, axis2=2))
    return jnp.einsum("nij,nj->ni", covariances, scores) / deviations


def offered_covariances(predictions: PredictionsLike) -> Float[Array, "*n d d"] | None:
    """Return covariances of normals, Laplace distributions and their mixtures; None for others."""
    offered = mean_and_covariance(distribution_of(predictions))
    return None if offered is None else offered.cov


def covariances_of(
    predictions: PredictionsLike | None,
    nodes: Nodes | None,
    at_nodes: Float[Array, "n m d"] | None,
    scores: Points,
) -> Float[Array, "*n d d"] | None:
    r"""Return covariances of n predictions: known ones, else from their scores at m nodes.

    Scores of a Gaussian are linear, so their regression on the nodes gives its precision exactly
    (`preconditioners.regressed`). If they are not nearly linear (R^2 below .9), the slope over wide
    nodes does not describe the bulk of a prediction, and all such predictions share one matrix
    (`in_common`). None unless there are more nodes than dimensions. Cost O(n m d^2 + n d^3).
    """
    offered = None if predictions is None else offered_covariances(predictions)
    if offered is not None:
        return offered
    if nodes is None or at_nodes is None or nodes.shape[0] <= nodes.shape[1]:
        return None
    precisions, fitted = preconditioners.regressed(nodes, at_nodes)
    z = nodes - jnp.mean(nodes, axis=0, keepdims=True)
    s = at_nodes - jnp.mean(at_nodes, axis=1, keepdims=True)
    m, d = nodes.shape
    misfit = s + jnp.einsum("md,nde->nme", z, precisions)
    unexplained = jnp.sum(misfit**2, axis=(1, 2)) / max(m - d - 1, 1)
    linear = unexplained <= 0.1 * jnp.sum(s**2, axis=(1, 2)) / (m - 1)
    return jnp.where(linear[:, None, None], fitted, in_common(scores)[None])


def in_common(scores: Points) -> Float[Array, "d d"]:
    r"""Return one matrix for n predictions: the inverse of the mean of :math:`s s^\top` at targets.

    With it :math:`\Sigma s` is, to first order, the common shift of predictions of one shape. It
    does not depend on the signs of scores. Needs n >= d. Cost O(n d^2 + d^3).
    """
    return jnp.linalg.inv(scores.T @ scores / scores.shape[0])


def means(
    values: Float[Array, "n q"], *, level: Scalar | float = 0.05, series: bool = False
) -> Means:
    """Return the means of q moments over n observations, with two-sided Student t tests.

    Confidence limits have confidence 1 - level. The level is exact for independent normal values,
    and close for others from some tens of observations. In a ``series`` n observations count as
    n / inflation, with one degree of freedom less than blocks of twice the block length
    (`jaxcal.nulls.resampling`): close to the level for weak dependence, too high for strong
    (`experiments/dependence`).
    """
    n, q = values.shape
    count = stretches = jnp.full(q, float(n), values.dtype)
    if series:
        block, inflation = dependence(values)
        count, stretches = n / inflation, n / at_least(2 * block, 1.0)
    degrees = at_least(stretches - 1, 1.0)
    estimate = jnp.mean(values, axis=0)
    error = jnp.std(values, axis=0, ddof=1) / jnp.sqrt(count)
    p = student_p_value(estimate, error, degrees)
    reach = student_quantile(1 - level / 2, degrees) * error
    return Means(estimate, error, p, holm(p), estimate - reach, estimate + reach)


def limited(means: Means, exact: Bool[Array, ""] | bool) -> Means:
    """Return the means with limits set to NaN unless they concern one coordinate only."""
    low, high = (jnp.where(exact, limit, jnp.nan) for limit in (means.low, means.high))
    return means._replace(low=low, high=high)


def student_p_value(estimate: Array, error: Array, degrees: Any) -> Array:
    """Return the two-sided p-value of mean 0 by Student's t; 1 for values without spread."""
    degrees = jnp.asarray(degrees, estimate.dtype)
    t2 = (estimate / jnp.where(error > 0, error, 1)) ** 2
    p = betainc(degrees / 2, jnp.asarray(0.5, estimate.dtype), degrees / (degrees + t2))
    return jnp.where(error > 0, p, jnp.where(jnp.isnan(t2), jnp.nan, 1.0))


def student_quantile(probability: Scalar | float, degrees: Array) -> Array:
    """Return the quantile of Student's t at a probability above 1/2, [*], for degrees [*].

    Expansion of Cornish and Fisher about the normal quantile, to fourth order. At .975 it is too
    small by .7 % for 2 degrees of freedom, .1 % for 3, and accurate to 1e-5 from 8 on.
    Source: Abramowitz and Stegun (1964), 26.7.5.
    """
    z = ndtri(jnp.asarray(probability, degrees.dtype))
    t = z
    for power, (divisor, *odd) in enumerate(_CORNISH_FISHER, start=1):
        t = t + sum(c * z ** (2 * k + 1) for k, c in enumerate(odd)) / (divisor * degrees**power)
    return t


# for each power of 1 / degrees of freedom: a divisor, then the coefficients of z, z^3, z^5, ..
_CORNISH_FISHER = (
    (4, 1, 1),
    (96, 3, 16, 5),
    (384, -15, 17, 19, 3),
    (92160, -945, -1920, 1482, 776, 79),
)
