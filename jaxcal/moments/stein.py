r"""The protocol of moments, moments from Stein's identity, and checks that densities satisfy it.

For the score :math:`s_p = \nabla \log p` and a vector field f with p f -> 0 at every boundary,
:math:`E_{y \sim p}[s_p f^\top + \nabla f] = 0` entry by entry, with :math:`(\nabla f)_{ql} =
\partial_q f_l`. Points and scores are in the units of each prediction (`evaluate`). The checks find
whether the support has a boundary (`edges`), and whether p is twice differentiable (`smooth`).
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxcal.numerics import at_least, normals
from jaxcal.read import Units, convert
from jaxcal.read.convert import say
from jaxcal.read.scores import each_density, is_distribution, on_whole_space
from jaxcal.typing import Key, Point, Points, Predictions, Scalar

LogDensityOfOne: TypeAlias = Callable[[Point], Scalar]


@runtime_checkable
class Moment(Protocol):
    """Protocol of moments: numbers with mean zero if y is a draw of the prediction.

    Called with the log density of ONE prediction, known up to its constant, and one target [d],
    both in the units of that prediction; ``log_density(z)`` is a differentiable function of any
    point [d]. Returns q numbers [q], or a dict of such arrays whose keys name the error that a
    nonzero mean indicates. A plain function is a moment.

    Optional attributes and methods:

    - ``whole_space = True``: the moment has mean zero only if the density vanishes at every
      boundary of its support, as with derivatives of a log density; otherwise tests omit it.
    - ``smoothness``: how often the density is differentiated; 0 by default.
    - ``marginal = True``: the moment returns a vector v [d], and `jaxcal.moments.stein.evaluate`
      converts it to ``(M v)_q / sqrt((M M^T)_qq)``, where M M^T is the prediction's covariance.
    - ``common = True``: the moment is in units of the test, not of each prediction.
    - ``randomized = True``: tests pass a random key per target as third argument.
    - ``fitted(key, dimension, dtype)``: returns the moment with its random draws, which are the
      same for all predictions and do not depend on targets.

    Example:
        >>> import jax, jaxcal
        >>> def score(log_density, y):  # its mean under the prediction is 0
        ...     return jax.grad(log_density)(y)
        >>> isinstance(score, jaxcal.moments.Moment)
        True
    """

    def __call__(
        self, log_density: LogDensityOfOne, y: Point, /
    ) -> Float[Array, " q"] | dict[str, Float[Array, " q"]]: ...


def evaluate(
    moment: Moment,
    predictions: Predictions,
    targets: Float[Array, "n *event"],
    centers: Float[Array, "#n d"],
    scales: Float[Array, "#n d d"],
    *rows: Any,
) -> dict[str, Float[Array, "n q"]]:
    r"""Return the values of a moment at n targets, in the units of each prediction: {name: [n, q]}.

    The moment gets :math:`u = M^{-1}(y - c)` in place of y. Centres c [n, d] and scales M [n, d, d]
    are functions of the predictions alone; a leading axis of 1 means the same for all. ``rows`` are
    further arguments of the moment, one row per target. Log densities are evaluated at the raw
    points, so that targets lose no digits. If a log density is NaN, such as log(y) at y < 0, the
    density counts as 0. Values without names are called "moment".
    """
    n, event = targets.shape[0], targets.shape[1:]
    flat = targets.reshape(n, -1)
    scales = jnp.broadcast_to(scales, (n, flat.shape[1], flat.shape[1]))
    us = jnp.linalg.solve(scales, (flat - centers)[..., None])[..., 0]

    def one(log_density: Any, y: Array, u: Point, scale: Array, *row: Any) -> Any:
        def in_units(z: Point) -> Scalar:
            value = log_density(y + (scale @ (z - u)).reshape(event))
            return jnp.where(jnp.isnan(value), -jnp.inf, value)

        values = moment(in_units, u, *row)
        values = values if isinstance(values, dict) else {"moment": values}
        return {name: _numbers(part) for name, part in values.items()}

    values = each_density(predictions, one, targets, us, scales, *rows)
    if not getattr(moment, "marginal", False):
        return values
    deviations = jnp.linalg.norm(scales, axis=2, keepdims=True)
    return {name: jnp.einsum("nij,nj->ni", scales / deviations, v) for name, v in values.items()}


def _numbers(value: Any) -> Float[Array, " q"]:
    try:
        numbers = jnp.atleast_1d(value)
    except TypeError:
        numbers = None
    if numbers is None or numbers.ndim > 1 or not jnp.issubdtype(numbers.dtype, jnp.inexact):
        raise TypeError(
            f"moment: wanted numbers [q] for a log density and a target, or a dict of such, got "
            f"{say(value)}"
        )
    return numbers


Form = Literal["full", "diagonal", "trace", "correlation"]
FORMS = ("full", "diagonal", "trace", "correlation")


class Score(eqx.Module):
    r"""The score :math:`s_p(y)`, [d], as a moment that detects shifts.

    Its mean is 0 if y is a draw of p, and p is continuous and 0 at every boundary of its support.

    Args:
        marginal: False: tests use :math:`M^\top s_p`, with M the scale of the prediction; entry q
            tests coordinate q given the others. True: tests use
            :math:`(\Sigma_p s_p)_q / \sqrt{(\Sigma_p)_{qq}}` with :math:`\Sigma_p = M M^\top`;
            entry q tests coordinate q alone.
        whole_space: Whether tests omit the moment if a density has a boundary.

    Cost: one gradient.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> standard_normal = lambda y: -jnp.sum(y**2) / 2
        >>> jaxcal.moments.Score()(standard_normal, jnp.array([2.0, 1.0]))["shift"].tolist()
        [-2.0, -1.0]
    """

    marginal: bool = eqx.field(default=False, static=True)
    whole_space: bool = eqx.field(default=True, static=True)
    smoothness: int = eqx.field(default=1, init=False, static=True)

    def __call__(self, log_density: LogDensityOfOne, y: Point) -> dict[str, Array]:
        return {"shift": jax.grad(log_density)(y)}


class Curvature(eqx.Module):
    r"""The information-matrix moment :math:`s_p s_p^\top + \nabla^2 \log p`.

    The diagonal detects wrong spreads within each mode; other entries detect wrong correlations.
    The density must be twice differentiable (ReLU networks are not) and 0 at every boundary. With
    ``bound=None`` its gradient must be 0 there, too: for a Beta(2, 2) the moment has mean -12.

    Args:
        form: "full": all d (d + 1) / 2 different entries; "diagonal": those on the diagonal;
            "correlation": those off the diagonal; "trace": the sum of the diagonal.
        bound: With a bound c, the moment is :math:`s f^\top + \nabla f` for the score s and
            :math:`f = s / \sqrt{1 + |s|^2 / c^2}`. It grows linearly in s. None for f = s.
        whole_space: Whether tests omit the moment if a density has a boundary.

    Cost: d Hessian-vector products.

    Source: White (1982), the information matrix test.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> standard_normal = lambda y: -jnp.sum(y**2) / 2
        >>> values = jaxcal.moments.Curvature(bound=None)(standard_normal, jnp.array([2.0, 1.0]))
        >>> values["spread"].tolist()
        [3.0, 0.0]
    """

    form: Form = eqx.field(default="full", static=True)
    bound: float | None = eqx.field(default=3.0, static=True)
    whole_space: bool = eqx.field(default=True, static=True)
    smoothness: int = eqx.field(default=2, init=False, static=True)

    def __check_init__(self):
        convert.choice(self.form, "form", FORMS)
        if self.bound is not None:
            convert.real(self.bound, "bound", above=0)

    def __call__(self, log_density: LogDensityOfOne, y: Point) -> dict[str, Array]:
        def field(z: Point) -> tuple[Point, Point]:
            score = jax.grad(log_density)(z)
            if self.bound is None:
                return score, score
            return score / jnp.sqrt(1 + jnp.sum((score / self.bound) ** 2)), score

        def along(direction: Point) -> Point:
            return jax.jvp(lambda z: field(z)[0], (y,), (direction,))[1]

        slopes = jax.lax.map(along, jnp.eye(y.size, dtype=y.dtype))
        f, score = field(y)
        return _entries(score[:, None] * f[None] + slopes, self.form)


def _entries(matrix: Float[Array, "d d"], form: Form) -> dict[str, Array]:
    """Return {"spread": diagonal, "correlation": (m_ij + m_ji) / sqrt(2) for i < j}, or only the
    one that ``form`` names. For "trace" return {"spread": sum of the diagonal}."""
    variances = jnp.diagonal(matrix)
    if form == "trace":
        return {"spread": jnp.sum(variances, keepdims=True)}
    if form == "diagonal":
        return {"spread": variances}
    i, j = jnp.triu_indices(variances.size, 1)
    others = {"correlation": (matrix[i, j] + matrix[j, i]) / 2**0.5}  # nothing in one dimension
    return others if form == "correlation" else {"spread": variances} | others


LENGTHS = (0.06, 0.2, 0.7, 2.8)  # of moves, in standard deviations of all targets
HALVINGS = 24  # bisection steps towards an edge
NEAR = 2.0 ** np.array([-8, -14])  # distances from an edge, relative to that of the target
SLOPE, DROP = 0.9, 12.0


class Edges(NamedTuple):
    """Results of `edges`. ``seen`` []: whether the density is 0 or NaN at some displaced target.
    ``abrupt`` []: whether the density at an edge jumps, or falls to 0 slower than linearly."""

    seen: Bool[Array, ""]
    abrupt: Bool[Array, ""]


def edges(key: Key, predictions: Predictions, targets: Float[Array, "n *event"]) -> Edges:
    r"""Return whether the supports of densities have edges, found by moving targets across them.

    Each target is moved by .06, .2, .7 and 2.8 standard deviations of all targets, in both
    directions along one random line per length.

    An edge that a move crosses is located by bisection. Near an edge the density is proportional to
    :math:`r^\alpha` at distance r; the slope of log p against log r, between r and r / 64,
    estimates :math:`\alpha`. The Stein identity of the score holds for :math:`\alpha > 0`, and the
    variance of the score is finite for :math:`\alpha > 1`. An edge is abrupt if the slope is below
    .9 and the density beside the edge is above :math:`e^{-12}` times that at the target.

    Cost: 11 log densities per target; 24 more if any move crosses an edge.
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
    r"""Return whether scores change as second derivatives imply, on at least 99 % of n segments.

    Each segment leads from a target a to a point b in a random direction. With s the score,
    :math:`s(b) - s(a)` is compared with :math:`\int_a^b \nabla^2 \log p`, by Gauss's rule of two
    points. The length is 0.3 / S, with S the root mean square of the scores; a difference of up to
    0.1 S is accepted. Across a kink of log p (of a ReLU network or a Laplace density) s jumps, but
    automatic second derivatives do not show it. ``centers`` and ``scales`` are as in `evaluate`.
    Cost: 3 gradients and 2 Hessian-vector products per target.
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
    """Return the difference of scores at the ends of a segment minus the integrated Hessian."""
    score = jax.grad(log_density)

    def slope(part: float) -> Array:
        return jax.jvp(score, (y + part * step,), (step,))[1]

    inner = 0.5 / 3**0.5
    return score(y + step) - score(y) - (slope(0.5 - inner) + slope(0.5 + inner)) / 2
