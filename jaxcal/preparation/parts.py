"""Moments as residuals, one or several beside each other: what `moment_test` and
`calibration_test` compare."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from jaxcal.kernels import points
from jaxcal.models import OwnUnits, Standardized
from jaxcal.moments import KernelStein, Moment, evaluate, marginal_means, smooth
from jaxcal.moments.support import edges
from jaxcal.numerics import not_finite
from jaxcal.pairwise.stein import Stein, SteinFeatures
from jaxcal.pairwise.weighted import Inner, Weighted, WeightedFeatures
from jaxcal.preparation.residuals import Channels, Featured, noted
from jaxcal.preparation.views import View
from jaxcal.scores import each_density, is_distribution, signs_reversed, states_an_end
from jaxcal.typing import DivergenceLike, Features, KernelLike, Key, Points, PredictionsLike

CHANCE = 0.002  # that all values lie on one side, which may be no evidence: 1 of 500 draws
LOOKS = 8  # moves of each target


class MomentsResidual(eqx.Module):
    """Moments of each target under its prediction; with ``apart`` a channel a named group.

    ``labels``: of the moments, one each. Moments are called in the units of the predictions.
    """

    moments: tuple[Moment | KernelStein, ...]
    labels: tuple[str, ...] = eqx.field(static=True)
    apart: bool = eqx.field(default=False, static=True)
    components: bool = eqx.field(default=False, init=False, static=True)

    @property
    def needs_scores(self) -> bool:
        return any(isinstance(one, KernelStein) or _asks(one, "marginal") for one in self.moments)

    def needs_nodes(self, predictions: Standardized) -> bool:
        return any(_asks(one, "whole_space") for one in self.moments)  # to look for a boundary

    def node_key(self, key: Key) -> Key:
        return key

    def divided(
        self, view: View, divergence: DivergenceLike, kernel: KernelLike
    ) -> tuple[PyTree, PyTree]:
        return view.predictions, view.about_origin

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
        # a target where the density is 0 is an error of its own: no moment says how large
        impossible = finite & (logs == -jnp.inf)
        # unless a parameter is not finite: then there is no density
        lost = finite & (
            jnp.isnan(logs) | (logs == jnp.inf) | (impossible & (not_finite(densities) > 0))
        )
        impossible = impossible & ~lost
        keys = jax.random.split(key, 1 + len(self.moments))
        bounded, rough = _bounded(keys[0], densities, view, ~finite | lost), jnp.zeros((), bool)
        if any(_asks(one, "smoothness") == 2 for one in self.moments):
            rough = ~smooth(keys[0], densities, targets, centers, scales)
        nonfinite, parts, rare = jnp.sum(lost), [], jnp.zeros((), bool)
        for k, (label, moment) in enumerate(zip(self.labels, self.moments, strict=True)):
            out = (bool(_asks(moment, "whole_space")) & bounded) | (
                (_asks(moment, "smoothness") == 2) & rough
            )
            at, units, rows = centers, scales, ()
            if isinstance(moment, KernelStein):
                assert view.scores is not None
                groups = {"shape": view.point_scores}
            else:
                fitted = getattr(moment, "fitted", None)
                if fitted is not None:
                    moment = fitted(keys[k + 1], ys.shape[1], ys.dtype)
                if _asks(moment, "common"):
                    at, units = common
                if _asks(moment, "marginal") and each is None:
                    units = units @ _roots(view, predictions)
                if _asks(moment, "randomized"):
                    rows = (jax.random.split(keys[k + 1], ys.shape[0]),)
                groups = evaluate(moment, densities, targets, at, units, *rows)
            for group, values in groups.items():
                if values.shape[1] == 0:  # no correlation in one dimension
                    continue
                kept = finite & ~impossible & ~lost & ~out
                values = jnp.where(finite[:, None] & ~kept[:, None], 0, values)
                if not type(moment).__module__.startswith("jaxcal."):  # but a user's own
                    args = (densities, targets, common[1][0], at, units, *rows)
                    rare |= _one_sided(keys[k + 1], moment, group, values, *args)
                nonfinite = nonfinite + not_finite(jnp.where(finite[:, None], values, 0))
                name = label if group == "moment" else f"{label}: {group}"
                parts.append(Part(moment, values, ~finite | kept, out, name))
        if not self.apart:
            values = jnp.concatenate([part.values for part in parts], axis=1)
            out = jnp.any(jnp.stack([part.out for part in parts]))
            parts = [Part(None, values, finite, out, self.labels[0])]
        names = tuple(part.name for part in parts)
        features = tuple(_features(part, view.points) for part in parts)
        notes = noted(view, (), described) | {
            "nonfinite-scores": nonfinite,
            "impossible-targets": jnp.sum(impossible),
            "density-with-edge": bounded,
            "rough-density": rough,
            "rare-targets": rare,
        }
        if view.scores is not None:
            notes["reversed-sign"] = signs_reversed(view.ys, view.scores) & ~bounded
        left_out = jnp.stack([part.out for part in parts])
        return Featured(
            WeightedFeatures(described, features), notes, channels=Channels(names, left_out)
        )

    def pairwise(
        self,
        featured: Featured,
        target_kernel: Any,
        prediction_kernel: KernelLike,
        divergence: DivergenceLike,
    ) -> Weighted:
        statistics = []
        stein = iter([one for one in self.moments if isinstance(one, KernelStein)])
        for features in featured.features.residuals:
            if isinstance(features, SteinFeatures):
                one = next(stein)
                kernel = points.with_bandwidth(one.kernel, one.factor * target_kernel.bandwidth)
                statistics.append(Stein(kernel, dimension=features.ys.shape[1]))
            else:
                statistics.append(Inner())
        return Weighted(prediction_kernel, divergence, tuple(statistics))


class Part(NamedTuple):
    """A channel: a moment's group of values [n, q], which observations [n] take part, whether the
    moment is left out, and what the channel is called."""

    moment: Moment | KernelStein | None
    values: Float[Array, "n q"]
    kept: Bool[Array, " n"]
    out: Bool[Array, ""]
    name: str


def _features(part: Part, ys: Points) -> Features:
    if not isinstance(part.moment, KernelStein):
        return part.values
    return SteinFeatures(ys, part.values, part.kept.astype(ys.dtype))


def _asks(moment: object, name: str) -> int:
    """What a moment says about itself; 0 or False where it does not."""
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
    r"""Whether all values lie on one side, as they may by chance: those of the other did not come.

    With u the values along their sum, all above 0, and -b the least value of a prediction, mean 0
    gives :math:`P(u \geq u_i) \leq b / (b + u_i)`, and all n have at most the probability of the
    product. b is looked for at targets moved by normal numbers of the targets' deviation.
    """
    along = values @ jnp.sum(values, axis=0)

    def opposite(key: Key) -> Array:
        far = jax.random.normal(key, (len(targets), len(scale)), targets.dtype) @ scale
        moved = targets + far.reshape(targets.shape)
        there = evaluate(moment, densities, moved, *at)[group] @ jnp.sum(values, axis=0)
        logs = each_density(densities, lambda log_density, y: log_density(y), moved)
        return jnp.max(jnp.where(jnp.isfinite(logs) & jnp.isfinite(there), -there, 0))

    b = jnp.max(jax.lax.map(opposite, jax.random.split(key, LOOKS)))
    share = jnp.where(along > 0, b / jnp.where(along > 0, b + along, 1), 1)
    return jnp.all(along > 0) & (jnp.prod(share) > CHANCE)


Place = tuple[Float[Array, "#n d"], Float[Array, "#n d d"]]


def _units(view: View, predictions: Standardized) -> tuple[Place, Place | None]:
    """Centre and scale, in the units the targets came in: those of the test, in common, and those
    of each prediction where it is whitened."""
    units, whitening = predictions.units, view.whitening
    about = units.units if isinstance(units, OwnUnits) else units
    common = about.center[None], jnp.diag(about.scale)[None]
    if whitening is None:
        return common, None
    return common, (about.original(whitening.center), common[1] @ whitening.scale)


def _roots(view: View, predictions: Standardized) -> Float[Array, "#n d d"]:
    """A root of the covariance that each prediction claims, in the units of the test; of the
    matrix in common where too few nodes tell, and of all targets' where there is none."""
    n, d = view.ys.shape
    eye = jnp.eye(d, dtype=view.ys.dtype)[None]
    nodes, values = (None, None) if view.at_nodes is None else view.at_nodes
    if view.scores is None:
        return eye
    fitted = marginal_means.covariances_of(predictions, nodes, values, view.scores)
    if fitted is None and n < 2 * d:
        return eye
    covariances = marginal_means.in_common(view.scores)[None] if fitted is None else fitted
    finite = jnp.all(jnp.isfinite(covariances), axis=(1, 2), keepdims=True)
    return jnp.linalg.cholesky(jnp.where(finite, covariances, eye))


def _bounded(key: Key, predictions: Any, view: View, lost: Bool[Array, " n"]) -> Bool[Array, ""]:
    """Whether a density ends: a distribution says so, or it is 0 at a node or a moved target."""
    assert view.targets is not None
    if is_distribution(predictions) and states_an_end(predictions):
        return jnp.ones((), bool)
    seen = edges(key, predictions, view.targets).seen
    if view.at_nodes is None:
        return seen
    return seen | jnp.any(jnp.isnan(view.at_nodes.values) & ~lost[:, None, None])
