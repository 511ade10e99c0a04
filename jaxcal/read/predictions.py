"""Predictions as unnormalized densities, or as precomputed scores, log densities or draws.

Tests compute in standardized units, so that no result depends on the units of the data.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, PyTree

from jaxcal.numerics import CORRELATED, apart, binary_size
from jaxcal.read import convert
from jaxcal.typing import ArrayLike, LogDensity, Point, Points, PredictionsLike


class Unnormalized(eqx.Module):
    """A batch of n predictions with densities proportional to ``exp(log_density(params, y))``.

    Args:
        log_density: Function of the parameters of ONE prediction and one target that returns a
            scalar; terms that do not depend on y may be omitted. It is compared by identity: pass
            one named function, since each new lambda is compiled again.
        params: Any pytree; its leaves have a leading axis n, unless ``in_axes`` says otherwise.
        in_axes: As in ``jax.vmap``: None for leaves common to all predictions, such as the weights
            of a network: ``Unnormalized(energy, (net, xs), in_axes=(None, 0))``.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> def log_density(params, y):  # a quartic well, whose constant nobody needs
        ...     center, width = params
        ...     return -jnp.sum(((y - center) / width) ** 4)
        >>> centers = jax.random.normal(jax.random.key(0), (100, 2))
        >>> predictions = jaxcal.Unnormalized(log_density, (centers, jnp.ones(100)))
        >>> jaxcal.kccsd_test(1, predictions, centers + 0.5).verdict
        'rejected'
    """

    log_density: LogDensity = eqx.field(static=True)
    params: PyTree
    in_axes: PyTree = eqx.field(static=True)

    def __init__(self, log_density: LogDensity, params: PyTree, in_axes: PyTree = 0):
        if not callable(log_density):
            raise TypeError(
                f"log_density: wanted a function log_density(params, y), got "
                f"{convert.say(log_density)}: write Unnormalized(log_density, params)"
            )
        self.log_density = log_density
        self.params = convert.leaves(params, "params")
        self.in_axes = in_axes
        convert.remember(self, params=params)

    def sliced(self, rows: Callable[[Array, int], Array]) -> "Unnormalized":
        """Return the predictions of some rows; ``rows(leaf, axis)`` selects them in each leaf."""

        def shared(axis: object) -> bool:
            return axis is None

        each = jax.tree.broadcast(self.in_axes, self.params, is_leaf=shared)
        axes = jax.tree.leaves(each, is_leaf=shared)
        leaves, tree = jax.tree.flatten(self.params)
        pairs = zip(leaves, axes, strict=True)
        taken = [leaf if axis is None else rows(leaf, axis) for leaf, axis in pairs]
        return Unnormalized(self.log_density, jax.tree.unflatten(tree, taken), self.in_axes)

    def arrays_only(self) -> "Unnormalized":
        """Return the same predictions with only arrays among their parameters.

        Other leaves, such as the activation of an ``equinox.nn.MLP``, move into the log density.
        """
        arrays, rest = eqx.partition(self.params, eqx.is_array_like)
        leaves, tree = jax.tree.flatten(rest)
        if not leaves:
            return self
        return Unnormalized(_Completed(self.log_density, tuple(leaves), tree), arrays, self.in_axes)


@dataclass(frozen=True)
class _Completed:
    """Log density that adds static leaves to its parameters; compared by function and leaves."""

    log_density: LogDensity
    leaves: tuple[PyTree, ...]
    tree: PyTree

    def __call__(self, params: PyTree, y: Array) -> Array:
        rest = jax.tree.unflatten(self.tree, self.leaves)
        return self.log_density(eqx.combine(params, rest), y)


SETTLED = 1.01  # largest R-hat of converged chains


def _array(value: ArrayLike) -> Any:
    """Return the value unchanged: tests validate it, with messages that name the argument."""
    return value


def _array_or_none(value: ArrayLike | None) -> Any:
    return value


class Scores(eqx.Module):
    """Precomputed scores of n predictions, as arrays or tensors of any library.

    A score is the gradient of the log density in the target, in units of 1 / target.

    Args:
        at_targets: Score of prediction i at target i, [n, d], or the shape of the targets.
        at_nodes: Scores at m nodes common to all predictions, [n, m, d], for Fisher divergences.
        nodes: The m nodes, [m, d], for the kernelized Fisher divergence and preconditioning.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100, 1))
        >>> targets, nodes = centers + noise, jnp.linspace(-2, 2, 8)[:, None]
        >>> scores = jaxcal.Scores(centers - targets, centers[:, None] - nodes, nodes)
        >>> jaxcal.kccsd_test(1, scores, targets).contributions.shape
        (100,)
    """

    at_targets: Any = eqx.field(converter=_array)
    at_nodes: Any = eqx.field(default=None, converter=_array_or_none)
    nodes: Any = eqx.field(default=None, converter=_array_or_none)


class LogDensities(eqx.Module):
    """Precomputed log densities of n predictions, as arrays or tensors of any library.

    A constant per prediction, the same at its target and its draws, may be omitted.

    Args:
        at_targets: Log density of prediction i at target i, [n].
        at_draws: Log density of prediction i at m independent draws from it, [n, m].

    Example:
        >>> import jax, jaxcal
        >>> targets, draws = jax.random.normal(jax.random.key(0), (2, 99, 20))
        >>> logs = jaxcal.LogDensities(-(targets[:, 0] ** 2), -(draws**2))
        >>> jaxcal.coverage.coverage(logs).counts.shape
        (21,)
    """

    at_targets: Any = eqx.field(converter=_array)
    at_draws: Any = eqx.field(converter=_array)


class Draws(eqx.Module):
    """m draws from each of n predictions, in the units of the targets and in any order.

    Args:
        samples: Draws, [n, m, d], or [n, m] for targets of shape [n].
        rhat: R-hat of the chains of each prediction, [n], NaN if unknown; None if draws do not come
            from chains. Tests warn if chains have not converged (R-hat above 1.01, or unknown).

    Example:
        >>> import jax, jaxcal
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> samples = centers[:, None] + jax.random.normal(jax.random.key(1), (100, 16))
        >>> jaxcal.skce_test(2, jaxcal.Draws(samples), centers + 0.8 + noise).verdict
        'rejected'
    """

    samples: Any = eqx.field(converter=_array)
    rhat: Any = eqx.field(default=None, converter=_array_or_none)

    def unsettled(self) -> Float[Array, ""] | None:
        """Return the share of predictions with R-hat NaN or above 1.01, []; None without R-hat."""
        if self.rhat is None:
            return None
        return jnp.mean(~(jnp.asarray(self.rhat) <= SETTLED), dtype=float)

    @eqx.filter_jit
    def correlation(self) -> Float[Array, ""]:
        """Return the correlation [] of successive draws, the largest over coordinates.

        For each coordinate it is the mean over predictions whose draws are not all equal. Its bias
        is corrected: for m draws of a chain of correlation r the raw expectation is r - (1 + 3 r) /
        m, up to O(m^-2). It counts as 0 for sorted coordinates and below five standard errors. From
        8 draws on, predictions whose draws are sorted are left out: these are no chain.
        """
        x = self._columns()
        x = x - x[:, :1]  # the mean of large or equal numbers is rounded
        x = x - jnp.mean(x, axis=1, keepdims=True)
        x = x.astype(jnp.float32) if x.dtype.itemsize < 4 else x
        # divided by a power of two, so that squares neither overflow nor underflow
        x = x / binary_size(jnp.max(jnp.abs(x), axis=1, keepdims=True))
        of_each = jnp.sum(x[:, 1:] * x[:, :-1], axis=1) / jnp.sum(x**2, axis=1)
        steps = jnp.diff(x, axis=1)
        ordered = jnp.all(steps >= 0, axis=1) | jnp.all(steps <= 0, axis=1)
        of_each = jnp.where(ordered, jnp.nan, of_each) if x.shape[1] >= 8 else of_each
        m, count = max(x.shape[1], 4), jnp.sum(~jnp.isnan(of_each), axis=0, dtype=x.dtype)
        lag = jnp.clip((jnp.nanmean(of_each, axis=0) + 1 / m) / (1 - 3 / m), max=1)
        shown = (lag >= 5 / (count * m) ** 0.5) & ~self._sorted()
        return jnp.max(jnp.where(shown, lag, 0))

    def thinned(self) -> tuple["Draws", Float[Array, ""]]:
        """Return every k-th of m draws, and the `correlation` r of all draws. k is the least number
        with r^k <= `CORRELATED`, but at most m / 2. Under jit all draws are kept."""
        lag, m = self.correlation(), self.samples.shape[1]
        if isinstance(lag, Tracer) or not lag > CORRELATED:
            return self, lag
        return Draws(self.samples[:, :: min(apart(float(lag)), m // 2)], self.rhat), lag

    def unsorted(self) -> "Draws":
        """Return the draws, put in random order if some coordinate is sorted in all predictions.

        The order matters because tests split the draws, or use only some of them.
        """
        ordered = jnp.any(self._sorted())
        samples = jnp.asarray(self.samples)
        if not isinstance(ordered, Tracer) and not ordered:
            return self
        at = jnp.argsort(jax.random.uniform(jax.random.key(0), samples.shape[:2]), axis=1)
        at = at.reshape(at.shape + (1,) * (samples.ndim - 2))
        mixed = jnp.take_along_axis(samples, at, axis=1)
        return Draws(jnp.where(ordered, mixed, samples), self.rhat)

    def _columns(self) -> Float[Array, "n m d"]:
        return jnp.reshape(jnp.asarray(self.samples), (*self.samples.shape[:2], -1))

    def _sorted(self) -> Bool[Array, " d"]:
        """Return, per coordinate, whether draws ascend, or descend, in all predictions."""
        steps = jnp.diff(self._columns(), axis=1)
        return jnp.all(steps >= 0, axis=(0, 1)) | jnp.all(steps <= 0, axis=(0, 1))


def along_last(vector: Point, points: Float[Array, "*batch d"]) -> Float[Array, "*ones d"]:
    """Return the vector reshaped to broadcast along the last axis of the points."""
    return jnp.expand_dims(vector, range(points.ndim - 1))


class Units(eqx.Module):
    """The affine change of units ``t = (y - center) / scale``, with one scale per coordinate.

    ``center`` and ``scale`` [d] are in the units of the data.
    """

    center: Point
    scale: Point

    @classmethod
    def of(cls, ys: Points) -> "Units":
        """Return units from the mean and standard deviation of targets [n, d].

        A constant coordinate has scale 1. Values that are not finite are ignored here; tests report
        how many there are.
        """
        finite = jnp.isfinite(ys)
        count = jnp.sum(finite, axis=0, dtype=ys.dtype)
        ends = jnp.max(jnp.where(finite[None], jnp.stack([-ys, ys]), -jnp.inf), axis=1)
        low, high = -ends[0], ends[1]
        largest = jnp.max(ends, axis=0)
        size = binary_size(largest)
        # divided by a power of two, so that squares and their sums do not overflow
        parts = jnp.where(finite, ys, 0) / along_last(size, ys)
        mean = jnp.sum(parts, axis=0) / count
        about = jnp.where(finite, parts - along_last(mean, ys), 0)
        variance = jnp.sum(about**2, axis=0) / count
        # a coordinate that is constant up to rounding has no scale
        rounding = jnp.finfo(ys.dtype).eps * largest / size
        # NaN stays NaN: only a spread of 0 is replaced
        none = (high <= low) | (variance <= rounding**2)
        precision = jax.lax.rsqrt(jnp.where(none, 1, variance))
        # a quotient: the compiler would evaluate a `where` again at each use of the scale
        scale = size / jnp.where(none, size, precision)
        return cls(mean * size, scale)

    @classmethod
    def unchanged(cls, ys: Points) -> "Units":
        """Return the identity change of units for targets [n, d]."""
        d = ys.shape[1]
        return cls(jnp.zeros(d, ys.dtype), jnp.ones(d, ys.dtype))

    def points(self, ys: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """Return targets in the new units."""
        return (ys - along_last(self.center, ys)) / along_last(self.scale, ys)

    def scores(self, values: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """Return scores in the new units, by the chain rule."""
        return values * along_last(self.scale, values)

    def original(self, ts: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """Return targets in the units of the data."""
        return along_last(self.center, ts) + along_last(self.scale, ts) * ts


class OwnUnits(eqx.Module):
    """Units of each prediction: ``u = M^-1 (t - center)`` for a target t in the common ``units``.

    M is ``scale`` [n, d, d]; M and ``center`` [n, d] are in common units. Methods take [n, .., d].
    """

    units: Units
    center: Float[Array, "n d"]
    scale: Float[Array, "n d d"]

    def points(self, ys: Float[Array, "n *m d"]) -> Float[Array, "n *m d"]:
        """Return targets in the units of their predictions, from targets in units of the data."""
        return self.of_common(self.units.points(ys))

    def of_common(self, ts: Float[Array, "n *m d"]) -> Float[Array, "n *m d"]:
        """Return targets in the units of their predictions, from targets in common units."""
        gaps = ts - self._each(self.center, ts)
        rows = jnp.linalg.solve(self.scale, jnp.swapaxes(self._rows(gaps), 1, 2))
        return jnp.swapaxes(rows, 1, 2).reshape(ts.shape)

    def scores(self, values: Float[Array, "n *m d"]) -> Float[Array, "n *m d"]:
        """Return scores in the units of their predictions, by the chain rule."""
        rows = self._rows(self.units.scores(values))
        return jnp.einsum("nij,nmi->nmj", self.scale, rows).reshape(values.shape)

    def original(self, us: Float[Array, "n *m d"]) -> Float[Array, "n *m d"]:
        """Return targets in the units of the data."""
        ts = jnp.einsum("nij,nmj->nmi", self.scale, self._rows(us)).reshape(us.shape)
        return self.units.original(ts + self._each(self.center, us))

    def _rows(self, points: Array) -> Float[Array, "n m d"]:
        return points.reshape(points.shape[0], -1, points.shape[-1])

    def _each(self, centers: Array, points: Array) -> Array:
        return jnp.expand_dims(centers, range(1, points.ndim - 1))


class Standardized(eqx.Module):
    """Predictions of targets of shape ``event``, used as predictions of vectors [d] in ``units``.

    Functions of a `Standardized` return scores, moments and draws in ``units``.
    """

    predictions: PredictionsLike
    units: Units | OwnUnits
    event: tuple[int, ...] = eqx.field(static=True)


def in_units_of_data(predictions: Any) -> Any:
    """Return the predictions inside of a `Standardized`, in units of the data; others unchanged."""
    return predictions.predictions if isinstance(predictions, Standardized) else predictions
