r"""Each prediction in its own units: a centre and a scale that are functions of it alone.

With :math:`u = M_p^{-1} (y - c_p)` a target that is a draw from p has the density of p carried
along, whose score is :math:`M_p^\top s_p(y)`: an affine change of variables a prediction, so that
every Stein test applies to :math:`(p, u, M_p^\top s_p)` as it stands, for any centre and any
invertible scale that depend on nothing but predictions and base points. A wrong spread is then the
same fault in every prediction, sharp or wide, and adds up.

:math:`M = D R^{1/2}` with D the deviations and R the correlations that a prediction claims: u does
not change with the units of any coordinate, or with the order of coordinates.
Source of this root: Kessy, Lewin and Strimmer (2018), "ZCA-cor".
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal import convert
from jaxcal.divergences.vectors import NodeScores, _Euclidean
from jaxcal.models import Draws, Standardized
from jaxcal.models.families import Normals, distribution_of, full, mean_and_covariance
from jaxcal.numerics import at_least, psd_root
from jaxcal.preconditioners import (
    LEAST,
    bounded_matrices,
    bounded_spectrum,
    eyes,
    inverses,
    slopes,
)
from jaxcal.scores import climbable, log_densities, to_second_order
from jaxcal.typing import Features, Key, Nodes, Points

__all__ = ["Landing", "LocationScale", "Moments", "Regression", "Whitener", "Whitening"]

NOT_LANDED = 0.5  # a summit further away, in deviations, was not reached
FORMS = ("full", "diagonal")
SHORTER = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)  # of the Newton step


class Whitening(NamedTuple):
    """Centres and scales of n predictions, in the units of the targets they are used on.

    Attributes:
        center: Centres, [n, d].
        scale: Scales M, [n, d, d].
        clamped: Number of predictions whose scale could not be computed, or not in all
            directions, [].
        astray: Number of predictions whose summit was not reached, [].

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> none, scale = jnp.zeros((), jnp.int32), 2 * jnp.ones((3, 1, 1))
        >>> whitening = jaxcal.whitening.Whitening(jnp.ones((3, 1)), scale, none, none)
        >>> whitening.points(jnp.array([[1.0], [3.0], [5.0]])).ravel().tolist()
        [0.0, 1.0, 2.0]
    """

    center: Points
    scale: Float[Array, "n d d"]
    clamped: Int[Array, ""]
    astray: Int[Array, ""]

    def points(self, ys: Points) -> Points:
        """Targets in the units of their predictions, :math:`u = M^{-1} (y - c)`, [n, d]."""
        return jnp.linalg.solve(self.scale, (ys - self.center)[..., None])[..., 0]

    def scores(self, scores: Points) -> Points:
        r"""Scores in the units of their predictions, :math:`M^\top s`, [n, d]."""
        return jnp.einsum("nij,ni->nj", self.scale, scores)

    def covariances(self) -> Float[Array, "n d d"]:
        r"""Covariances that the predictions claim, :math:`M M^\top`, [n, d, d]."""
        return self.scale @ jnp.swapaxes(self.scale, 1, 2)


@runtime_checkable
class Whitener(Protocol):
    """Protocol of ways to centres and scales: functions of predictions and base points alone.

    ``fit(predictions, at_nodes)`` returns a `Whitening` and never sees targets. ``predictions``
    are in the units in which centres are wanted, and so are the nodes of ``at_nodes``, which is
    None where ``needs_nodes`` is False. ``diagonal`` says whether every scale is a diagonal
    matrix.

    Example:
        >>> import jaxcal
        >>> isinstance(jaxcal.whitening.Regression(), jaxcal.whitening.Whitener)
        True
    """

    @property
    def needs_nodes(self) -> bool: ...

    @property
    def diagonal(self) -> bool: ...

    def fit(self, predictions: Any, at_nodes: NodeScores | None, /) -> Whitening: ...


def checked(value: Any, name: str) -> Any:
    """A way to bring predictions into units of their own, or TypeError."""
    if isinstance(value, type) or not isinstance(value, Whitener):
        raise TypeError(
            f"{name}: wanted one such as jaxcal.whitening.Regression(), got {convert.say(value)}"
        )
    return value


def _moment(name: str) -> Any:
    """A field of numbers, or None."""

    def read(value: Any) -> Any:
        return None if value is None else convert.floats(value, name)

    return eqx.field(default=None, converter=read)


class Regression(eqx.Module):
    r"""Centre and scale from scores at base points, :math:`s_p(z) \approx -\Lambda_p (z - c_p)`.

    The slope of a regression of scores on points is the precision, and its intercept gives the
    centre: exact for Gaussians, at no more than the scores that divergences between predictions
    take anyway. Works with `jaxcal.Scores` that have nodes.

    Args:
        form: "full", which needs more base points than dimensions; or "diagonal", which regresses
            one coordinate at a time, keeps coordinates apart, and needs two.

    Cost: O(n m d^2 + n d^3) for m base points.

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

    @property
    def diagonal(self) -> bool:
        return self.form == "diagonal"

    def fit(self, predictions: Any, at_nodes: NodeScores | None) -> Whitening:
        nodes, values = at_base_points(at_nodes, "Regression()")
        precisions = slopes(nodes, values, self.form)
        covariances, clamped = inverses(precisions)
        middle, mean = jnp.mean(nodes, axis=0), jnp.mean(values, axis=1)
        centers = middle[None] + jnp.einsum("nij,nj->ni", covariances, mean)
        return _whitening(centers, covariances, clamped)


