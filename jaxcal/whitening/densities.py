"""Centres and scales of densities: by regression of scores at nodes, or by Newton steps."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.divergences.vectors import NodeScores, _Euclidean
from jaxcal.numerics import at_least, eliminated
from jaxcal.read import Standardized, convert
from jaxcal.read.scores import climbable, log_densities, to_second_order
from jaxcal.read.standardized import in_units_of_data
from jaxcal.typing import Features, Key, Nodes, Points, Predictions
from jaxcal.whitening.contract import (
    FORMS,
    Whitener,
    Whitening,
    at_base_points,
    checked,
    diagonals,
    in_units_of,
)
from jaxcal.whitening.precisions import LEAST, bounded_spectrum, eyes, inverses, slopes

NOT_LANDED = 0.5  # a mode further away than this, in deviations, counts as not reached

SHORTER = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)  # factors of the Newton step


class Regression(eqx.Module):
    r"""Centre and scale from scores at nodes, :math:`s_p(z) \approx -\Lambda_p (z - c_p)`.

    The slope of a regression of scores on points is the precision, and its intercept gives the
    centre: exact for Gaussians, from scores that divergences between predictions need anyway. Works
    with `jaxcal.Scores` that have nodes.

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
        covariances, clamped = inverses(precisions)
        middle, mean = jnp.mean(nodes, axis=0), jnp.mean(values, axis=1)
        centers = middle[None] + jnp.einsum("nij,nj->ni", covariances, mean)
        return in_units_of(centers, covariances, clamped)


class Landing(eqx.Module):
    r"""Centre and scale at a mode of the density, :math:`M M^\top = (-H)^{-1}` there.

    Damped Newton steps on log p start at the node of highest density. They use the absolute
    curvature, and steps that do not increase the density are shortened. Exact for Gaussians after
    one step; intended for narrow, skewed or heavy-tailed predictions, which a regression over wide
    nodes fits badly. Finds one of several modes. Needs log densities that are twice differentiable,
    so it does not work with `jaxcal.Scores`.

    Args:
        steps: Number of Newton steps.
        form: "full" or "diagonal".

    Cost per prediction: m log densities, ``steps`` + 1 gradients and d times as many
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
        """Return a mode of each of n predictions, by ascent from the best of the nodes [m, d]."""
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

        # the last step is not taken: one program differentiates on the way and at the end
        nothing = jnp.zeros((n, d, d), start.dtype)
        climbed = (start, start, jnp.zeros_like(start), nothing)
        _, at, scores, hessians = jax.lax.fori_loop(0, self.steps + 1, step, climbed)
        # adds 0 at a mode; if none was reached it bounds M^T s by 1
        precisions = scores[:, :, None] * scores[:, None] - hessians
        precisions = precisions if self.form == "full" else diagonals(precisions)
        # a density without slope or curvature gets the typical scale and is counted
        finite = jnp.all(jnp.isfinite(precisions), axis=(1, 2)) & jnp.all(
            jnp.isfinite(scores), axis=1
        )
        precisions = jnp.where(finite[:, None, None], precisions, 0)
        scores = jnp.where(finite[:, None], scores, 0)
        covariances, clamped = inverses(precisions)
        away = jnp.einsum("ni,nij,nj->n", scores, covariances, scores)
        not_converged = ~finite | (away > NOT_LANDED**2)
        return in_units_of(at, covariances, clamped, jnp.sum(not_converged))


def _newton(scores: Points, precisions: Float[Array, "n d d"]) -> Points:
    """Return the Newton step along the absolute curvature; 0 if there is none."""
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

    The Euclidean distance of vectors :math:`(c_p, \log D_p, R_p^{1/2})`, the last without its
    diagonal, with :math:`M_p = D_p R_p^{1/2}` from ``whitener``; centres in the units of the test.
    `Fisher` grows like 1 / width^4, so the sharpest predictions dominate its median or overflow;
    this distance grows like the logarithm of widths. It ignores other properties.

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
