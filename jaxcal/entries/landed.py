r"""Points near each prediction, weighted so that any of them could be the target.

With m points of a density q beside the target, a draw of p under calibration, and weights
:math:`w_c \propto p(z_c) / q(z_c)` over all m + 1 of them, member c is the target with probability
:math:`w_c` given the set. So the weighted, randomized rank of **any** statistic of the target is
uniform given its prediction, exactly, for every m and however badly q fits, as long as q > 0 where
p > 0. Only log densities up to their constants are used; draws of p have equal weights.

Source: Tjelmeland (2004) for the weights; Besag and Clifford (1989) for exchangeability.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxcal.numerics import at_least, eliminated, psd_root
from jaxcal.read import Standardized
from jaxcal.read.families import offered_moments
from jaxcal.read.sampling import sample_if_any
from jaxcal.read.scores import each_density, is_distribution
from jaxcal.typing import DTypeLike, Key, Points
from jaxcal.whitening import Landing

N_POINTS = 96  # beside each target
N_NODES = 10  # from the best of which the climb to a summit begins
N_FIRST = 48  # which say roughly where a prediction has its mass
ROUNDS = 4  # of points, where these say where a prediction has its mass
ENOUGH = 8  # of them, as many as their weights are worth, to say that a summit is not where it is
# shares and deviations of the normal densities that points come from: about the summit, in those
# that the curvature there says; about the mass that the first points found; about all targets
SUMMIT, MASS, COMMON = (0.4, 1.2), (0.35, 1.2), (0.25, 1.2)


class Landed(NamedTuple):
    """Of n predictions, in the units of the test: the target, first, and m points each.

    ``points`` [n, m + 1, d]; ``logs`` [n, m + 1], log densities up to a constant a prediction;
    ``weights`` [n, m + 1], rows sum to 1; ``centers`` [n, d] and ``scales`` [n, d, d], functions of
    the predictions alone, with ``scales @ scales.T`` about the covariances near a summit;
    ``claims``, [n, d] both: what predictions say of centre and deviation, for features.
    """

    points: Float[Array, "n k d"]
    logs: Float[Array, "n k"]
    weights: Float[Array, "n k"]
    centers: Points
    scales: Float[Array, "n d d"]
    claims: tuple[Points, Points]


def landed(key: Key, predictions: Standardized, ys: Points, targets: Array) -> Landed:
    r"""Draw from predictions that can be sampled, and land on the others.

    Of these each point comes from one of three normal densities: about the summit that was climbed
    to, as wide as the curvature there says; about all targets; and about the mass that first points
    from the other two have found, which has all modes in it.

    ``targets`` [n, *event] are ``ys`` as they came: there densities are taken, since a count is no
    whole number any more after a change of units and back.

    Cost: m + 1 log densities a prediction, and those of `jaxcal.whitening.Landing`.
    """
    draws = None
    distribution: Any = predictions.predictions
    if is_distribution(distribution):
        n = () if distribution.batch_shape else (len(ys),)
        draws = sample_if_any(key, distribution, (2 * N_POINTS, *n))
    if draws is None:
        return _climbed(key, predictions, ys, targets)
    return _drawn(predictions, jnp.moveaxis(draws, 0, 1).astype(ys.dtype), ys, targets)


def _drawn(
    predictions: Standardized, draws: Float[Array, "n k *event"], ys: Points, targets: Array
) -> Landed:
    """Half of the draws, with the moments that a distribution knows or else those of the others."""
    (n, d), k = ys.shape, draws.shape[1]
    originals = jnp.concatenate([targets[:, None], draws[:, : k // 2]], axis=1)
    points = predictions.units.points(originals.reshape(n, -1, d))
    offered = offered_moments(predictions)
    if offered is None:
        more = predictions.units.points(draws[:, k // 2 :].reshape(n, -1, d))
        centers = jnp.mean(more, axis=1)
        gaps = more - centers[:, None]
        covariances = jnp.einsum("nmi,nmj->nij", gaps, gaps) / (gaps.shape[1] - 1)
    else:
        centers = jnp.broadcast_to(offered.mean, (n, d)).astype(ys.dtype)
        covariances = jnp.broadcast_to(offered.cov, (n, d, d)).astype(ys.dtype)
    logs = _logs(predictions, originals, ys.dtype)
    weights = jnp.full_like(logs, 1 / logs.shape[1])
    centers, scales = _usable(centers, psd_root(covariances))
    claims = (centers, jnp.linalg.norm(scales, axis=2))
    return Landed(points, logs, weights, centers, scales, claims)


def _climbed(key: Key, predictions: Standardized, ys: Points, targets: Array) -> Landed:
    keys = jax.random.split(key, 5)
    near = _Near.of(keys[0], keys[1], predictions, ys.shape, ys.dtype, len(ys))
    points = _mixed(keys[2], near.three, N_POINTS)
    originals = jnp.concatenate([targets[:, None], _originals(predictions, points)], axis=1)
    points = jnp.concatenate([ys[:, None], points], axis=1)
    logs = _logs(predictions, originals, ys.dtype)
    weights = jax.nn.softmax(logs - _log_mixture(near.three, points), axis=1)
    return Landed(points, logs, weights, near.centers, near.scales, near.claims)


Part = tuple[tuple[float, float], Points, Float[Array, "n d d"]]  # share and deviation, M and c


class _Near(NamedTuple):
    """Where n predictions have their mass: ``centers`` and ``scales`` of the summits, mean
    ``middle`` and covariance ``spread`` of first points under their ``weights``."""

    centers: Points
    scales: Float[Array, "n d d"]
    weights: Float[Array, "n m"]
    middle: Points
    spread: Float[Array, "n d d"]

    @classmethod
    def of(
        cls,
        nodes_key: Key,
        key: Key,
        predictions: Standardized,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        rows: int,
    ) -> "_Near":
        """Of n predictions in d dimensions; ``rows`` as in `_mixed`."""
        nodes = jax.random.normal(nodes_key, (N_NODES, shape[1]), dtype)
        summits = Landing().summits(predictions, nodes, shape[0])
        centers, scales = _usable(summits.center, summits.scale)
        two = _about(centers, scales)
        first = _mixed(key, two, N_FIRST, rows)
        logs = _logs(predictions, _originals(predictions, first), dtype)
        w = jax.nn.softmax(logs - _log_mixture(two, first), axis=1)
        return cls(centers, scales, w, *_moments(w, first))

    @property
    def three(self) -> list[Part]:
        """Normal densities about the summit, about all targets, and about the mass that the first
        points found. Few points may carry all the weight, and digits may not reach from the widest
        direction to the narrowest."""
        two = _about(self.centers, self.scales)
        d = self.centers.shape[1]
        wider = self.spread + self.scales @ jnp.swapaxes(self.scales, 1, 2) / 5
        size = jnp.trace(wider, axis1=1, axis2=2)[:, None, None] / d
        return [*two, (MASS, *_usable(self.middle, psd_root(wider + 1e-3 * size * two[1][2])))]

    @property
    def claims(self) -> tuple[Points, Points]:
        """Centre and deviation of the summit, which has no noise, unless enough first points say
        that it does not stand for the mass, as with several modes."""
        deviations = jnp.linalg.norm(self.scales, axis=2)
        enough = 1 / jnp.sum(self.weights**2, axis=1) > ENOUGH
        widths = jnp.sqrt(at_least(jnp.diagonal(self.spread, axis1=1, axis2=2), 0))
        away = jnp.any(jnp.abs(self.middle - self.centers) > deviations, axis=1)
        other = jnp.any((widths > 2 * deviations) | (2 * widths < deviations), axis=1)
        mass = (enough & (away | other) & jnp.all(widths > 0, axis=1))[:, None]
        return (
            jnp.where(mass, self.middle, self.centers),
            jnp.where(mass, widths, deviations),
        )


def _about(centers: Points, scales: Float[Array, "n d d"]) -> list[Part]:
    """Normal densities about summits, and about all targets."""
    eyes = jnp.broadcast_to(jnp.eye(centers.shape[1], dtype=scales.dtype)[None], scales.shape)
    return [(SUMMIT, centers, scales), (COMMON, jnp.zeros_like(centers), eyes)]


def _moments(
    w: Float[Array, "n m"], points: Float[Array, "n m d"]
) -> tuple[Points, Float[Array, "n d d"]]:
    """Mean and covariance of weighted points."""
    middle = jnp.einsum("nm,nmi->ni", w, points)
    gaps = points - middle[:, None]
    return middle, jnp.einsum("nm,nmi,nmj->nij", w, gaps, gaps)


def located(
    key: Key, predictions: Standardized, n: int, d: int, dtype: DTypeLike
) -> tuple[Points, Float[Array, "n d d"], Bool[Array, " n"]]:
    """Centres and scales of n predictions, the same of equal predictions: from the moments that a
    distribution knows, else from those of weighted points near it, drawn in rounds; and whether
    enough points met the mass, [n].

    Cost: 10 times the log densities of `landed`.
    """
    offered = offered_moments(predictions)
    if offered is not None:
        centers = jnp.broadcast_to(offered.mean, (n, d)).astype(dtype)
        covariances = jnp.broadcast_to(offered.cov, (n, d, d)).astype(dtype)
        return *_usable(centers, psd_root(covariances)), jnp.ones(n, bool)
    keys = jax.random.split(key, 2 + ROUNDS)
    near = _Near.of(keys[0], keys[1], predictions, (n, d), dtype, 1)
    *two, (_, center, scale) = near.three

    def again(
        at: tuple[Points, Array, Array], key: Key
    ) -> tuple[tuple[Points, Array, Array], None]:
        parts = [*two, (MASS, *at[:2])]
        points = _mixed(key, parts, 2 * N_POINTS, 1)
        middle, spread, enough = _tempered(predictions, parts, points)
        moved = _usable(middle, psd_root(spread))
        return (moved[0], moved[1], enough), None

    at, _ = jax.lax.scan(again, (center, scale, jnp.ones(n, bool)), keys[2:])
    return at


def _tempered(
    predictions: Standardized, parts: list[Part], points: Float[Array, "n m d"]
) -> tuple[Points, Float[Array, "n d d"], Bool[Array, " n"]]:
    """Mean and covariance of weighted points, with weights to the largest power of 1, 1/2, .. that
    leaves enough of them; and whether this is 1."""
    logs = _logs(predictions, _originals(predictions, points), points.dtype)
    logs = logs - _log_mixture(parts, points)
    powers = 2.0 ** -jnp.arange(8, dtype=logs.dtype)
    all_weights = jax.nn.softmax(powers[:, None, None] * logs[None], axis=2)
    enough = 1 / jnp.sum(all_weights**2, axis=2) > ENOUGH + 2 * points.shape[2]
    first = jnp.where(jnp.any(enough, axis=0), jnp.argmax(enough, axis=0), len(powers) - 1)
    w = jnp.take_along_axis(all_weights, first[None, :, None], axis=0)[0]
    return *_moments(w, points), enough[0]


def _mixed(key: Key, parts: list[Part], m: int, rows: int | None = None) -> Float[Array, "n m d"]:
    """m points from a mixture of normal densities for each prediction, of as many random numbers as
    there are ``rows``, n or 1."""
    which_key, noise_key = jax.random.split(key)
    n, d = parts[0][1].shape
    shares = jnp.cumsum(jnp.asarray([share for (share, _), _, _ in parts], parts[0][1].dtype))
    rows = n if rows is None else rows
    which = jax.random.uniform(which_key, (rows, m, 1), shares.dtype) * shares[-1]
    noise = jax.random.normal(noise_key, (rows, m, d), shares.dtype)
    noise = jnp.broadcast_to(noise, (n, m, d))
    points = jnp.zeros_like(noise)
    for k, ((_, deviation), centers, scales) in reversed([*enumerate(parts)]):
        drawn = centers[:, None] + deviation * jnp.einsum("nij,nmj->nmi", scales, noise)
        points = jnp.where(which <= shares[k], drawn, points)
    return points


def _log_mixture(parts: list[Part], points: Float[Array, "n k d"]) -> Float[Array, "n k"]:
    """Log of its density, up to a constant."""
    centers = jnp.stack([centers for _, centers, _ in parts])
    scales = jnp.stack([scales for _, _, scales in parts])
    gaps = jnp.swapaxes(points[None] - centers[:, :, None], 2, 3)
    forms, log_dets, _ = eliminated(scales @ jnp.swapaxes(scales, 2, 3), gaps)
    logs = []
    for k, ((share, deviation), middle, _) in enumerate(parts):
        log = math.log(share) - middle.shape[1] * math.log(deviation) - log_dets[k, :, None] / 2
        logs.append(log - forms[k] / (2 * deviation**2))
    return jax.nn.logsumexp(jnp.stack(logs), axis=0)


def _usable(centers: Points, scales: Array) -> tuple[Points, Array]:
    """Those of all targets in the place of what is not finite or has no spread."""
    eye = jnp.eye(scales.shape[1], dtype=scales.dtype)[None]
    smallest = jnp.min(jnp.linalg.norm(scales, axis=2), axis=1)
    usable = jnp.all(jnp.isfinite(centers), axis=1) & (smallest > 0) & jnp.isfinite(smallest)
    return jnp.where(usable[:, None], centers, 0), jnp.where(usable[:, None, None], scales, eye)


def _originals(
    predictions: Standardized, points: Float[Array, "n k d"]
) -> Float[Array, "n k *event"]:
    return predictions.units.original(points).reshape(*points.shape[:2], *predictions.event)


def _logs(
    predictions: Standardized, originals: Float[Array, "n k *event"], dtype: DTypeLike
) -> Float[Array, "n k"]:
    """Log densities of each prediction at its own points, in the units of the data; what is no
    number counts as density 0."""

    def of_one(log_density: Any, y: Array, zs: Array) -> Array:
        return jax.lax.map(log_density, zs)

    logs = each_density(predictions.predictions, of_one, originals[:, 0], originals)
    return jnp.where(jnp.isnan(logs), -jnp.inf, logs).astype(dtype)
