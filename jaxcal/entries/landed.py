r"""Draw weighted points near each prediction, among which the target has uniform ranks.

Take the target, a draw of p under calibration, and m draws of a density q, with weights
:math:`w_c \propto p(z_c) / q(z_c)` for all m + 1 points :math:`z_c`. If only the set of points
is known, point c is the target with probability :math:`w_c`. So the weighted, randomized
rank of **any** statistic of the target is exactly uniform given its prediction, for every m and
every q with q > 0 where p > 0. If q = p, all weights are equal. p is needed up to a constant only.

Source: Tjelmeland (2004) for the weights; Besag and Clifford (1989) for exchangeability.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
from jaxtyping import Key as KeyArray

from jaxcal.numerics import at_least, eliminated, normal_of, psd_root, uniforms
from jaxcal.read import Draws, Standardized
from jaxcal.read.families import heavy_tailed, offered_moments
from jaxcal.read.sampling import value_if_any
from jaxcal.read.scores import each_density, is_distribution
from jaxcal.typing import DTypeLike, Key, Points
from jaxcal.whitening import Landing

N_POINTS = 96  # per target
N_NODES = 10  # nodes; the search for a mode starts at the best one
N_FIRST = 48  # points for a first estimate of where the mass is
ROUNDS = 4  # rounds of points that locate the mass
FAR = 1e3  # distance in deviations at which it is checked that a density has fallen
ENOUGH = 8  # least effective number of points whose moments replace the mode
# share and deviation of each normal density that points are drawn from: around the mode (deviation
# relative to its curvature), around the first points, around all targets
SUMMIT, MASS, COMMON = (0.4, 1.2), (0.35, 1.2), (0.25, 1.2)


class Landed(NamedTuple):
    """The target and m points of each of n predictions, in standardized units.

    ``points`` [n, m + 1, d], the target first; ``logs`` [n, m + 1], log densities up to a constant
    per prediction; ``weights`` [n, m + 1], rows sum to 1. Other fields do not depend on targets:
    ``centers`` [n, d]; ``scales`` [n, d, d], where ``scales @ scales.T`` approximates covariances
    near a mode; ``claims``: (centre, standard deviation) of predictions, both [n, d], from which
    features are computed; ``endless`` [n]: whether density i falls more slowly than 1 / distance
    along coordinate i mod d, so that its integral is infinite. It is False for draws.
    ``originals`` [n, m + 1, *event]: the points in units of the data, not rounded by a change of
    units and back.
    """

    points: Float[Array, "n k d"]
    logs: Float[Array, "n k"]
    weights: Float[Array, "n k"]
    centers: Points
    scales: Float[Array, "n d d"]
    claims: tuple[Points, Points]
    endless: Bool[Array, " n"]
    originals: Float[Array, "n k *event"]


def landed(key: Key, predictions: Standardized, ys: Points, targets: Array) -> Landed:
    r"""Return points near each prediction: draws if it can be sampled, else weighted points.

    Weighted points come from a mixture of three normal densities. The first is at a mode, with the
    curvature there. The second has mean and covariance of all targets. The third has mean and
    covariance of weighted points from the first two, so that it covers further modes.

    ``ys`` [n, d]: targets in standardized units; ``targets`` [n, *event]: in the units of the data.
    Densities are evaluated at ``targets``, as a change of units and back may alter integers.

    Cost per prediction: m + 51 log densities and a `jaxcal.whitening.Landing`. For draws: m + 1.
    """
    draws = None
    distribution: Any = predictions.predictions
    if isinstance(distribution, Draws):
        draws = jnp.moveaxis(distribution.samples, 1, 0)
    elif is_distribution(distribution):
        n = () if distribution.batch_shape else (len(ys),)
        draws = value_if_any(distribution.sample, key, (2 * N_POINTS, *n))
    if draws is None:
        return _climbed(key, predictions, ys, targets)
    return _drawn(predictions, jnp.moveaxis(draws, 0, 1).astype(ys.dtype), ys, targets)


def _drawn(
    predictions: Standardized, draws: Float[Array, "n k *event"], ys: Points, targets: Array
) -> Landed:
    """Return `Landed` with the first half of the draws as points. Centres and scales are known
    moments, or come from the other half; for `Draws` they define normal log densities."""
    (n, d), k = ys.shape, draws.shape[1]
    originals = jnp.concatenate([targets[:, None], draws[:, : k // 2]], axis=1)
    points = predictions.units.points(originals.reshape(n, -1, d))

    def estimated() -> Located:
        more = predictions.units.points(draws[:, k // 2 :].reshape(n, -1, d))
        centers = jnp.mean(more, axis=1)
        gaps = more - centers[:, None]
        covariances = jnp.einsum("nmi,nmj->nij", gaps, gaps) / (gaps.shape[1] - 1)
        return *_usable(centers, psd_root(covariances)), jnp.ones(n, bool)

    centers, scales, _ = _known_or(estimated, predictions, ys.shape, ys.dtype)
    if isinstance(predictions.predictions, Draws):
        logs = _log_normal(centers, scales, points, few=k - k // 2)
    else:
        logs = _logs(predictions, originals, ys.dtype)
    weights = jnp.full_like(logs, 1 / logs.shape[1])
    claims, endless = (centers, jnp.linalg.norm(scales, axis=2)), jnp.zeros(len(ys), bool)
    return Landed(points, logs, weights, centers, scales, claims, endless, originals)


def _log_normal(
    centers: Points, scales: Float[Array, "n d d"], points: Float[Array, "n k d"], few: int
) -> Float[Array, "n k"]:
    """Return log densities of normal distributions at k points, up to constants. Covariances
    ``scales @ scales.T``, estimated from ``few`` draws, are first shrunk towards diagonals."""
    covariances, d = scales @ jnp.swapaxes(scales, 1, 2), centers.shape[1]
    share = jnp.where(jnp.eye(d, dtype=bool), 1, few / (d + few)).astype(scales.dtype)
    covariances = covariances * share[None]
    forms = eliminated(covariances, jnp.swapaxes(points - centers[:, None], 1, 2)).forms
    return -forms / 2


def _climbed(key: Key, predictions: Standardized, ys: Points, targets: Array) -> Landed:
    keys = jax.random.split(key, 5)
    near, (chance,) = _Near.of(keys[:3], predictions, ys.shape, ys.dtype, len(ys), (N_POINTS,))
    three = near.three
    points = _mixed(chance, three)
    looked_at = _originals(predictions, jnp.concatenate([points, _far(*near.claims)], axis=1))
    points = jnp.concatenate([ys[:, None], points], axis=1)
    looked_at = jnp.concatenate([targets[:, None], looked_at], axis=1)
    originals = looked_at[:, : points.shape[1]]
    all_logs = _logs(predictions, looked_at, ys.dtype, at_target=True)
    logs, beyond = jnp.split(all_logs, [points.shape[1]], axis=1)
    endless = jnp.max(beyond, axis=1) + math.log(FAR) > jnp.max(logs, axis=1) - 1
    weights = jax.nn.softmax(logs - _log_mixture(three, points), axis=1)
    located = near.centers, near.scales, near.claims
    return Landed(points, logs, weights, *located, endless, originals)


def _far(centers: Points, deviations: Points) -> Float[Array, "n 2 d"]:
    """Return points `FAR` deviations to either side of centre i, along coordinate i mod d."""
    n, d = centers.shape
    along = jnp.arange(n)[:, None] % d == jnp.arange(d)[None]
    steps = FAR * jnp.where(along, at_least(deviations, 1), 0)
    return jnp.stack([centers + steps, centers - steps], axis=1)


PointKeys = KeyArray[Array, " k"]
Part = tuple[tuple[float, float], Points, Float[Array, "n d d"]]  # (share, deviation), c and M
# a uniform number that selects the normal density of a point, and standard normal noise
Chance = tuple[Float[Array, "r m 1"], Float[Array, "r m d"]]


def _chances(
    keys: PointKeys, d: int, rows: int, counts: tuple[int, ...], dtype: DTypeLike
) -> tuple[Float[Array, "nodes d"], list[Chance]]:
    """Return standard normal nodes, and for each m in ``counts`` random numbers for m points."""
    shapes = [(N_NODES, d)]
    for m in counts:
        shapes += [(rows, m, 1), (rows, m, d)]
    *each, last = [keys[0], *(key for pair in jax.vmap(jax.random.split)(keys[1:]) for key in pair)]
    nodes, *drawn = uniforms(each, shapes[:-1], dtype)
    drawn.append(jax.random.uniform(last, shapes[-1], dtype))  # `uniforms` makes all as large
    noise = [normal_of(u) for u in drawn[1::2]]
    return normal_of(nodes), [*zip(drawn[::2], noise, strict=True)]


class _Near(NamedTuple):
    """Estimates of where n predictions have mass: ``centers`` and ``scales`` at modes; mean
    ``middle`` and covariance ``spread`` of `N_FIRST` points with importance ``weights``."""

    centers: Points
    scales: Float[Array, "n d d"]
    weights: Float[Array, "n m"]
    middle: Points
    spread: Float[Array, "n d d"]

    @classmethod
    def of(
        cls,
        keys: PointKeys,
        predictions: Standardized,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        rows: int,
        later: tuple[int, ...],
    ) -> "tuple[_Near, list[Chance]]":
        """Return `_Near` of predictions of ``shape`` (n, d), and random numbers for later points.

        ``later``: sizes of the sets of later points. ``keys``: one for nodes, one for first points,
        one per later set. ``rows``: n, or 1 if all predictions use the same random numbers.
        """
        nodes, (chance, *others) = _chances(keys, shape[1], rows, (N_FIRST, *later), dtype)
        summits = Landing().summits(predictions, nodes, shape[0])
        centers, scales = _usable(summits.center, summits.scale)
        two = _about(centers, scales)
        first = _mixed(chance, two)
        logs = _logs(predictions, _originals(predictions, first), dtype)
        w = jax.nn.softmax(logs - _log_mixture(two, first), axis=1)
        return cls(centers, scales, w, *_moments(w, first)), others

    @property
    def three(self) -> list[Part]:
        """Return the normal densities of the mixture in `landed`: around the mode, all targets, and
        the first points. The last covariance is enlarged, as few points may have weight."""
        two = _about(self.centers, self.scales)
        d = self.centers.shape[1]
        wider = self.spread + self.scales @ jnp.swapaxes(self.scales, 1, 2) / 5
        size = jnp.trace(wider, axis1=1, axis2=2)[:, None, None] / d
        return [*two, (MASS, *_usable(self.middle, psd_root(wider + 1e-3 * size * two[1][2])))]

    @property
    def claims(self) -> tuple[Points, Points]:
        """Return centres and standard deviations, [n, d] each: from ``middle`` and ``spread`` if
        these differ clearly from the mode and enough points have weight, else from the mode."""
        deviations = jnp.linalg.norm(self.scales, axis=2)
        enough = 1 / jnp.sum(self.weights**2, axis=1) > ENOUGH
        widths = jnp.sqrt(at_least(jnp.diagonal(self.spread, axis1=1, axis2=2), 0))
        away = jnp.any(jnp.abs(self.middle - self.centers) > deviations, axis=1)
        other = jnp.any((widths > 2 * deviations) | (2 * widths < deviations), axis=1)
        mass = (enough & (away | other) & jnp.all(widths > 0, axis=1))[:, None]
        return (jnp.where(mass, self.middle, self.centers), jnp.where(mass, widths, deviations))


def _about(centers: Points, scales: Float[Array, "n d d"]) -> list[Part]:
    eyes = jnp.broadcast_to(jnp.eye(centers.shape[1], dtype=scales.dtype)[None], scales.shape)
    return [(SUMMIT, centers, scales), (COMMON, jnp.zeros_like(centers), eyes)]


def _moments(
    w: Float[Array, "n m"], points: Float[Array, "n m d"]
) -> tuple[Points, Float[Array, "n d d"]]:
    middle = jnp.einsum("nm,nmi->ni", w, points)
    gaps = points - middle[:, None]
    return middle, jnp.einsum("nm,nmi,nmj->nij", w, gaps, gaps)


Located = tuple[Points, Float[Array, "n d d"], Bool[Array, " n"]]  # centres, scales, reliable?


def located(key: Key, predictions: Standardized, n: int, d: int, dtype: DTypeLike) -> Located:
    """Return centres [n, d], scales [n, d, d], and whether they are reliable, [n].

    Known finite moments are reliable. Else moments are estimated from points drawn in rounds, and
    are reliable if enough points have weight. Equal predictions get equal values. Cost of an
    estimate: `ROUNDS` max(2, d) `N_POINTS` + `N_FIRST` log densities and a
    `jaxcal.whitening.Landing`.
    """
    return _known_or(lambda: _searched(key, predictions, n, d, dtype), predictions, (n, d), dtype)


def _known_or(
    estimated: Callable[[], Located],
    predictions: Standardized,
    shape: tuple[int, ...],
    dtype: DTypeLike,
) -> Located:
    """Return known moments of predictions of ``shape`` (n, d), or estimates if there are none. If
    known moments of a distribution with heavy tails are not finite, estimates replace them."""
    offered, (n, d) = offered_moments(predictions), shape
    if offered is None:
        return estimated()
    centers = jnp.broadcast_to(offered.mean, (n, d)).astype(dtype)
    covariances = jnp.broadcast_to(offered.cov, (n, d, d)).astype(dtype)
    of_moments = *_usable(centers, psd_root(covariances)), jnp.ones(n, bool)
    if not heavy_tailed(predictions):
        return of_moments
    finite = jnp.all(jnp.isfinite(centers), axis=1) & jnp.all(jnp.isfinite(covariances), (1, 2))

    def both() -> Located:
        return jax.tree.map(
            lambda a, b: jnp.where(jnp.expand_dims(finite, range(1, a.ndim)), a, b),
            of_moments,
            estimated(),
        )

    return jax.lax.cond(jnp.all(finite), lambda: of_moments, both)


def _searched(key: Key, predictions: Standardized, n: int, d: int, dtype: DTypeLike) -> Located:
    keys = jax.random.split(key, 2 + ROUNDS)
    near, rounds = _Near.of(keys, predictions, (n, d), dtype, 1, (max(2, d) * N_POINTS,) * ROUNDS)
    *two, (_, center, scale) = near.three

    def again(
        at: tuple[Points, Array, Array], chance: Chance
    ) -> tuple[tuple[Points, Array, Array], None]:
        parts = [*two, (MASS, *at[:2])]
        points = _mixed(chance, parts)
        middle, spread, enough = _tempered(predictions, parts, points)
        moved = _usable(middle, psd_root(spread))
        return (moved[0], moved[1], enough), None

    stacked = jax.tree.map(lambda *each: jnp.stack(each), *rounds)
    at, _ = jax.lax.scan(again, (center, scale, jnp.ones(n, bool)), stacked)
    return at


def _tempered(
    predictions: Standardized, parts: list[Part], points: Float[Array, "n m d"]
) -> tuple[Points, Float[Array, "n d d"], Bool[Array, " n"]]:
    """Return mean and covariance of weighted points, and whether the weights were used unchanged.
    Weights are raised to the largest power among 1, 1/2, 1/4, .. that leaves enough points."""
    logs = _logs(predictions, _originals(predictions, points), points.dtype)
    logs = logs - _log_mixture(parts, points)
    powers = 2.0 ** -jnp.arange(8, dtype=logs.dtype)
    all_weights = jax.nn.softmax(powers[:, None, None] * logs[None], axis=2)
    enough = 1 / jnp.sum(all_weights**2, axis=2) > ENOUGH + 2 * points.shape[2]
    first = jnp.where(jnp.any(enough, axis=0), jnp.argmax(enough, axis=0), len(powers) - 1)
    w = jnp.take_along_axis(all_weights, first[None, :, None], axis=0)[0]
    return *_moments(w, points), enough[0]


def _mixed(chance: Chance, parts: list[Part]) -> Float[Array, "n m d"]:
    """Return points from a mixture of normal densities per prediction."""
    which, noise = chance
    shares = jnp.cumsum(jnp.asarray([share for (share, _), _, _ in parts], noise.dtype))
    which = which * shares[-1]
    noise = jnp.broadcast_to(noise, (len(parts[0][1]), *noise.shape[1:]))
    points = jnp.zeros_like(noise)
    for k, ((_, deviation), centers, scales) in reversed([*enumerate(parts)]):
        drawn = centers[:, None] + deviation * jnp.einsum("nij,nmj->nmi", scales, noise)
        points = jnp.where(which <= shares[k], drawn, points)
    return points


def _log_mixture(parts: list[Part], points: Float[Array, "n k d"]) -> Float[Array, "n k"]:
    """Return the log density of the mixture at the points, up to a constant."""
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
    """Return centres and scales. Both are replaced, by 0 and I, where the centre is not finite or a
    row of the scale is 0 or not finite. In standardized units, 0 and I describe all targets."""
    eye = jnp.eye(scales.shape[1], dtype=scales.dtype)[None]
    smallest = jnp.min(jnp.linalg.norm(scales, axis=2), axis=1)
    usable = jnp.all(jnp.isfinite(centers), axis=1) & (smallest > 0) & jnp.isfinite(smallest)
    return jnp.where(usable[:, None], centers, 0), jnp.where(usable[:, None, None], scales, eye)


def _originals(
    predictions: Standardized, points: Float[Array, "n k d"]
) -> Float[Array, "n k *event"]:
    return predictions.units.original(points).reshape(*points.shape[:2], *predictions.event)


def _logs(
    predictions: Standardized,
    originals: Float[Array, "n k *event"],
    dtype: DTypeLike,
    *,
    at_target: bool = False,
) -> Float[Array, "n k"]:
    """Return log densities of each prediction at its k points ``originals``, in the units of the
    data. NaN becomes -infinity, as outside of a support. If ``at_target``, point 0 is the target;
    a user's density that is NaN there becomes +infinity: the observation is then unusable."""

    def of_one(log_density: Any, y: Array, zs: Array) -> Array:
        return jax.lax.map(log_density, zs)

    logs = each_density(predictions.predictions, of_one, originals[:, 0], originals)
    logs_or_zero = jnp.where(jnp.isnan(logs), -jnp.inf, logs).astype(dtype)
    if is_distribution(predictions.predictions) or not at_target:
        return logs_or_zero
    return logs_or_zero.at[:, 0].set(jnp.where(jnp.isnan(logs[:, 0]), jnp.inf, logs_or_zero[:, 0]))
