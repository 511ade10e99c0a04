r"""Attribute miscalibration to errors of mean, spread and correlation of coordinates.

Let :math:`c_p` and :math:`\Sigma_p` be the mean and covariance of a prediction p (the **claimed**
ones), :math:`s_p = \nabla \log p` and :math:`\sigma^2` the diagonal of :math:`\Sigma_p`. If y ~ p,
Stein's identity holds for the **implied residual** :math:`w = -\Sigma_p s_p(y) / \sigma` and the
**plain residual** :math:`z = (y - c_p) / \sigma`:

.. math:: E\,w = 0, \qquad E\,w_q z_l = (\Sigma_p)_{ql} / (\sigma_q \sigma_l).

If p is Gaussian, then w = z, and :math:`w_q` depends on coordinate q alone (`claims` checks this on
the data). The mean of :math:`w_q` is then the marginal shift of coordinate q. The covariance of w
and z is that of the targets in units of :math:`\sigma`; its correlations depend on neither shifts
nor spreads. In contrast, entry q of the score :math:`-\Sigma_p^{-1} (y - c_p)` tests coordinate q
*given the others*, and errors of coordinates that are correlated with q affect this entry.
If scores are not linear, a nonzero mean of w shows that some coordinate is wrong, but not which.
If the mean of p is known, it is used as :math:`c_p`; the mean of z is then the shift of a
coordinate for predictions of any shape. `shifts` are -w: claimed minus actual mean.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxcal.nulls.contract import holm
from jaxcal.nulls.limits import student_tail
from jaxcal.nulls.resampling import dependence
from jaxcal.numerics import at_least, at_most, bisected
from jaxcal.read.families import Normals, distribution_of, mean_and_covariance, offered_moments
from jaxcal.read.precisions import inverses, slopes
from jaxcal.results import Means
from jaxcal.typing import Nodes, Points, Predictions, PredictionsLike, Scalar


def shifts(scores: Points, covariances: Float[Array, "*n d d"]) -> Points:
    r"""Return the moment of the marginal mean, :math:`(\Sigma s)_q / \sqrt{\Sigma_{qq}}`, [n, d].

    ``scores`` s [n, d] are at the targets; ``covariances`` :math:`\Sigma` [n, d, d], or one [d, d]
    for all, must depend on predictions only. The result has no unit. Cost O(n d^2).
    """
    covariances = jnp.broadcast_to(covariances, (*scores.shape, scores.shape[1]))
    deviations = jnp.sqrt(jnp.diagonal(covariances, axis1=1, axis2=2))
    return jnp.einsum("nij,nj->ni", covariances, scores) / deviations


def covariances_of(
    predictions: PredictionsLike | None,
    nodes: Nodes | None,
    at_nodes: Float[Array, "n m d"] | None,
    scores: Points,
) -> Float[Array, "*n d d"] | None:
    """Return covariances of n predictions: in closed form, else from their scores at m nodes.

    Scores of a Gaussian are linear, so their regression on the nodes gives its precision exactly
    (`jaxcal.read.precisions.slopes`). If the R^2 of this regression is below .9 for a
    prediction, its covariance is the matrix `in_common` of all scores at targets instead. None if
    there are no nodes, or m <= d. Cost O(n m d^2 + n d^3).
    """
    offered = None if predictions is None else mean_and_covariance(distribution_of(predictions))
    if offered is not None:
        return offered.cov
    if nodes is None or at_nodes is None or nodes.shape[0] <= nodes.shape[1]:
        return None
    precisions, fitted, _ = inverses(slopes(nodes, at_nodes, "full"))
    z = nodes - jnp.mean(nodes, axis=0, keepdims=True)
    s = at_nodes - jnp.mean(at_nodes, axis=1, keepdims=True)
    m, d = nodes.shape
    misfit = s + jnp.einsum("md,nde->nme", z, precisions)
    unexplained = jnp.sum(misfit**2, axis=(1, 2)) / max(m - d - 1, 1)
    linear = unexplained <= 0.1 * jnp.sum(s**2, axis=(1, 2)) / (m - 1)
    return jnp.where(linear[:, None, None], fitted, in_common(scores)[None])


def in_common(scores: Points) -> Float[Array, "d d"]:
    r"""Return one covariance for n predictions, :math:`\Sigma = (n^{-1} \sum_i s_i s_i^\top)^{-1}`.

    s_i [d] are the scores at the targets. If predictions have the same shape and the same small
    shift, the mean of :math:`\Sigma s_i` is nearly this shift. Needs n >= d. Cost O(n d^2 + d^3).
    """
    return jnp.linalg.inv(scores.T @ scores / scores.shape[0])


def means(
    values: Float[Array, "n q"], *, level: Scalar | float = 0.05, series: bool = False
) -> Means:
    """Return the means of q moments over n observations, with two-sided Student t tests.

    Limits have confidence 1 - level. Tests have level ``level`` for independent normal values, and
    nearly this level for other independent values if n is some tens or more. ``series``: rows are
    in order of time and may be dependent. Standard errors and degrees of freedom then come from
    `jaxcal.nulls.resampling.dependence`. Strong dependence raises the error rate above ``level``
    (`experiments/dependence`).
    """
    n, q = values.shape
    count = jnp.full(q, float(n), values.dtype)
    degrees = at_least(count - 1, 1.0)
    if series:
        serial = dependence(values)
        count, degrees = n / serial.inflation, serial.degrees(n)
    estimate = jnp.mean(values, axis=0)
    # differences to a row: exactly 0 for equal values
    error = jnp.std(values - values[:1], axis=0, ddof=1) / jnp.sqrt(count)
    p = student_p_value(estimate, error, degrees)
    margin = student_quantile(1 - level / 2, degrees) * error
    return Means(estimate, error, p, holm(p), estimate - margin, estimate + margin)


def means_of(groups: Sequence[Float[Array, "n _"]], **options: Any) -> list[Means]:
    """Return the `means` of each group of moments, with Holm's correction within a group."""
    together = means(jnp.concatenate(groups, axis=1), **options)
    ends = np.cumsum([group.shape[1] for group in groups])[:-1]
    each = (Means(*parts) for parts in zip(*(jnp.split(a, ends) for a in together), strict=True))
    return [of._replace(p_adjusted=holm(of.p_value)) for of in each]