class Landing(eqx.Module):
    r"""Centre and scale at a summit of the density, :math:`M M^\top = (-H)^{-1}` there.

    Damped Newton steps on log p climb from the base point where the density is largest: where the
    density is not concave they follow the absolute curvature, and they are cut short where they
    do not climb. For narrow, skewed or heavy-tailed predictions, which a regression over wide base
    points fits badly; exact for Gaussians after one step. Of several modes it sees one. Needs log
    densities that are twice differentiable, so it does not work with `jaxcal.Scores`.

    Args:
        steps: Number of Newton steps.
        form: "full" or "diagonal".

    Cost: m log densities a prediction, and ``steps`` + 1 gradients and d times as many
    Hessian-vector products.

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

    @property
    def diagonal(self) -> bool:
        return self.form == "diagonal"

    def fit(self, predictions: Any, at_nodes: NodeScores | None) -> Whitening:
        if not climbable(predictions):
            original = getattr(predictions, "predictions", predictions)
            raise TypeError(
                f"whiten: Landing() climbs log densities, and {type(original).__name__} has none: "
                f"use Regression(), which needs scores at base points alone"
            )
        nodes, values = at_base_points(at_nodes, "Landing()")
        n, d = values.shape[0], nodes.shape[1]

        def height(ys: Points) -> Array:
            logs = log_densities(predictions, ys)
            return jnp.where(jnp.isfinite(logs), logs, -jnp.inf)

        heights = jax.lax.map(lambda z: height(jnp.broadcast_to(z[None], (n, d))), nodes)
        start = nodes[jnp.argmax(heights, axis=0)]

        def step(at: Points, _: Any) -> tuple[Points, None]:
            _, scores, hessians = to_second_order(predictions, at)
            along = _newton(scores, -hessians)
            candidates = jnp.stack([at, *(at + part * along for part in SHORTER)])
            best = jnp.argmax(jax.lax.map(height, candidates), axis=0)
            return jnp.take_along_axis(candidates, best[None, :, None], axis=0)[0], None

        at, _ = jax.lax.scan(step, start, None, length=self.steps)
        _, scores, hessians = to_second_order(predictions, at)
        # 0 more at a summit; where none was reached it keeps M^T s from being larger than 1 there
        precisions = scores[:, :, None] * scores[:, None] - hessians
        precisions = precisions if self.form == "full" else _diagonals(precisions)
        # a density without slope or curvature has no scale: it gets the typical one and is counted
        finite = jnp.all(jnp.isfinite(precisions), axis=(1, 2)) & jnp.all(
            jnp.isfinite(scores), axis=1
        )
        precisions = jnp.where(finite[:, None, None], precisions, 0)
        scores = jnp.where(finite[:, None], scores, 0)
        covariances, clamped = inverses(precisions)
        away = jnp.einsum("ni,nij,nj->n", scores, covariances, scores)
        astray = ~finite | (away > NOT_LANDED**2)
        return _whitening(at, covariances, clamped, jnp.sum(astray))


class Moments(eqx.Module):
    """Centre and scale by the mean and covariance of each prediction.

    Both must be functions of the predictions alone. Without arguments they are those that the
    predictions offer, as normal and Laplace distributions, their mixtures, distributions with a
    ``mean`` and ``variance``, and `jaxcal.Draws` do.

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

    mean: Any = _moment("mean")
    covariance: Any = _moment("covariance")
    form: str = eqx.field(default="full", static=True)
    needs_nodes: bool = eqx.field(default=False, init=False, static=True)

    def __check_init__(self):
        convert.choice(self.form, "form", FORMS)
        if (self.mean is None) != (self.covariance is None):
            raise ValueError("mean and covariance: give both, or none to take those offered")

    @property
    def diagonal(self) -> bool:
        return self.form == "diagonal"

    def fit(self, predictions: Any, at_nodes: NodeScores | None) -> Whitening:
        mean, covariances = full(self._moments(predictions))
        if mean.ndim == 1:  # one density of all targets
            mean, covariances = mean[None], covariances[None]
        if self.form == "diagonal":
            covariances = _diagonals(covariances)
        bounded, clamped = bounded_matrices(covariances, precisions=False)
        return _whitening(mean, bounded, clamped)

    def _moments(self, predictions: Any) -> Normals:
        if self.mean is not None:
            return _moments_in_units(self.mean, self.covariance, predictions)
        offered = mean_and_covariance(distribution_of(predictions))
        if offered is not None:
            return offered
        original = getattr(predictions, "predictions", predictions)
        if isinstance(original, Draws):
            return _of_draws(original, predictions, self.form)
        try:
            mean = original.mean
            covariance = getattr(original, "covariance_matrix", None)
            covariance = original.variance if covariance is None else covariance
        except (AttributeError, NotImplementedError):
            raise TypeError(
                f"whiten: {type(original).__name__} offers no mean and variance; give "
                f"Moments(mean, covariance), or use Regression() or Landing()"
            ) from None
        return _moments_in_units(mean, covariance, predictions)


