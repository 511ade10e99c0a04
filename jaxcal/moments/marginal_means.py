r"""Moments t(p, y) with mean zero where y is a draw from p, and what their means over data say.

Each is a number or a few an observation, needs the score of p alone and no constant, and answers a
question that a person can name. The first one here is the **marginal mean**: with
:math:`\Sigma_p` any matrix that is a function of p,

.. math:: t_q = (\Sigma_p s_p(y))_q / \sqrt{(\Sigma_p)_{qq}}, \qquad E_{y \sim p}\, t_q = 0,

and for a Gaussian p with covariance :math:`\Sigma_p` its mean is (claimed minus actual mean of
coordinate q) / (claimed standard deviation), whatever the other coordinates do. The bare score is
:math:`-\Sigma_p^{-1}` times that difference: it asks about a coordinate *given the others*, and
with correlated coordinates it accuses innocent ones, with either sign.

Where scores are not linear :math:`t_q` depends on the other coordinates too, and an error of one
moves the mean of all: a mean other than 0 then says that something is off, not what. Where the mean
:math:`\mu_p` is known, :math:`(\mu_p - y)_q / \sqrt{(\Sigma_p)_{qq}}` tells the shift of a
coordinate for predictions of any shape.
"""

from typing import Any

import jax.numpy as jnp
from jax.scipy.special import betainc, ndtri
from jaxtyping import Array, Bool, Float

from jaxcal.nulls.contract import holm
from jaxcal.nulls.dependence import dependence
from jaxcal.numerics import at_least
from jaxcal.read.families import distribution_of, mean_and_covariance
from jaxcal.results import Means
from jaxcal.typing import Nodes, Points, PredictionsLike, Scalar
from jaxcal.whitening import precisions as preconditioners


def shifts(scores: Points, covariances: Float[Array, "*n d d"]) -> Points:
    r"""The moment of the marginal mean, :math:`(\Sigma s)_q / \sqrt{\Sigma_{qq}}`, [n, d].

    ``scores`` [n, d] at the targets; ``covariances`` [n, d, d], or one [d, d], in the same units,
    functions of the predictions alone. Without units: claimed standard deviations. Cost O(n d^2).
    """
    covariances = jnp.broadcast_to(covariances, (*scores.shape, scores.shape[1]))
    deviations = jnp.sqrt(jnp.diagonal(covariances, axis1=1, axis2=2))
    return jnp.einsum("nij,nj->ni", covariances, scores) / deviations


def offered_covariances(predictions: PredictionsLike) -> Float[Array, "*n d d"] | None:
    """Covariances of predictions whose form is known, or None: normal, Laplace, their mixtures."""
    offered = mean_and_covariance(distribution_of(predictions))
    return None if offered is None else offered.cov


def covariances_of(
    predictions: PredictionsLike | None,
    nodes: Nodes | None,
    at_nodes: Float[Array, "n m d"] | None,
    scores: Points,
) -> Float[Array, "*n d d"] | None:
    r"""Covariances of n predictions: those they offer, else from their scores at m nodes.

    Scores of a Gaussian are linear, so regressing them on the nodes gives its precision
    exactly (`preconditioners.regressed`). Where they are not near linear (R^2 below .9) the
    slope over wide nodes says little of where a prediction has its mass, and one matrix
    serves all such predictions (`in_common`).
    None without nodes, or with no more of them than dimensions.
    Cost O(n m d^2 + n d^3).
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
    r"""One matrix for n predictions: the inverse of the mean of :math:`s s^\top` at the targets.

    With it :math:`\Sigma s` is, to first order, the shift in common of predictions of one shape.
    The same for scores of any signs. Takes n >= d. Cost O(n d^2 + d^3).
    """
    return jnp.linalg.inv(scores.T @ scores / scores.shape[0])


def means(
    values: Float[Array, "n q"], *, level: Scalar | float = 0.05, series: bool = False
) -> Means:
    """Means of q moments over n observations, each with a two-sided Student t test.

    The limits hold what this test does not reject at the level: their confidence is 1 - level.

    Exact in level for independent normal values, and near it from some tens of observations on for
    others. In a ``series`` n observations count as n / inflation, and there is a degree of freedom
    less than stretches of twice the block length (`jaxcal.nulls.dependence`): near the level for
    weak dependence, too high above it for strong (`experiments/dependence`).
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
    """Limits are NaN unless they are those of a shift of the one coordinate."""
    low, high = (jnp.where(exact, limit, jnp.nan) for limit in (means.low, means.high))
    return means._replace(low=low, high=high)


def student_p_value(estimate: Array, error: Array, degrees: Any) -> Array:
    """Two-sided p-value of mean 0 by Student's t; 1 where values have no spread to judge by."""
    degrees = jnp.asarray(degrees, estimate.dtype)
    t2 = (estimate / jnp.where(error > 0, error, 1)) ** 2
    p = betainc(degrees / 2, jnp.asarray(0.5, estimate.dtype), degrees / (degrees + t2))
    return jnp.where(error > 0, p, jnp.where(jnp.isnan(t2), jnp.nan, 1.0))


def student_quantile(probability: Scalar | float, degrees: Array) -> Array:
    """The quantile of Student's t at a probability above 1/2, [*], for degrees of freedom [*].

    The expansion of Cornish and Fisher about the normal quantile, to fourth order. At .975 it is
    too small by .7 % for 2 degrees of freedom, .1 % for 3, and right to 1e-5 from 8 on.
    Source: Abramowitz and Stegun (1964), 26.7.5.
    """
    z = ndtri(jnp.asarray(probability, degrees.dtype))
    t = z
    for power, (divisor, *odd) in enumerate(_CORNISH_FISHER, start=1):
        t = t + sum(c * z ** (2 * k + 1) for k, c in enumerate(odd)) / (divisor * degrees**power)
    return t


# a divisor, then the coefficients of z, z^3, z^5, .., one line a power of 1 / degrees of freedom
_CORNISH_FISHER = (
    (4, 1, 1),
    (96, 3, 16, 5),
    (384, -15, 17, 19, 3),
    (92160, -945, -1920, 1482, 776, 79),
)