def limited(means: Means, exact: Bool[Array, ""] | bool) -> Means:
    """Return the means, with confidence limits of NaN if ``exact`` (see `Claims`) is False."""
    low, high = (jnp.where(exact, limit, jnp.nan) for limit in (means.low, means.high))
    return means._replace(low=low, high=high)


def student_p_value(estimate: Array, error: Array, degrees: Any) -> Array:
    """Return the two-sided p-value of mean 0 by Student's t; 1 for an error of 0, NaN for NaN."""
    t = jnp.abs(estimate) / jnp.where(error > 0, error, 1)
    p = 2 * student_tail(t, degrees)
    return jnp.where(error > 0, p, jnp.where(jnp.isnan(t + error), jnp.nan, 1.0))


def student_quantile(probability: Scalar | float, degrees: Array) -> Array:
    """Return the quantile of Student's t at a probability above 1/2, in the shape of ``degrees``.

    By bisection of `student_tail`, in logarithms; infinity for 0 degrees, NaN for NaN. From 1e8
    degrees on it is that of 1e8, the normal quantile to 1e-8.
    """
    beyond = 1 - jnp.asarray(probability, degrees.dtype)
    degrees = at_most(degrees, 1e8)
    low, high = bisected(
        lambda log_t: student_tail(jnp.exp(log_t), degrees) > beyond,
        jnp.full_like(degrees, -20),
        jnp.full_like(degrees, 40),
        40,
    )
    quantile = jnp.where(degrees > 0, jnp.exp((low + high) / 2), jnp.inf)
    return jnp.where(jnp.isnan(degrees), jnp.nan, quantile)


LEAK = 0.1  # largest effect of nonlinear scores on a mean, in its standard errors
NEARLY = 1e-6  # least variance, and least distance of correlations from 1


class Claims(NamedTuple):
    """Means (``centers`` [n, d]) and ``covariances`` [n, d, d] of the predictions, with scores.

    ``scores`` [n, d] at the targets are those of the predictions or, if moments are known, of
    Gaussians with these moments. ``exact`` []: True if errors of a coordinate affect the mean
    residual of this coordinate only. ``gaussian`` []: True if all predictions are Gaussian.
    """

    centers: Points
    covariances: Float[Array, "n d d"]
    scores: Points
    exact: Bool[Array, ""]
    gaussian: Bool[Array, ""]