class LocationScale(_Euclidean, eqx.Module):
    r"""Divergence between predictions: how far apart their centres and log scales are.

    The Euclidean distance of vectors :math:`(c_p, \log D_p, R_p^{1/2})`, the last without its
    diagonal, with :math:`M_p = D_p R_p^{1/2}` by ``whitener``; centres in the units of the test.
    `Fisher` grows like 1 / width^4, so that the sharpest predictions rule its median or overflow;
    this grows like the logarithm of widths. Blind to all but location, scale and correlations.

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

    whitener: Any = Regression()

    def __check_init__(self):
        checked(self.whitener, "whitener")

    @property
    def needs_nodes(self) -> bool:
        """Whether the whitener takes base points."""
        return self.whitener.needs_nodes

    def features(self, key: Key, predictions: Any, at_nodes: NodeScores | None) -> Features:
        center, scale, _, _ = self.whitener.fit(predictions, at_nodes)
        deviations = jnp.sqrt(jnp.sum(scale**2, axis=2))
        i, j = np.triu_indices(center.shape[1], 1)
        roots = (scale / deviations[:, :, None])[:, i, j]
        return jnp.concatenate([center, jnp.log(deviations), roots], axis=1)


def at_base_points(at_nodes: NodeScores | None, who: str) -> tuple[Nodes, Float[Array, "n m d"]]:
    """Base points and scores there, or ValueError where they were not given."""
    if at_nodes is None or at_nodes.nodes is None:
        raise ValueError(
            f"whiten: {who} needs scores at base points and those points: give Scores.at_nodes and "
            f"Scores.nodes"
        )
    return at_nodes.nodes, at_nodes.values


def _whitening(
    centers: Points,
    covariances: Float[Array, "n d d"],
    clamped: Int[Array, ""],
    astray: Int[Array, ""] | None = None,
) -> Whitening:
    """M = D R^1/2 of covariances D R D that are positive; NaN where they are."""
    finite = jnp.all(jnp.isfinite(covariances), axis=(1, 2))[:, None, None]
    safe = jnp.where(finite, covariances, eyes(covariances))
    deviations = jnp.sqrt(jnp.diagonal(safe, axis1=1, axis2=2))
    correlations = safe / (deviations[:, :, None] * deviations[:, None])
    scale = deviations[:, :, None] * psd_root(correlations)
    astray = jnp.zeros((), clamped.dtype) if astray is None else astray.astype(clamped.dtype)
    return Whitening(centers, jnp.where(finite, scale, jnp.nan), clamped, astray)


def _newton(scores: Points, precisions: Float[Array, "n d d"]) -> Points:
    """The Newton step along the absolute curvature; 0 where there is none to follow."""
    finite = jnp.all(jnp.isfinite(precisions), axis=(1, 2)) & jnp.all(jnp.isfinite(scores), axis=1)
    safe = jnp.where(finite[:, None, None], precisions, eyes(precisions))
    diagonal = jnp.abs(jnp.diagonal(safe, axis1=1, axis2=2))
    units = jnp.where(diagonal > 0, diagonal, 1) ** -0.5
    unitless = safe * units[:, :, None] * units[:, None]
    bounded, _ = bounded_spectrum(unitless, lambda v: at_least(jnp.abs(v), LEAST))
    along = units * jnp.linalg.solve(bounded, (units * scores)[..., None])[..., 0]
    return jnp.where(finite[:, None], along, 0)


def _diagonals(matrices: Float[Array, "n d d"]) -> Float[Array, "n d d"]:
    """The matrices with 0 off the diagonal."""
    return jnp.where(eyes(matrices) > 0, matrices, 0)


def _moments_in_units(mean: Any, covariance: Any, predictions: Standardized) -> Normals:
    """Moments in the units of the targets, brought to those of the predictions."""
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
    """From the first half of the draws: kernel means are then taken from the other half."""
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
