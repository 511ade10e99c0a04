r"""Map bounded parameters to the whole space.

The identity behind Stein tests, :math:`E_p[l s_p + \nabla l] = 0` for a density p with score
:math:`s_p` and functions l, is an integration by parts: its boundary term vanishes on the whole
space but not at the edge of a uniform prior. Each bounded parameter is therefore mapped by an
increasing function to the real line, which multiplies its density by the Jacobian.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.read import Unnormalized, convert
from jaxcal.read.families import transforms_of
from jaxcal.read.predictions import along_last
from jaxcal.typing import ArrayLike, DTypeLike, Key, LogDensity, PriorLike, Scalar

REDRAWN, FEW = 500, 20  # how often draws out of bounds are redrawn
Rows = Float[Array, "*batch d"]


class Space(eqx.Module):
    """Bounds of d parameters, and the map between these and free parameters on the whole line.

    The free parameter u of theta is the logit of (theta - low) / (high - low) between two bounds,
    log(theta - low) with a lower bound only, -log(high - theta) with an upper bound only, and theta
    without bounds. u increases with theta, so "too high" means the same for u and theta.

    Attributes:
        low: Lower bounds, [d]; -infinity for none.
        high: Upper bounds, [d]; infinity for none.
    """

    low: Float[Array, " d"]
    high: Float[Array, " d"]

    @property
    def bounded(self) -> np.ndarray:
        """Whether each parameter has a bound, [d]."""
        return np.isfinite(np.asarray(self.low)) | np.isfinite(np.asarray(self.high))

    def free(self, thetas: Rows) -> Rows:
        """Return the free parameters of thetas: infinite for a theta on a bound, NaN beyond it."""
        low, high = self._finite(thetas)
        # 1 where a logarithm is not used: its infinite slope would make the gradient NaN
        up = jnp.log(self._by_bounds(thetas - low, thetas - low, 1.0, 1.0))
        down = jnp.log(self._by_bounds(high - thetas, 1.0, high - thetas, 1.0))
        return self._by_bounds(up - down, up, -down, thetas).astype(thetas.dtype)

    def bound(self, us: Rows) -> Rows:
        """Return the parameters theta of free parameters: the inverse of `free`."""
        low, high = self._finite(us)
        width = high - low  # the nearer bound is where digits are needed
        up, down = low + width * jax.nn.sigmoid(us), high - width * jax.nn.sigmoid(-us)
        between = jnp.where(us > 0, down, up)
        distance = self._distance(us)
        return self._by_bounds(between, low + distance, high - distance, us).astype(us.dtype)

    def log_jacobian(self, us: Rows) -> Float[Array, "*batch"]:
        r"""Return the logarithm of :math:`\prod_k d\theta_k / du_k` at free parameters."""
        low, high = self._finite(us)
        between = jnp.log(high - low) + jax.nn.log_sigmoid(us) + jax.nn.log_sigmoid(-us)
        return jnp.sum(self._by_bounds(between, us, -us, 0.0), axis=-1).astype(us.dtype)

    def scores(self, us: Rows, values: Float[Array, "*more d"]) -> Float[Array, "*more d"]:
        r"""Return scores at free parameters ``us`` from scores ``values`` of the bounded ones.

        With theta = g(u) and s the values: :math:`g'(u) s + (\log g')'(u)`, for each coordinate.
        """
        low, high = self._finite(us)
        share, distance = jax.nn.sigmoid(us), self._distance(us)
        between = (high - low) * share * jax.nn.sigmoid(-us)
        slope = self._by_bounds(between, distance, distance, 1.0)
        change = self._by_bounds(1 - 2 * share, 1.0, -1.0, 0.0)
        return (slope * values + change).astype(values.dtype)

    def _distance(self, us: Rows) -> Rows:
        """Return the distance of theta from its bound, exp(u) or exp(-u), for parameters with one
        bound; 1 for others."""
        return jnp.exp(self._by_bounds(jnp.zeros_like(us), us, -us, 0.0))

    def _finite(self, rows: Rows) -> tuple[Array, Array]:
        """Return the bounds with as many axes as rows; a missing low is 0, a missing high is 1."""
        low, high = along_last(self.low, rows), along_last(self.high, rows)
        return jnp.where(jnp.isfinite(low), low, 0.0), jnp.where(jnp.isfinite(high), high, 1.0)

    def _by_bounds(self, between: Array, above: Any, below: Any, free: Any) -> Array:
        """Return for each parameter ``between`` if it has both bounds, ``above`` if only a low one,
        ``below`` if only a high one, ``free`` if none."""
        low, high = (jnp.isfinite(along_last(b, between)) for b in (self.low, self.high))
        return jnp.where(low & high, between, jnp.where(low, above, jnp.where(high, below, free)))


def space_of(prior: PriorLike | None, bounds: ArrayLike | None, d: int, dtype: DTypeLike) -> Space:
    """Return the space of the parameters, from ``bounds`` (low, high), else the prior's support.

    The prior may be a numpyro or torch distribution over vectors [d]. If neither gives bounds, all
    parameters are unbounded. ValueError for a discrete parameter or a support that is not a box.
    """
    if bounds is not None:
        if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
            raise ValueError("bounds: wanted (low, high), each a number or one per parameter")
        low, high = (_wide(edge, d, dtype) for edge in bounds)
    else:
        edges = _blocks(prior) or [(-np.inf, np.inf)]
        if len(edges) > 1 and sum(np.size(low) for low, _ in edges) == d:
            low = np.concatenate([np.atleast_1d(low) for low, _ in edges])
            high = np.concatenate([np.atleast_1d(high) for _, high in edges])
        else:
            low, high = edges[0]
        low, high = (_wide(edge, d, dtype, "prior") for edge in (low, high))
    if not np.all(np.asarray(low) < np.asarray(high)):
        raise ValueError(f"bounds: each low must be below its high, got {low} and {high}")
    return Space(low, high)


def _wide(edge: Any, d: int, dtype: DTypeLike, name: str = "bounds") -> Array:
    array = np.asarray(convert.floats(edge, name), float)
    if array.shape not in ((), (1,), (d,)):
        whose = "the bounds of its support are" if name == "prior" else "got"
        raise ValueError(
            f"{name}: wanted one number or {d}, one per parameter in thetas, {whose} of shape "
            f"{array.shape}"
        )
    return jnp.asarray(np.broadcast_to(array, (d,)), dtype)


def _blocks(prior: Any) -> list[tuple[Any, Any]]:
    """Return (low, high) of each block of parameters of a prior; [] if it declares no support.

    A `TransformedDistribution` of numpyro or torch declares the codomain of its last transform as
    support, which is too wide for, say, an affine map. So the support of the base distribution is
    mapped instead, if each transform is increasing or decreasing in each coordinate.
    """
    kind = type(prior).__name__
    if kind in ("Independent", "ExpandedDistribution"):
        return _blocks(prior.base_dist)
    support = support_of(prior)
    declared = [] if support is None else list(_edges(support))
    if kind != "TransformedDistribution":
        return declared
    parts = transforms_of(prior)
    try:
        signs = [np.asarray(convert.floats(part.sign, "prior")) for part in parts]
    except NotImplementedError:
        return declared
    blocks = _blocks(prior.base_dist)
    if len(blocks) != 1:
        return declared
    for part, sign in zip(parts, signs, strict=True):
        blocks = [_image(part, sign > 0, *blocks[0])]
    return blocks


def support_of(prior: Any) -> Any:
    """Return the support that a prior declares, or None."""
    try:
        return getattr(prior, "support", None)
    except NotImplementedError:  # torch's default, as of sbi's RestrictedPrior
        return None


def _image(transform: Any, rising: Any, *interval: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return (low, high) of the image of an interval under a monotone transform. An end on an edge
    of the domain maps to the edge of the codomain, as values there may be clipped or NaN."""
    edges = [*interval, *next(_edges(transform.domain)), *next(_edges(transform.codomain))]
    arrays = [np.asarray(convert.floats(edge, "prior")) for edge in edges]
    low, high, start, end, least, most = arrays
    images = [low, high]
    if is_of_torch(transform):
        import torch  # pyright: ignore[reportMissingImports]

        event = (None,) * transform.domain.event_dim  # axes that some transforms insist on
        images = [torch.as_tensor(np.array(edge)[event]) for edge in images]
    first, last = (np.asarray(convert.floats(transform(edge), "prior")) for edge in images)
    below = np.where(
        rising, np.where(low <= start, least, first), np.where(high >= end, least, last)
    )
    above = np.where(rising, np.where(high >= end, most, last), np.where(low <= start, most, first))
    return np.squeeze(below), np.squeeze(above)


