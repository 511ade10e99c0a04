"""Compute the residuals of `moment_test`: a moment of each target under its prediction."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxcal.fit.residuals import Featured, View, noted
from jaxcal.moments import Moment, attribution
from jaxcal.moments.stein import edges, evaluate, smooth
from jaxcal.numerics import at_least, normals, not_finite
from jaxcal.read import OwnUnits, Standardized, Units
from jaxcal.read.scores import each_density, is_distribution, signs_reversed, states_an_end
from jaxcal.statistics.weighted import Inner, WeightedFeatures
from jaxcal.typing import Features, KernelLike, Key, PredictionsLike

CHANCE = 0.002  # values of one sign are no evidence if their null probability may be larger
SKEWED = 0.05  # limit of squared skewness over n
LOOKS = 8  # random displacements of each target


class MomentResidual(eqx.Module):
    """Residuals [n, q]: values of ``moment`` at n targets, with mean 0 under calibration. Units are
    those of each prediction if the test whitens, else of the test. ``label``: name in reports."""

    moment: Moment
    label: str = eqx.field(static=True)
    components: bool = eqx.field(default=False, init=False, static=True)

    @property
    def needs_scores(self) -> bool:
        return bool(_asks(self.moment, "marginal"))

    def needs_nodes(self, predictions: Standardized) -> bool:
        return bool(_asks(self.moment, "whole_space"))  # to look for edges of densities

    def node_key(self, key: Key) -> Key:
        return key

    def features(
        self,
        key: Key,
        view: View,
        predictions: PredictionsLike,
        target_kernel: KernelLike,
        described: Features,
    ) -> Featured:
        if not isinstance(predictions, Standardized) or view.targets is None:
            raise TypeError("predictions: moments are of densities, and classes have none")
        densities: Any = predictions.predictions
        targets, ys = view.targets, view.ys
        common, each = _units(view, predictions)
        centers, scales = common if each is None else each
        logs = each_density(densities, lambda log_density, y: log_density(y), targets)
        finite = jnp.all(jnp.isfinite(ys), axis=1)
        # a target of density 0 is reported by a note of its own: no moment measures it
        impossible = finite & (logs == -jnp.inf)
        # with a parameter that is not finite there is no density: a note on scores reports it
        lost = finite & (
            jnp.isnan(logs) | (logs == jnp.inf) | (impossible & (not_finite(densities) > 0))
        )
        impossible = impossible & ~lost
        keys, moment = jax.random.split(key), self.moment
        bounded, rough = _bounded(keys[0], densities, view, ~finite | lost), jnp.zeros((), bool)
        if _asks(moment, "smoothness") == 2:
            rough = ~smooth(keys[0], densities, targets, centers, scales)
        out = (bool(_asks(moment, "whole_space")) & bounded) | rough
        fitted = getattr(moment, "fitted", None)
        if fitted is not None:
            moment = fitted(keys[1], ys.shape[1], ys.dtype)
        # points and displacements are as wide as the targets, also with standardize=False
        spread = jnp.diag(Units.of(targets.reshape(len(targets), -1)).scale)
        at, units = (common[0], spread[None]) if _asks(moment, "common") else (centers, scales)
        if _asks(moment, "marginal") and each is None:
            units = units @ _roots(view, predictions)
        rows = (jax.random.split(keys[1], len(ys)),) if _asks(moment, "randomized") else ()
        groups = evaluate(moment, densities, targets, at, units, *rows)
        kept = finite & ~impossible & ~lost & ~out
        by_user = not type(moment).__module__.startswith("jaxcal.")
        rare, nonfinite = jnp.zeros((), bool), jnp.sum(lost)
        for group, values in groups.items():
            values = jnp.where(finite[:, None] & ~kept[:, None], 0, values)
            if by_user:
                args = (densities, targets, spread, at, units, *rows)
                rare |= _one_sided(keys[1], moment, group, values, *args)
            nonfinite = nonfinite + not_finite(jnp.where(finite[:, None], values, 0))
            groups[group] = values
        values = jnp.concatenate([*groups.values()], axis=1)
        notes = noted(view, (), described) | {
            "nonfinite-scores": nonfinite,
            "impossible-targets": jnp.sum(impossible),
            "density-with-edge": bounded,
            "rough-density": rough,
            "rare-targets": rare,
            "skewed-moment": _on_the_short_side(values),
        }
        if view.scores is not None:
            notes["reversed-sign"] = signs_reversed(view.ys, view.scores) & ~bounded
        return Featured(WeightedFeatures(described, values), notes, excluded=out)

    def statistic(self, featured: Featured, target_kernel: KernelLike) -> Inner:
        return Inner()


def _asks(moment: object, name: str) -> int:
    return getattr(moment, name, 0)


def _one_sided(
    key: Key,
    moment: Any,
    group: str,
    values: Float[Array, "n q"],
    densities: Any,
    targets: Array,
    scale: Float[Array, "d d"],
    *at: Any,
) -> Bool[Array, ""]:
    r"""Return whether all values have the same sign although their expectation may be 0.

    Let :math:`u_i` be the projections of the values on their sum, and -b the smallest possible
    projection. If E u = 0, then :math:`P(u \geq u_i) \leq b / (b + u_i)` (Markov's inequality). The
    result is True if all :math:`u_i > 0` and the product of these bounds exceeds `CHANCE`. b is
    estimated at targets with added normal noise of ``scale``.
    """
    along = values @ jnp.sum(values, axis=0)

    def opposite(key: Key) -> Array:
        far = normals(key, (len(targets), len(scale)), targets.dtype) @ scale
        moved = targets + far.reshape(targets.shape)
        there = evaluate(moment, densities, moved, *at)[group] @ jnp.sum(values, axis=0)
        logs = each_density(densities, lambda log_density, y: log_density(y), moved)
        return jnp.max(jnp.where(jnp.isfinite(logs) & jnp.isfinite(there), -there, 0))

    b = at_least(jnp.max(jax.lax.map(opposite, jax.random.split(key, LOOKS))), 0)
    share = jnp.where(along > 0, b / jnp.where(along > 0, b + along, 1), 1)
    return jnp.all(along > 0) & (jnp.prod(share) > CHANCE)


def _on_the_short_side(values: Float[Array, "n q"]) -> Bool[Array, ""]:
    """Return whether a null of random signs may reject too often: whether the values, projected on
    their sum, have a skewness below -(n / 20)^1/2."""
    along = values @ jnp.sum(values, axis=0)
    about = along - jnp.mean(along)
    variance = jnp.mean(about**2)
    skewness = jnp.mean(about**3) / jnp.where(variance > 0, variance, 1) ** 1.5
    return at_least(-skewness, 0) ** 2 > SKEWED * len(values)


Place = tuple[Float[Array, "#n d"], Float[Array, "#n d d"]]


def _units(view: View, predictions: Standardized) -> tuple[Place, Place | None]:
    """Return two pairs (centre, scale) in units of the data: one for all predictions, with shapes
    [1, d] and [1, d, d]; and one with n rows, one per prediction, or None if not whitened."""
    units, whitening = predictions.units, view.whitening
    about = units.units if isinstance(units, OwnUnits) else units
    common = about.center[None], jnp.diag(about.scale)[None]
    if whitening is None:
        return common, None
    return common, (about.original(whitening.center), common[1] @ whitening.scale)


def _roots(view: View, predictions: Standardized) -> Float[Array, "#n d d"]:
    """Return Cholesky factors of the predictions' covariances in the units of the test, computed by
    `covariances_of` or, if that returns None, by `in_common`. The factor is the identity if there
    are no scores, if the covariance is not finite, or if `in_common` is needed and n < 2 d."""
    n, d = view.ys.shape
    eye = jnp.eye(d, dtype=view.ys.dtype)[None]
    nodes, values = (None, None) if view.at_nodes is None else view.at_nodes
    if view.scores is None:
        return eye
    fitted = attribution.covariances_of(predictions, nodes, values, view.scores)
    if fitted is None and n < 2 * d:
        return eye
    covariances = attribution.in_common(view.scores)[None] if fitted is None else fitted
    finite = jnp.all(jnp.isfinite(covariances), axis=(1, 2), keepdims=True)
    return jnp.linalg.cholesky(jnp.where(finite, covariances, eye))


def _bounded(key: Key, predictions: Any, view: View, lost: Bool[Array, " n"]) -> Bool[Array, ""]:
    """Return whether any density has an edge: declared by its type, crossed by a randomly moved
    target, or shown by a NaN score at a node. Scores in the rows ``lost`` are ignored."""
    assert view.targets is not None
    if is_distribution(predictions) and states_an_end(predictions):
        return jnp.ones((), bool)
    has_edge = edges(key, predictions, view.targets).seen
    if view.at_nodes is None:
        return has_edge
    return has_edge | jnp.any(jnp.isnan(view.at_nodes.values) & ~lost[:, None, None])
