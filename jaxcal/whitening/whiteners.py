"""Compute centres and scales of predictions, to whiten targets and to compare predictions.

`Moments` uses moments of the predictions, of their draws or from the user. For densities,
`Regression` regresses scores on nodes, and `Landing` finds modes by Newton steps.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.divergences.vectors import NodeScores, _Euclidean
from jaxcal.numerics import at_least, eliminated
from jaxcal.read import Draws, Standardized, convert
from jaxcal.read.families import Normals, distribution_of, full, mean_and_covariance
from jaxcal.read.precisions import LEAST, bounded_matrices, bounded_spectrum, eyes, inverses, slopes
from jaxcal.read.predictions import in_units_of_data
from jaxcal.read.scores import climbable, log_densities, to_second_order
from jaxcal.typing import ArrayLike, Features, Key, Nodes, Points, Predictions
from jaxcal.whitening.contract import (
    FORMS,
    Whitener,
    Whitening,
    at_base_points,
    checked,
    diagonals,
    in_units_of,
)


class Moments(eqx.Module):
    """Centre and scale by the mean and covariance of each prediction.

    Both must be functions of the predictions alone. Without arguments they are computed from the
    predictions: normals, Laplace distributions, their mixtures, distributions with a ``mean`` and
    ``variance``, and `jaxcal.Draws`.

    Args:
        mean: Means in the units of the targets, [n, *event].
        covariance: Variances [n, *event] or covariance matrices [n, d, d], in the units of the
            targets squared.
        form: "full" or "diagonal".

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> widths = jnp.exp(jax.random.normal(jax.random.key(0), (100,)))
        >>> targets = 2 * widths * jax.random.normal(jax.random.key(1), (100,))
        >>> whiten = jaxcal.whitening.Moments()
        >>> jaxcal.skce_test(2, dist.Normal(jnp.zeros(100), widths), targets, whiten=whiten).verdict
        'rejected'
    """

    mean: Array | None
    covariance: Array | None
    form: str = eqx.field(static=True)
    needs_nodes: bool = eqx.field(default=False, init=False, static=True)

    def __init__(
        self,
        mean: ArrayLike | None = None,
        covariance: ArrayLike | None = None,
        form: str = "full",
    ):
        self.form, self.needs_nodes = form, False
        self.mean = None if mean is None else convert.floats(mean, "mean")
        self.covariance = None if covariance is None else convert.floats(covariance, "covariance")
        convert.remember(self, mean=mean, covariance=covariance)

    def __check_init__(self):
        convert.choice(self.form, "form", FORMS)
        if (self.mean is None) != (self.covariance is None):
            raise ValueError("mean and covariance: give both, or none to take those offered")

    def fit(self, predictions: Predictions, at_nodes: NodeScores | None) -> Whitening:
        mean, covariances = full(self._moments(predictions))
        if mean.ndim == 1:  # one density for all targets
            mean, covariances = mean[None], covariances[None]
        if self.form == "diagonal":
            covariances = diagonals(covariances)
        bounded, clamped = bounded_matrices(covariances, precisions=False)
        return in_units_of(mean, bounded, clamped)

    def _moments(self, predictions: Any) -> Normals:
        if self.mean is not None:
            return _moments_in_units(self.mean, self.covariance, predictions)
        offered = mean_and_covariance(distribution_of(predictions))
        if offered is not None:
            return offered
        original = in_units_of_data(predictions)
        if isinstance(original, Draws):
            return _of_draws(original, predictions, self.form)
        try:
            mean, covariance = original.mean, original.variance
            shape = getattr(original, "covariance_matrix", None)
            if shape is not None:  # that of MultivariateStudentT is its scale matrix
                ratio = jnp.sqrt(covariance / jnp.diagonal(shape, axis1=-2, axis2=-1))
                ratio = jnp.where(jnp.isfinite(ratio), ratio, 1)
                covariance = shape * ratio[..., :, None] * ratio[..., None, :]
        except (AttributeError, NotImplementedError):
            raise TypeError(
                f"whiten: {type(original).__name__} offers no mean and variance; give "
                f"Moments(mean, covariance), or use Regression() or Landing()"
            ) from None
        return _moments_in_units(mean, covariance, predictions)


def _moments_in_units(mean: Any, covariance: Any, predictions: Standardized) -> Normals:
    """Return moments, given in the units of the targets, in the units of the predictions."""
    d = predictions.units.scale.size
    mean = jnp.asarray(mean)
    n = mean.shape[0]
    covariance = jnp.asarray(covariance)
    matrices = covariance.shape == (n, d, d) and mean.shape != (n, d, d)
    if mean.size != n * d or (covariance.size != n * d and not matrices):
        raise ValueError(
            f"whiten: wanted a mean of {d} coordinates a prediction, and variances of that shape "
            f"or covariances [{n}, {d}, {d}], got shapes {mean.shape} and {covariance.shape}"
        )
    shape = (n, d, d) if matrices else (n, d)
    return distribution_of(
        Standardized(
            Normals(mean.reshape(n, d), covariance.reshape(shape)),
            predictions.units,
            predictions.event,
        )
    )


def _of_draws(draws: Draws, predictions: Standardized, form: str) -> Normals:
    """Return moments of the first half of the draws; kernel means use the other half."""
    half = draws.samples.shape[1] // 2
    points = draws.samples[:, :half].reshape(len(draws.samples), half, -1)
    points = predictions.units.points(points)
    d = points.shape[-1]
    needed = 2 if form == "diagonal" else 2 * d
    if half < needed:
        raise ValueError(
            f"whiten: Moments(form={form!r}) of draws needs {2 * needed} of each prediction in "
            f"{d} dimensions (half of them), got {draws.samples.shape[1]}"
        )
    gaps = points - jnp.mean(points, axis=1, keepdims=True)
    covariances = jnp.einsum("nmi,nmj->nij", gaps, gaps) / (half - 1)
    return Normals(jnp.mean(points, axis=1), covariances)


NOT_LANDED = 0.5  # distance to the mode, in deviations, above which it counts as not reached

SHORTER = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)  # factors of the Newton step


class Regression(eqx.Module):
    r"""Centre and scale from scores at nodes, :math:`s_p(z) \approx -\Lambda_p (z - c_p)`.

    Minus the slope of a regression of scores on nodes is the precision :math:`\Lambda_p`; the
    intercept gives the centre :math:`c_p`. Both are exact for Gaussians. Works with `jaxcal.Scores`
    that have nodes.

    Args:
        form: "full", which needs more nodes than dimensions; or "diagonal", which regresses one
            coordinate at a time and needs two nodes.

    Cost: O(n m d^2 + n d^3) for m nodes.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> widths = jnp.exp(jax.random.normal(jax.random.key(0), (100,)))
        >>> targets = 2 * widths * jax.random.normal(jax.random.key(1), (100,))
        >>> predictions = dist.Normal(jnp.zeros(100), widths)
        >>> whiten = jaxcal.whitening.Regression()
        >>> jaxcal.kccsd_test(2, predictions, targets, whiten=whiten).verdict
        'rejected'
    """

    form: str = eqx.field(default="full", static=True)
    needs_nodes: bool = eqx.field(default=True, init=False, static=True)

    def __check_init__(self):
        convert.choice(self.form, "form", FORMS)

    def fit(self, predictions: Predictions, at_nodes: NodeScores | None) -> Whitening:
        nodes, values = at_base_points(at_nodes, "Regression()")
        precisions = slopes(nodes, values, self.form)
        _, covariances, clamped = inverses(precisions)
        middle, mean = jnp.mean(nodes, axis=0), jnp.mean(values, axis=1)
        centers = middle[None] + jnp.einsum("nij,nj->ni", covariances, mean)
        return in_units_of(centers, covariances, clamped)


class Landing(eqx.Module):
    r"""Centre and scale at a mode of the density, :math:`M M^\top = (-H)^{-1}` there.

    H is the Hessian of log p. Damped Newton steps on log p start at the node of highest density;
    they use the absolute curvature and the best of several step lengths. Exact for Gaussians after
    one step; intended for narrow, skewed or heavy-tailed predictions, which a regression over wide
    nodes fits badly. Finds one of several modes. Needs log densities that are twice differentiable,
    so it does not work with `jaxcal.Scores`.

    Args:
        steps: Number of Newton steps.
        form: "full" or "diagonal".

    Cost per prediction: m log densities for m nodes, and in each of ``steps`` + 1 steps 8 log
    densities, a gradient and d Hessian-vector products.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> widths = jnp.exp(jax.random.normal(jax.random.key(0), (100,)))
        >>> targets = 2 * widths * jax.random.normal(jax.random.key(1), (100,))
        >>> predictions = dist.Normal(jnp.zeros(100), widths)
        >>> whiten = jaxcal.whitening.Landing()
        >>> jaxcal.kccsd_test(2, predictions, targets, whiten=whiten).verdict
        'rejected'
    """

    steps: int = eqx.field(default=4, static=True)
    form: str = eqx.field(default="full", static=True)
    needs_nodes: bool = eqx.field(default=True, init=False, static=True)

    def __check_init__(self):
        convert.choice(self.form, "form", FORMS)
        convert.integer(self.steps, "steps")

    def fit(self, predictions: Any, at_nodes: NodeScores | None) -> Whitening:
        if not climbable(predictions):
            original = in_units_of_data(predictions)
            raise TypeError(
                f"whiten: Landing() climbs log densities, and {type(original).__name__} has none: "
                f"use Regression(), which needs scores at base points alone"
            )
        nodes, values = at_base_points(at_nodes, "Landing()")
        return self.summits(predictions, nodes, values.shape[0])

    def summits(self, predictions: Standardized, nodes: Nodes, n: int) -> Whitening:
        """Return the whitening at a mode of each of n predictions, by ascent from nodes [m, d]."""
        d = nodes.shape[1]

        def height(ys: Points) -> Array:
            logs = log_densities(predictions, ys)
            return jnp.where(jnp.isfinite(logs), logs, -jnp.inf)

        heights = jax.lax.map(lambda z: height(jnp.broadcast_to(z[None], (n, d))), nodes)
        start = nodes[jnp.argmax(heights, axis=0)]

        def step(_: object, climbed: tuple[Array, ...]) -> tuple[Array, ...]:
            at = climbed[0]
            _, scores, hessians = to_second_order(predictions, at)
            along = _newton(scores, -hessians)
            candidates = jnp.stack([at, *(at + part * along for part in SHORTER)])
            best = jnp.argmax(jax.lax.map(height, candidates), axis=0)
            higher = jnp.take_along_axis(candidates, best[None, :, None], axis=0)[0]
            return higher, at, scores, hessians

        # the last step is not taken: it only computes the derivatives at the end
        nothing = jnp.zeros((n, d, d), start.dtype)
        climbed = (start, start, jnp.zeros_like(start), nothing)
        _, at, scores, hessians = jax.lax.fori_loop(0, self.steps + 1, step, climbed)
        # s s^T is 0 at a mode; elsewhere it bounds M^T s by 1
        precisions = scores[:, :, None] * scores[:, None] - hessians
        precisions = precisions if self.form == "full" else diagonals(precisions)
        # a density without slope or curvature gets the typical scale and is counted
        finite = jnp.all(jnp.isfinite(precisions), axis=(1, 2)) & jnp.all(
            jnp.isfinite(scores), axis=1
        )
        precisions = jnp.where(finite[:, None, None], precisions, 0)
        scores = jnp.where(finite[:, None], scores, 0)
        _, covariances, clamped = inverses(precisions)
        away = jnp.einsum("ni,nij,nj->n", scores, covariances, scores)
        not_converged = ~finite | (away > NOT_LANDED**2)
        return in_units_of(at, covariances, clamped, jnp.sum(not_converged))


def _newton(scores: Points, precisions: Float[Array, "n d d"]) -> Points:
    """Return Newton steps, [n, d], with absolute values of the curvature; 0 if not finite."""
    finite = jnp.all(jnp.isfinite(precisions), axis=(1, 2)) & jnp.all(jnp.isfinite(scores), axis=1)
    safe = jnp.where(finite[:, None, None], precisions, eyes(precisions))
    diagonal = jnp.abs(jnp.diagonal(safe, axis1=1, axis2=2))
    units = jnp.where(diagonal > 0, diagonal, 1) ** -0.5
    unitless = safe * units[:, :, None] * units[:, None]
    bounded, _ = bounded_spectrum(unitless, lambda v: at_least(jnp.abs(v), LEAST))
    along = units * eliminated(bounded, (units * scores)[..., None]).solutions[..., 0]
    return jnp.where(finite[:, None], along, 0)


class LocationScale(_Euclidean, eqx.Module):
    r"""Divergence between predictions by their centres, log scales and correlations.

    The Euclidean distance of vectors :math:`(c_p, \log D_p, R_p^{1/2})`: centres in the units of
    the test, log deviations, and the entries of :math:`R_p^{1/2}` above its diagonal. ``whitener``
    computes them. Other differences of predictions are ignored. `Fisher` grows like 1 / width^4, so
    the sharpest predictions dominate or overflow; this distance grows like the log of widths.

    Args:
        whitener: `Regression`, `Landing` or `Moments`.

    Cost: that of the whitener.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> widths = jnp.exp(jax.random.normal(jax.random.key(0), (100,)))
        >>> targets = widths * (1 + jax.random.normal(jax.random.key(1), (100,)))
        >>> divergence = jaxcal.whitening.LocationScale()
        >>> predictions = dist.Normal(jnp.zeros(100), widths)
        >>> jaxcal.kccsd_test(2, predictions, targets, divergence=divergence).verdict
        'rejected'
    """

    whitener: Whitener = Regression()

    def __check_init__(self):
        checked(self.whitener, "whitener")

    @property
    def needs_nodes(self) -> bool:
        """Return whether the whitener needs nodes."""
        return self.whitener.needs_nodes

    def features(self, key: Key, predictions: Predictions, at_nodes: NodeScores | None) -> Features:
        center, scale, _, _ = self.whitener.fit(predictions, at_nodes)
        deviations = jnp.sqrt(jnp.sum(scale**2, axis=2))
        i, j = np.triu_indices(center.shape[1], 1)
        roots = (scale / deviations[:, :, None])[:, i, j]
        return jnp.concatenate([center, jnp.log(deviations), roots], axis=1)