def is_of_torch(value: Any) -> bool:
    """Return whether an object's class or a base class is from torch, sbi, zuko or lampe."""
    libraries = {base.__module__.split(".")[0] for base in type(value).__mro__}
    return bool(libraries & {"torch", "sbi", "zuko", "lampe"})


def _edges(support: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (low, high) of each block of parameters in a constraint of numpyro or torch."""
    if getattr(support, "is_discrete", False):
        raise ValueError(
            "prior: some parameters are discrete, and a discrete parameter has no score: sum it "
            "out of the density, or test the other parameters alone"
        )
    for inside in ("base_constraint", "_base_constraint"):
        if hasattr(support, inside):
            yield from _edges(getattr(support, inside))
            return
    if hasattr(support, "cseq"):  # torch's cat and stack
        lengths = getattr(support, "lengths", [1] * len(support.cseq))
        for part, length in zip(support.cseq, lengths, strict=True):
            for low, high in _edges(part):
                yield (
                    np.broadcast_to(np.asarray(low, float), (length,)),
                    np.broadcast_to(np.asarray(high, float), (length,)),
                )
        return
    low = getattr(support, "lower_bound", None)
    high = getattr(support, "upper_bound", None)
    kind = type(support).__name__.lower().strip("_")
    if low is None and high is None and not kind.startswith(("real", "dependent")):
        raise ValueError(
            f"prior: its support ({kind}) is not a box of intervals: pass a numpyro model through "
            f"jaxcal.sbi.NumpyroPosterior, which transforms any support, or transform thetas "
            f"and log_prob to the whole space yourself"
        )
    yield (-np.inf if low is None else low), (np.inf if high is None else high)


def check_inside(space: Space, thetas: Array, names: Sequence[str]) -> None:
    """Raise ValueError if any of the parameters [n, d] lies on or beyond a bound."""
    values = np.asarray(thetas)
    outside = (values <= np.asarray(space.low)) | (values >= np.asarray(space.high))
    if outside.any():
        rows = outside.any(axis=1)
        which = int(np.argmax(outside.any(axis=0)))
        raise ValueError(
            f"thetas: {int(rows.sum())} of {rows.size} rows lie on or beyond a bound, first in "
            f"{names[which]} ({float(space.low[which]):g} to {float(space.high[which]):g}): "
            f"does the prior's support fit the simulations, are thetas in its units, are they "
            f"swapped with xs, or were values rounded?"
        )


def check_continuous(thetas: Array, names: Sequence[str]) -> None:
    """Raise ValueError if a parameter seems discrete: all values are integers. Values so large that
    adjacent floats differ by more than 1 / 8 are ignored; over 10 values must remain."""
    values = np.asarray(thetas)
    digits = np.spacing(np.abs(values)) <= 1 / 8
    discrete = np.all(~digits | (values == np.round(values)), axis=0) & (digits.sum(axis=0) > 10)
    if discrete.any():
        discrete_names = [names[int(k)] for k in np.flatnonzero(discrete)]
        listed, first = ", ".join(discrete_names), discrete_names[0]
        raise ValueError(
            f"thetas: all values of {listed} are whole numbers; a discrete parameter has no score: "
            f"list all its values in check_posterior(.., discrete={{{first!r}: [0, 1]}}), or test "
            f"draws by check_draws, whose ranks break ties at random"
        )


def evenly_filled(thetas: Float[Array, "n d"]) -> list[int]:
    """Return indices of parameters whose values appear uniform between two bounds; [] for n < 200.
    Conditions: (1) 3 < range / standard deviation < 3.6. This ratio is 3.46 for a uniform density,
    and above 3.6 for n >= 200 draws from one mode with vanishing tails. (2) The empirical
    distribution function differs by < .12 from a uniform one, which excludes two modes. (2) fails
    with probability .007 for 200 uniform values."""
    values = np.asarray(convert.floats(thetas, "thetas"), float)
    if len(values) < 200:
        return []
    spread, width = values.std(axis=0), np.ptp(values, axis=0)
    ranges = width / np.where(spread > 0, spread, np.inf)
    shares = (np.sort(values, axis=0) - values.min(axis=0)) / np.where(width > 0, width, 1)
    apart = np.max(np.abs(shares - np.linspace(0, 1, len(values))[:, None]), axis=0)
    return [int(k) for k in np.flatnonzero((ranges > 3) & (ranges < 3.6) & (apart < 0.12))]


@dataclass(frozen=True)
class _FreedDensity:
    """Log density of free parameters: ``log_density`` of bounded ones, plus the log-Jacobian."""

    log_density: LogDensity

    def __call__(self, params: tuple[Space, Any], u: Array) -> Scalar:
        space, inner = params
        return self.log_density(inner, space.bound(u)) + space.log_jacobian(u)


class FreedDistribution(eqx.Module):
    """The distribution of free parameters, from a distribution of bounded parameters with batch
    shape [n] and event shape [d] or []. Has the methods of numpyro distributions that tests use."""

    distribution: Any
    space: Space

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return tuple(self.distribution.batch_shape)

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (len(self.space.low),)

    @property
    def support(self) -> Any:
        from numpyro.distributions import constraints

        return constraints.real_vector

    def log_prob(self, us: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        thetas = self.space.bound(us)
        bounded = thetas if self.distribution.event_shape else thetas[..., 0]
        return self.distribution.log_prob(bounded) + self.space.log_jacobian(us)

    def sample(self, key: Key, shape: tuple[int, ...] = ()) -> Float[Array, "*batch d"]:
        """Return draws of the distribution within the bounds. Others are redrawn up to `REDRAWN`
        times (`FEW` times, if no draw of a posterior is inside), then NaN."""

        def drawn(key: Key) -> Array:
            thetas = self.distribution.sample(key, shape)
            return self.space.free(thetas if self.distribution.event_shape else thetas[..., None])

        def outside(us: Array) -> Array:
            return ~jnp.all(jnp.isfinite(us), axis=-1, keepdims=True)

        def again(state: tuple[Array, Array]) -> tuple[Array, Array]:
            k, us = state
            return k + 1, jnp.where(outside(us), drawn(jax.random.fold_in(key, k)), us)

        def missing(state: tuple[Array, Array]) -> Array:
            out = outside(state[1]) if shape else outside(state[1])[None]
            most = jnp.where(jnp.all(out, axis=0) & bool(shape), FEW, REDRAWN)
            return jnp.any(out & (state[0] < most)[None])

        first = jnp.zeros((), jnp.int32), drawn(key)
        return jax.lax.while_loop(missing, again, first)[1]


@dataclass(frozen=True)
class _BoundDensity:
    """Log density of bounded parameters, from ``log_density`` of free ones; -inf out of bounds."""

    log_density: LogDensity

    def __call__(self, params: tuple[Space, Any], theta: Array) -> Scalar:
        space, inner = params
        return _bounded(space, theta, lambda u: self.log_density(inner, u))


def _bounded(space: Space, thetas: Rows, of_free: Any) -> Float[Array, "*batch"]:
    """Return log densities of bounded parameters; ``of_free(us)`` returns those of free ones."""
    us = space.free(thetas)
    inside = jnp.all(jnp.isfinite(us), axis=-1)
    us = jnp.where(jnp.expand_dims(inside, -1), us, 0)
    return jnp.where(inside, of_free(us) - space.log_jacobian(us), -jnp.inf)


class BoundDistribution(eqx.Module):
    """The distribution of bounded parameters, from one of free parameters with batch shape [n]."""

    distribution: Any
    space: Space

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return tuple(self.distribution.batch_shape)

    @property
    def event_shape(self) -> tuple[int, ...]:
        return tuple(self.distribution.event_shape)

    def log_prob(self, thetas: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        return _bounded(self.space, thetas, self.distribution.log_prob)

    def sample(self, key: Key, shape: tuple[int, ...] = ()) -> Float[Array, "*batch d"]:
        return self.space.bound(self.distribution.sample(key, shape))


def bound_again(predictions: Any, space: Space) -> Any:
    """Return predictions of bounded parameters from predictions of free ones."""
    if not space.bounded.any():
        return predictions
    if isinstance(predictions, Unnormalized):
        params, axes = (space, predictions.params), (None, predictions.in_axes)
        return Unnormalized(_BoundDensity(predictions.log_density), params, in_axes=axes)
    return BoundDistribution(predictions, space)


def over_free(predictions: Unnormalized, space: Space) -> Unnormalized:
    """Return the densities of free parameters from those of bounded ones; works inside of jit."""
    params, axes = (space, predictions.params), (None, predictions.in_axes)
    return Unnormalized(_FreedDensity(predictions.log_density), params, in_axes=axes)


def freed(predictions: Any, space: Space) -> Any:
    """Convert `Unnormalized` or a distribution from bounded to free parameters."""
    if isinstance(predictions, Unnormalized):
        return over_free(predictions, space) if space.bounded.any() else predictions
    if not space.bounded.any() and predictions.event_shape:
        return predictions
    return FreedDistribution(predictions, space)
