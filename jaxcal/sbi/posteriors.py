"""Compute scores of posteriors given by JAX functions, networks, flows or arrays, in batches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcal.read import Scores, Unnormalized, convert
from jaxcal.read.predictions import Standardized, Units
from jaxcal.read.sampling import draws
from jaxcal.read.scores import score, scores_at
from jaxcal.sbi.space import Space
from jaxcal.typing import DTypeLike, Key

BATCH = 4096  # gradients computed at once


@runtime_checkable
class Posterior(Protocol):
    """Protocol of posteriors with scores, the gradients in theta of log p(theta | x_i).

    ``scored`` takes ``thetas`` [n, d], ``xs`` [n, ..] and ``nodes`` [m, d] or None. It returns the
    scores at theta_i given x_i and, if there are nodes, at every node given every x_i.
    """

    def scored(self, thetas: Array, xs: PyTree, nodes: Array | None) -> Scores: ...


@runtime_checkable
class Densities(Protocol):
    """Protocol of posteriors with log densities, up to a constant per row.

    ``predictions(xs)`` returns the n posteriors given xs: a `jaxcal.Unnormalized`, or a numpyro
    distribution with batch shape [n] and event shape [d].
    """

    def predictions(self, xs: PyTree) -> Any: ...


@runtime_checkable
class Sampler(Protocol):
    """Protocol of posteriors that can be sampled without MCMC.

    ``sample(key, xs, m)`` returns m independent draws of each of the n posteriors, [n, m, d].
    """

    def sample(self, key: Key, xs: PyTree, m: int) -> Float[Array, "n m d"]: ...


@dataclass(frozen=True)
class Swapped:
    """Callable (x, theta) that returns ``log_prob(theta, x)``; equal for equal ``log_prob``."""

    log_prob: Callable[..., Array]

    def __call__(self, x: PyTree, theta: Array) -> Array:
        return self.log_prob(theta, x)


def _call(params: PyTree, theta: Array) -> Array:
    network, x = params
    return network(theta, x)


def _flow(params: PyTree, theta: Array) -> Array:
    flow, x = params
    return flow.log_prob(theta, condition=x)


class JaxPosterior(eqx.Module):
    """A posterior defined by its log density, which may be unnormalized.

    Args:
        log_prob: A function ``log_prob(theta, x)`` of one theta [d] and one x; a network (pytree
            of arrays) called in the same way; or a flow with ``log_prob(theta, condition=x)``, as
            in flowjax.
        batch: Number of gradients computed at once.

    Example:
        >>> import jax
        >>> from jaxcal import sbi
        >>> def log_prob(theta, x):
        ...     return -((theta - x / 2) ** 2).sum()
        >>> thetas, xs = jax.random.normal(jax.random.key(0), (2, 60, 2))
        >>> scored = sbi.score_pairs(1, sbi.JaxPosterior(log_prob, batch=16), thetas, thetas + xs)
        >>> scored.scores.at_targets.shape[1]
        2
    """

    log_prob: Any
    batch: int = eqx.field(default=BATCH, static=True)

    def scored(self, thetas: Array, xs: PyTree, nodes: Array | None) -> Scores:
        return chunked_scores(self.log_prob, thetas, xs, nodes, batch=self.batch)

    def predictions(self, xs: PyTree) -> Unnormalized:
        density, network = _density(self.log_prob)
        if network is None:
            return Unnormalized(density, xs)
        return Unnormalized(density, (network, xs), in_axes=(None, 0)).arrays_only()


def chunked_scores(
    log_prob: Any,
    thetas: Float[Array, "n d"],
    xs: PyTree,
    nodes: Float[Array, "m d"] | None = None,
    *,
    batch: int = BATCH,
) -> Scores:
    """Return the scores of each of n posteriors at its own theta and at nodes, by batches.

    Memory: the scores and the intermediates of ``batch`` gradients. One program is compiled per
    shape and function.

    Args:
        log_prob: As in `JaxPosterior`; its value must be a scalar.
        thetas: Parameters, [n, d].
        xs: Observations: an array or pytree with leading axis n.
        nodes: Common nodes, [m, d], or None.
        batch: Number of gradients computed at once.

    Returns:
        `jaxcal.Scores` in units of 1 / theta; NaN if the gradient or the log density is not finite
        (the gradient of ``where(inside, log_p, -inf)`` is 0 outside).

    Cost: n (m + 1) gradients.
    """
    batch = convert.integer(batch, "batch")
    thetas = convert.floats(thetas, "thetas")
    xs = jax.tree.map(lambda leaf: convert.numbers(leaf, "xs"), xs)
    if isinstance(log_prob, type) or not (callable(log_prob) or hasattr(log_prob, "log_prob")):
        raise TypeError(f"log_prob: wanted log_prob(theta, x), got {convert.say(log_prob)}")
    density, network = _density(log_prob)
    at, at_nodes = _chunked(density, network, thetas, xs, nodes, batch)
    return Scores(at, at_nodes, nodes)


def _density(log_prob: Any) -> tuple[Callable[..., Array], Any]:
    """Return density((network, x), theta) and network, or density(x, theta) and None."""
    if hasattr(log_prob, "log_prob") and not isinstance(log_prob, jax.stages.Wrapped):
        return _flow, log_prob
    if eqx.is_array(log_prob) or not jax.tree.leaves(eqx.filter(log_prob, eqx.is_array)):
        return Swapped(log_prob), None
    return _call, log_prob


@eqx.filter_jit
def _chunked(density, network, thetas, xs, nodes, batch):
    def one(row: PyTree) -> tuple[Array, Array | None]:
        theta, x = row
        everywhere = theta[None] if nodes is None else jnp.concatenate([theta[None], nodes])
        params = x if network is None else (network, x)
        model = Unnormalized(density, params, in_axes=None).arrays_only()
        _one_number(model, theta)
        values = score(model, everywhere)
        return values[0], None if nodes is None else values[1:]

    points = 1 if nodes is None else 1 + len(nodes)
    size = min(max(1, batch // points), len(thetas))
    return jax.lax.map(one, (thetas, xs), batch_size=size)


def _one_number(model: Unnormalized, theta: Array) -> None:
    """Raise ValueError if the log density of one theta given one x fails or is not a scalar."""
    try:
        value = jax.eval_shape(model.log_density, model.params, theta)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"posterior: log_prob(theta, x) fails for one theta of shape {theta.shape} and one x: "
            f"{error}"
        ) from error
    if not hasattr(value, "shape") or value.shape != ():
        what = f"a {type(value).__name__}"
        if hasattr(value, "shape"):
            what = f"shape {value.shape}: sum over its coordinates?"
        raise ValueError(
            f"posterior: wanted a single number, the log density log_prob(theta, x) of one theta "
            f"of shape {theta.shape} given one x, got {what}"
        )


class ArrayPosterior(eqx.Module):
    """A posterior given only by precomputed scores, in the units of 1 / theta."""

    scores: Scores

    def scored(self, thetas: Array, xs: PyTree, nodes: Array | None) -> Scores:
        return self.scores

    def rows(self, rows: PyTree) -> "ArrayPosterior":
        """Return the scores of the observations ``rows``, which are indices or a mask."""
        at, at_nodes = self.scores.at_targets, self.scores.at_nodes
        some = None if at_nodes is None else np.asarray(at_nodes)[rows]
        return ArrayPosterior(Scores(np.asarray(at)[rows], some, self.scores.nodes))


class DistributionPosterior(eqx.Module):
    """A numpyro distribution with batch shape [n]: one posterior per observation.

    Its event shape is [d] or, for d = 1, []. Scores are NaN where the log density is not finite.
    """

    distribution: Any

    def scored(self, thetas: Array, xs: Any, nodes: Array | None) -> Scores:
        n, d = thetas.shape
        distribution, event = self.distribution, tuple(self.distribution.event_shape)
        if tuple(distribution.batch_shape) != (n,) or event not in ((d,), () if d == 1 else (d,)):
            raise ValueError(
                f"posterior: wanted a distribution with batch shape ({n},) and event shape ({d},), "
                f"one per observation, got batch shape {tuple(distribution.batch_shape)} and event "
                f"shape {event}: .to_event(1) makes the last batch axis an event"
            )
        as_vectors = Standardized(distribution, Units.unchanged(thetas), event)
        at, at_nodes = scores_at(as_vectors, thetas, nodes)
        return Scores(at) if nodes is None else Scores(at, at_nodes, nodes)

    def predictions(self, xs: PyTree) -> Any:
        return self.distribution

    def sample(self, key: Key, xs: PyTree, m: int) -> Float[Array, "n m d"]:
        drawn = draws(key, self.distribution, m)
        return drawn.reshape(*drawn.shape[:2], -1)


def is_tensor(value: object) -> bool:
    """Return whether an object has the methods ``detach`` and ``numpy``, as tensors of torch do."""
    return hasattr(value, "detach") and hasattr(value, "numpy")


ATTEMPTS = 12  # to draw parameters within bounds; each makes twice as many draws
MOST_AT_ONCE = 10_000  # most draws of one posterior per attempt


class PairedSampler:
    """Sampler of n posteriors given fixed observations: a call (key, m) returns draws [n, m, d] of
    original parameters. Draws out of bounds are redrawn; ValueError after `ATTEMPTS` attempts."""

    def __init__(self, posterior: Sampler, xs: PyTree, dtype: DTypeLike, space: Space):
        self.posterior, self.xs, self.dtype, self.space = posterior, xs, dtype, space

    def __call__(self, key: Key, m: int) -> Float[Array, "n m d"]:
        draws = np.array(self.posterior.sample(key, self.xs, m))
        for attempt in range(ATTEMPTS):
            outside = self._outside(draws)
            rows = np.flatnonzero(outside.any(axis=1))
            if not rows.size:
                return jnp.asarray(draws, self.dtype)
            size = min(m * 2**attempt, MOST_AT_ONCE)
            again = self._redrawn(jax.random.fold_in(key, attempt), rows, size)
            for row, candidates, beyond in zip(rows, again, self._outside(again), strict=True):
                places, inside = np.flatnonzero(outside[row]), candidates[~beyond]
                filled = places[: len(inside)]
                draws[row, filled] = inside[: len(filled)]
        missing = self._outside(draws).any(axis=1)
        raise ValueError(
            f"posterior: {int(missing.sum())} of {missing.size} posteriors have nearly all their "
            f"mass outside of the bounds (first that of row {int(np.argmax(missing))}), so that no "
            f"draws within them can be made: is the posterior's prior that of the pairs?"
        )

    def _redrawn(self, key: Key, rows: np.ndarray, size: int) -> np.ndarray:
        if isinstance(self.posterior, DistributionPosterior):  # it draws for all rows at once
            return np.asarray(self.posterior.sample(key, self.xs, size))[rows]
        some = jax.tree.map(lambda leaf: leaf[rows], self.xs)
        return np.asarray(rows_of(self.posterior, rows).sample(key, some, size))

    def _outside(self, draws: np.ndarray) -> np.ndarray:
        free = self.space.free(jnp.asarray(draws, self.dtype))
        return ~np.all(np.isfinite(np.asarray(free)), axis=2)


def rows_of(scorer: Any, rows: np.ndarray) -> Any:
    """Return the scorer for the observations that ``rows`` (indices or a mask) selects. Only an
    `ArrayPosterior` is changed. ValueError for a `DistributionPosterior`."""
    if isinstance(scorer, ArrayPosterior):
        return scorer.rows(rows)
    if isinstance(scorer, DistributionPosterior):
        raise ValueError(
            "posterior: a batch of distributions cannot leave out rows: pass a function xs -> "
            "distribution, or leave these rows out of everything yourself"
        )
    return scorer