class Faults(NamedTuple):
    """`Means` of errors of mean, spread and correlation, as in `jaxcal.results.Coordinates`. All
    have expectation 0 under calibration. ``correlation`` is None in one dimension."""

    mean: Means
    spread: Means
    correlation: Means | None


def claims(
    predictions: Predictions | None,
    nodes: Nodes | None,
    at_nodes: Float[Array, "n m d"] | None,
    ys: Points,
    scores: Points,
) -> Claims | None:
    r"""Return `Claims` from known moments, otherwise from scores at nodes; None without these.

    ``ys`` and ``nodes`` are in the units of the predictions; ``scores`` are at ``ys``. Known
    moments are ``exact`` for every shape of predictions. Otherwise scores at nodes are regressed on
    the nodes, :math:`s_p(z) \approx -\Sigma_p^{-1} (z - c_p)`. This is ``exact`` if the residuals w
    and z of the module docstring nearly agree at the targets: :math:`(n^{-1} \sum_i (w_i -
    z_i)^2)^{1/2}` is at most `LEAK` standard errors of the mean of z in each coordinate.
    """
    n, d = ys.shape
    offered = None if predictions is None else offered_moments(predictions)
    if predictions is not None and offered is not None:
        centers = jnp.broadcast_to(offered.mean, (n, d))
        covariances = jnp.broadcast_to(offered.cov, (n, d, d))
        finite = jnp.all(jnp.isfinite(centers)) & jnp.all(jnp.isfinite(covariances))
        normal = isinstance(distribution_of(predictions), Normals)
        linear = jnp.linalg.solve(covariances, (centers - ys)[..., None])[..., 0]
        return Claims(centers, covariances, linear, finite, finite & normal)
    fitted = covariances_of(None, nodes, at_nodes, scores)
    if fitted is None:
        return None
    assert nodes is not None
    assert at_nodes is not None
    covariances = jnp.broadcast_to(fitted, (n, d, d))
    centers = jnp.mean(nodes, axis=0)[None] + jnp.einsum(
        "nij,nj->ni", covariances, jnp.mean(at_nodes, axis=1)
    )
    implied, plain, _ = _residuals(ys, scores, centers, covariances)
    mean_square = jnp.mean((implied - plain) ** 2, axis=0)
    linear = jnp.all(mean_square <= LEAK**2 * jnp.var(plain, axis=0) / n)
    return Claims(centers, covariances, scores, linear, linear)


def _residuals(
    ys: Points, scores: Points, centers: Points, covariances: Float[Array, "n d d"]
) -> tuple[Points, Points, Points]:
    """Return w, z (see the module docstring) and claimed standard deviations, each [n, d]."""
    deviations = jnp.sqrt(jnp.diagonal(covariances, axis1=1, axis2=2))
    implied = -jnp.einsum("nij,nj->ni", covariances, scores) / deviations
    return implied, (ys - centers) / deviations, deviations


def faults(
    ys: Points,
    scores: Points,
    centers: Points,
    covariances: Float[Array, "n d d"],
    *,
    level: Scalar | float = 0.05,
    series: bool = False,
    exact: Bool[Array, ""] | bool = True,
    gaussian: Bool[Array, ""] | bool = True,
) -> Faults:
    """Return `Faults` from targets [n, d] and the fields of `Claims`, in the same units.

    Limits use Student's t. Limits of spreads and correlations use the jackknife too, on a log scale
    for spreads and with Fisher's z for correlations. If ``exact`` is False, limits of means are
    NaN. If ``gaussian`` is False, all values of spreads and correlations are NaN. ``series`` is as
    in `means`. Cost O(n d^2 + n d^3).
    """
    implied, plain, deviations = _residuals(ys, scores, centers, covariances)
    variances = _covariances(implied, plain)
    variance, changes = _positive(*variances)  # ratios of actual to claimed variances
    moments = [-implied, _pseudo_values(-jnp.log(variance) / 2, -changes / 2)]
    d = ys.shape[1]
    claim = None
    if d > 1:
        i, j = np.triu_indices(d, 1)
        across = _covariances(implied[:, i], plain[:, j])
        back = _covariances(implied[:, j], plain[:, i])
        pairs = jax.tree.map(lambda a, b: (a + b) / 2, across, back)
        claimed = covariances[:, i, j] / (deviations[:, i] * deviations[:, j])
        first, second = (jax.tree.map(lambda v, k=k: v[..., k], variances) for k in (i, j))
        claim, differences = _correlations(pairs, first, second, claimed)
        moments.append(differences)
    mean, *others = means_of(moments, level=level, series=series)
    spread, *of_pairs = jax.tree.map(lambda part: jnp.where(gaussian, part, jnp.nan), others)
    correlation = None if claim is None else _unfishered(claim, *of_pairs)
    return Faults(limited(mean, exact), spread, correlation)


