r"""Attribution of a misfit to shift, spread and correlation of coordinates.

With :math:`\Sigma_p` and :math:`c_p` any functions of a prediction and :math:`\sigma` the
deviations in :math:`\Sigma_p`, the **implied residual** :math:`w = -\Sigma_p s_p(y) / \sigma` and
the plain one :math:`z = (y - c_p) / \sigma` have, for y a draw from p, by Stein's identity

.. math:: E\,w = 0, \qquad E\,w_q z_l = (\Sigma_p)_{ql} / (\sigma_q \sigma_l).

For a Gaussian p with these moments both equal :math:`(y - c_p) / \sigma` for any correlations; only
then does an error of one coordinate not affect the others (`claims` checks this on the data). The
mean of w is the marginal shift of a coordinate. The covariance of w and z about their means is that
of the targets in claimed deviations, and its correlation depends on neither shifts nor spreads.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxcal.moments import marginal_means
from jaxcal.numerics import at_least, at_most
from jaxcal.read.families import Normals, distribution_of, offered_moments
from jaxcal.results import Means
from jaxcal.typing import Nodes, Points, Predictions, Scalar

LEAK = 0.1  # largest effect of nonlinear scores on a mean, in its standard errors
NEARLY = 1e-6  # least variance, and least distance of correlations from 1


class Claims(NamedTuple):
    """Moments that predictions claim.

    ``centers`` [n, d] and ``covariances`` [n, d, d] are functions of predictions alone; ``scores``
    [n, d] at the targets are those of Gaussians if centres are known means. ``exact`` []: whether
    implied and plain residuals agree, so that a coordinate's mean does not depend on the others.
    ``gaussian`` []: whether they agree because predictions are Gaussian.
    """

    centers: Points
    covariances: Float[Array, "n d d"]
    scores: Points
    exact: Bool[Array, ""]
    gaussian: Bool[Array, ""]


class Faults(NamedTuple):
    """`Means` of possible faults, each 0 under calibration, with Holm's correction per kind;
    `jaxcal.results.Coordinates` explains them."""

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
    r"""Return the claimed centres and covariances: known ones, else from scores at nodes, or None.

    ``ys`` and ``nodes`` are in the units of the predictions; ``scores`` are those at ``ys``. Known
    means give plain residuals, which are exact for every shape. Otherwise the scores at the nodes
    are regressed on the nodes, :math:`s_p(z) \approx -\Sigma_p^{-1} (z - c_p)`. They count as exact
    if implied and plain residuals at the **targets** differ, in root mean square, by at most `LEAK`
    standard errors of the mean; this bounds the effect of another coordinate on a mean.
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
    fitted = marginal_means.covariances_of(None, nodes, at_nodes, scores)
    if fitted is None:
        return None
    assert nodes is not None
    assert at_nodes is not None
    covariances = jnp.broadcast_to(fitted, (n, d, d))
    centers = jnp.mean(nodes, axis=0)[None] + jnp.einsum(
        "nij,nj->ni", covariances, jnp.mean(at_nodes, axis=1)
    )
    implied, plain, _ = _residuals(ys, scores, centers, covariances)
    apart = jnp.mean((implied - plain) ** 2, axis=0)
    linear = jnp.all(apart <= LEAK**2 * jnp.var(plain, axis=0) / n)
    return Claims(centers, covariances, scores, linear, linear)


def _residuals(
    ys: Points, scores: Points, centers: Points, covariances: Float[Array, "n d d"]
) -> tuple[Points, Points, Points]:
    """Return implied and plain residuals, and their units, the deviations; each [n, d]."""
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
    """Return `Faults` from targets [n, d], scores there, and claims in the same units.

    Limits are by the jackknife and Student's t: for spreads on the logarithmic scale, for
    correlations on that of Fisher's z. Limits of means are NaN unless ``exact``, those of spreads
    and correlations unless ``gaussian``, as the tails of their products are too heavy. ``series``:
    as in `marginal_means.means`. Cost O(n d^2 + n d^3).
    """
    implied, plain, deviations = _residuals(ys, scores, centers, covariances)

    def means(values: Array) -> Means:
        return marginal_means.means(values, level=level, series=series)

    variances = _covariances(implied, plain)
    correlation, d = None, ys.shape[1]
    if d > 1:
        i, j = np.triu_indices(d, 1)
        across = _covariances(implied[:, i], plain[:, j])
        back = _covariances(implied[:, j], plain[:, i])
        pairs = (across + back) / 2
        claimed = covariances[:, i, j] / (deviations[:, i] * deviations[:, j])
        correlation = _correlation(pairs, variances[:, i], variances[:, j], claimed, means)
    spread = means(_pseudo_values(_log_spreads(variances)))
    both = spread, correlation
    spread, correlation = jax.tree.map(lambda part: jnp.where(gaussian, part, jnp.nan), both)
    return Faults(marginal_means.limited(means(-implied), exact), spread, correlation)


def _covariances(w: Float[Array, "n q"], z: Float[Array, "n q"]) -> Float[Array, "m q"]:
    """Return covariances of w and z from all n observations, then without each; [n + 1, q]."""
    n = w.shape[0]
    products = (w - jnp.mean(w, axis=0)[None]) * (z - jnp.mean(z, axis=0)[None])
    total = jnp.sum(products, axis=0)[None]
    without = (total - products * n / (n - 1)) / (n - 2)
    return jnp.concatenate([total / (n - 1), without])


def _pseudo_values(values: Float[Array, "m q"]) -> Float[Array, "n q"]:
    """Return jackknife pseudo-values, whose mean is the bias-corrected estimate, with its error.

    Source: Tukey (1958); Efron and Tibshirani (1993), Section 11.5.
    """
    n = values.shape[0] - 1
    return n * values[:1] - (n - 1) * values[1:]


def _log_spreads(variances: Float[Array, "m q"]) -> Float[Array, "m q"]:
    """Return logarithms of claimed over actual deviations."""
    return -jnp.log(at_least(variances, NEARLY)) / 2


def _correlation(
    pairs: Float[Array, "m q"],
    first: Float[Array, "m q"],
    second: Float[Array, "m q"],
    claimed: Float[Array, "n q"],
    means: Callable[[Array], Means],
) -> Means:
    """Return claimed minus actual correlation [q]."""
    n = claimed.shape[0]
    root = jnp.sqrt(at_least(first, NEARLY) * at_least(second, NEARLY))
    total = jnp.sum(claimed, axis=0)[None]
    center = jnp.concatenate([total / n, (total - claimed) / (n - 1)])
    claims, actual = (
        jnp.arctanh(at_most(at_least(r, NEARLY - 1), 1 - NEARLY)) for r in (center, pairs / root)
    )
    differences = means(_pseudo_values(claims - actual))

    def back(z: Array) -> Array:
        return jnp.tanh(claims[0]) - jnp.tanh(claims[0] - z)

    slope = 1 - jnp.tanh(claims[0] - differences.estimate) ** 2
    return differences._replace(
        estimate=back(differences.estimate),
        standard_error=differences.standard_error * slope,
        low=back(differences.low),
        high=back(differences.high),
    )
