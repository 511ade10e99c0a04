"""Numerical checks of a density: where its support ends, and whether it is twice differentiable."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxcal.moments.evaluation import evaluate
from jaxcal.numerics import at_least, normals
from jaxcal.read import Units
from jaxcal.read.scores import each_density, is_distribution, on_whole_space
from jaxcal.typing import Key, Points, Predictions

LENGTHS = (0.06, 0.2, 0.7, 2.8)  # of moves, in standard deviations of all targets
HALVINGS = 24  # bisection steps towards an edge
NEAR = 2.0 ** np.array([-8, -14])  # distances from an edge, relative to that of the target
SLOPE, DROP = 0.9, 12.0


class Edges(NamedTuple):
    """``seen`` []: whether a move ends where a density is 0 or NaN; ``abrupt`` []: whether the
    density jumps there, or vanishes more slowly than the distance."""

    seen: Bool[Array, ""]
    abrupt: Bool[Array, ""]


def edges(key: Key, predictions: Predictions, targets: Float[Array, "n *event"]) -> Edges:
    r"""Look for edges of the densities by moving targets.

    Each target is moved by .06, .2, .7 and 2.8 standard deviations of all targets, in both
    directions of a random line for each. If a density is large near an edge, some calibrated
    targets are near it, and some moves cross it.

    The edge b is located by bisection. Near b the density grows like :math:`r^\alpha` with the
    distance r; :math:`\alpha` is estimated by the slope of log p between r and r / 64. The Stein
    identity of the score holds for :math:`\alpha > 0`, and its variance is finite for
    :math:`\alpha > 1`. An edge is abrupt if the slope is below .9 and the density beside the edge
    is above :math:`e^{-12}` times that at the target.

    Cost: 9 log densities per target; 26 more if it has an edge.
    """
    nowhere = jnp.zeros((), bool)
    if is_distribution(predictions) and on_whole_space(predictions):
        return Edges(nowhere, nowhere)
    predictions, targets = jax.tree.map(jax.lax.stop_gradient, (predictions, targets))
    n = targets.shape[0]
    scale = Units.of(targets.reshape(n, -1)).scale
    d = scale.size

    def logs(steps: Points) -> Float[Array, " n"]:
        moved = targets + (scale[None] * steps).reshape(targets.shape)
        return each_density(predictions, lambda log_density, y: log_density(y), moved)

    lines = normals(key, (len(LENGTHS), n, d), targets.dtype)
    lines = lines / jnp.linalg.norm(lines, axis=-1, keepdims=True)
    lines = lines * jnp.asarray(LENGTHS, targets.dtype)[:, None, None]
    steps = jnp.stack([lines, -lines], axis=1).reshape(-1, n, d)  # shortest first
    moved = jax.lax.map(logs, jnp.concatenate([jnp.zeros_like(steps[:1]), steps]))
    here = moved[0]
    ends = ~jnp.isfinite(moved[1:]) & jnp.isfinite(here)[None]
    crossed = jnp.any(ends, axis=0)
    step = steps[jnp.argmax(ends, axis=0), jnp.arange(n)]

    def halve(way: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        k, low, high = way
        middle = (low + high) / 2
        inside = jnp.isfinite(logs(middle[:, None] * step))
        return k + 1, jnp.where(inside, middle, low), jnp.where(inside, high, middle)

    def unfinished(way: tuple[Array, Array, Array]) -> Array:
        return (way[0] < HALVINGS) & jnp.any(crossed)

    start = jnp.zeros((), int), jnp.zeros_like(here), jnp.ones_like(here)
    _, _, edge = jax.lax.while_loop(unfinished, halve, start)
    beside = edge[None] * (1 - jnp.asarray(NEAR, edge.dtype))[:, None]
    far, near = jax.lax.map(lambda at: logs(at[:, None] * step), beside)
    slope = (far - near) / float(np.log(NEAR[0] / NEAR[1]))
    falls = jnp.isfinite(near) & ((slope >= SLOPE) | (here - near >= DROP))
    placed = edge > 2.0**-4  # an edge closer to its target is not located precisely enough
    return Edges(jnp.any(crossed), jnp.any(crossed & placed & ~falls))


ROUGH = 0.01  # share of segments that may disagree


def smooth(
    key: Key,
    predictions: Predictions,
    targets: Float[Array, "n *event"],
    centers: Float[Array, "#n d"],
    scales: Float[Array, "#n d d"],
) -> Bool[Array, ""]:
    r"""Return whether second derivatives explain differences of scores on 99 % of n segments.

    Compares :math:`s(b) - s(a)` with :math:`\int_a^b \nabla^2 \log p`, by Gauss's rule of two
    points, on a segment from each target in a random direction, .3 times as long as a prediction is
    typically wide (one over the root mean square of the scores). Across a kink (of a ReLU network
    or a Laplace density) the left side jumps, which automatic differentiation misses. ``centers``
    and ``scales`` are those of `evaluate`. Cost: 3 gradients and 2 Hessian-vector products per
    target.
    """
    n, d = targets.shape[0], centers.shape[1]
    scores = evaluate(_score, predictions, targets, centers, scales)["moment"]
    size = jnp.sqrt(jnp.mean(jnp.where(jnp.isfinite(scores), scores, 0) ** 2))
    length = 0.3 / jnp.where(size > 0, size, 1)
    directions = normals(key, (n, d), targets.dtype)
    directions = directions / jnp.linalg.norm(directions, axis=1, keepdims=True)
    steps = length * directions

    segment: Any = _gap
    gaps = evaluate(segment, predictions, targets, centers, scales, steps)["moment"]
    off = jnp.linalg.norm(gaps, axis=1) > 0.1 * at_least(size, 0)
    return jnp.mean(off, dtype=targets.dtype) <= ROUGH


def _score(log_density: Any, y: Array) -> Array:
    return jax.grad(log_density)(y)


def _gap(log_density: Any, y: Array, step: Array) -> Array:
    """Return the difference of scores along a segment minus the integral of the Hessian."""
    score = jax.grad(log_density)

    def slope(part: float) -> Array:
        return jax.jvp(score, (y + part * step,), (step,))[1]

    inner = 0.5 / 3**0.5
    return score(y + step) - score(y) - (slope(0.5 - inner) + slope(0.5 + inner)) / 2