def _covariances(
    w: Float[Array, "n q"], z: Float[Array, "n q"]
) -> tuple[Float[Array, " q"], Float[Array, "n q"]]:
    """Return covariances of columns of w and z, and their changes if row i is left out.

    The changes are of order 1 / n, and are multiplied by n - 1 in `_pseudo_values`: as differences
    of two covariances they would be lost to rounding for many observations."""
    n = w.shape[0]
    products = (w - jnp.mean(w, axis=0)[None]) * (z - jnp.mean(z, axis=0)[None])
    covariance = jnp.sum(products, axis=0) / (n - 1)
    return covariance, (covariance[None] - products * (n / (n - 1))) / (n - 2)


def _pseudo_values(estimate: Float[Array, " q"], changes: Float[Array, "n q"]) -> Points:
    """Return n jackknife pseudo-values from an estimate and its changes if row i is left out.

    The mean of the pseudo-values is the bias-corrected estimate; the standard error of this mean is
    used as that of the estimate.
    Source: Tukey (1958); Efron and Tibshirani (1993), Section 11.5."""
    return estimate[None] - (changes.shape[0] - 1) * changes


def _positive(
    variance: Float[Array, " q"], changes: Float[Array, "n q"]
) -> tuple[Float[Array, " q"], Float[Array, "n q"]]:
    """Return variances of at least `NEARLY`, and changes of their logarithms."""
    least = at_least(variance, NEARLY)
    ratio = at_least(changes - (least - variance)[None], NEARLY - least[None]) / least[None]
    return least, jnp.log1p(at_least(ratio, NEARLY - 1))


def _fisher(
    r: Float[Array, " q"], changes: Float[Array, "n q"]
) -> tuple[Float[Array, " q"], Float[Array, "n q"]]:
    """Return Fisher's z of correlations, with a distance from 1 of at least `NEARLY`, and its
    changes: the difference of z for r and s is the arctanh of (r - s) / (1 - r s)."""
    inside = at_most(at_least(r, NEARLY - 1), 1 - NEARLY)
    changes = at_least(changes + (r - inside)[None], NEARLY - 1 - inside[None])
    changes = at_most(changes, 1 - NEARLY - inside[None])
    product = inside[None] * (inside[None] + changes)
    return jnp.arctanh(inside), jnp.arctanh(changes / (1 - product))


def _correlations(
    pairs: tuple[Float[Array, " q"], Float[Array, "n q"]],
    first: tuple[Float[Array, " q"], Float[Array, "n q"]],
    second: tuple[Float[Array, " q"], Float[Array, "n q"]],
    claimed: Float[Array, "n q"],
) -> tuple[Float[Array, " q"], Points]:
    """Return Fisher's z of claimed correlations, and pseudo-values of claimed minus actual z.
    ``pairs`` (covariances), ``first``, ``second`` (variances) are those of `_covariances`."""
    (one, log_one), (other, log_other) = _positive(*first), _positive(*second)
    root, growth = jnp.sqrt(one * other), jnp.expm1((log_one + log_other) / 2)
    r = pairs[0] / root
    actual, moved = _fisher(r, (pairs[1] / root[None] - r[None] * growth) / (1 + growth))
    # exact if all claims are equal
    center = claimed[0] + jnp.mean(claimed - claimed[:1], axis=0)
    claim, claim_moved = _fisher(center, (center[None] - claimed) / (claimed.shape[0] - 1))
    return claim, _pseudo_values(claim - actual, claim_moved - moved)


def _unfishered(claim: Float[Array, " q"], differences: Means) -> Means:
    """Return differences of correlations from ``differences`` of Fisher's z to those claimed."""

    def back(z: Array) -> Array:
        return jnp.tanh(claim) - jnp.tanh(claim - z)

    slope = 1 - jnp.tanh(claim - differences.estimate) ** 2
    return differences._replace(
        estimate=back(differences.estimate),
        standard_error=differences.standard_error * slope,
        low=back(differences.low),
        high=back(differences.high),
    )
