r"""Moments from log densities alone, by detailed balance of reversible moves.

For a move :math:`\delta` that does not depend on the target, and any antisymmetric
:math:`\varphi(y, y') = -\varphi(y', y)`,

.. math:: E_{y \sim p} \sum_{y' = y \pm \delta} \min(1, p(y') / p(y))\, \varphi(y, y') = 0,

since :math:`\min(p(y), p(y'))` is symmetric. No gradient and no normalizing constant is needed;
moves to points of density 0 add 0, so bounded supports need no transform.
Source: detailed balance of Metropolis et al. (1953).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.moments.stein import LogDensityOfOne
from jaxcal.read import convert
from jaxcal.typing import DTypeLike, Key, Nodes, Point


def _moves(value: object) -> Nodes | None:
    """Return moves as an array [m, d], or None; ValueError for other shapes."""
    if value is None:
        return None
    moves = convert.floats(value, "moves")
    if moves.ndim != 2 or moves.shape[0] < 1:
        raise ValueError(f"moves: wanted shape [m, d], got {moves.shape}")
    return moves


class Balance(eqx.Module):
    r"""Metropolis balance of the log density: :math:`\varphi = \tanh(\frac12 \log p(y') / p(y))`.

    The moment is one number: min(1, p(y') / p(y)) times :math:`\varphi`, summed over y' = y + v and
    y' = y - v for a move v, and averaged over m moves. It detects wrong spread within modes of any
    shape, is bounded for every p and needs no gradient.

    Args:
        moves: Moves v, [m, d], in the units of the predictions. None draws ``n_moves`` moves, in
            orthogonal sets of d.
        n_moves: Number m of moves to draw.
        lengths: Range of the lengths of drawn moves, evenly spaced in logarithms, in the units of
            the predictions. For a normal prediction, moves of 1.6 times its standard deviation
            detect most. The default suits predictions whose standard deviation is up to 1.4 times
            that of all targets; calibrated predictions rarely exceed this.

    Cost: 2 m log densities.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> standard_normal = lambda y: -jnp.sum(y**2) / 2
        >>> balance = jaxcal.moments.Balance(jnp.ones((1, 1)))
        >>> wide, narrow = (balance(standard_normal, jnp.array([y]))["spread"] for y in (2.0, 0.0))
        >>> bool(wide > 0), bool(narrow < 0)
        (True, True)
    """

    moves: Nodes | None = eqx.field(default=None, converter=_moves)
    n_moves: int = eqx.field(default=16, static=True)
    lengths: tuple[float, ...] = eqx.field(default=(2.8, 0.06), static=True)
    whole_space: bool = eqx.field(default=False, init=False, static=True)
    smoothness: int = eqx.field(default=0, init=False, static=True)

    def __check_init__(self):
        convert.integer(self.n_moves, "n_moves")
        if not isinstance(self.lengths, tuple | list):
            raise TypeError(f"lengths: wanted a tuple of numbers, got {convert.say(self.lengths)}")
        for length in self.lengths:
            convert.real(length, "lengths", above=0)

    def fitted(self, key: Key, dimension: int, dtype: DTypeLike) -> "Balance":
        """Return a copy with ``moves`` cast to ``dtype``; None is replaced by `symmetric_moves`."""
        if self.moves is None:
            moves = symmetric_moves(key, self.n_moves, dimension, self.lengths, dtype)
        else:
            moves = self.moves.astype(dtype)
            if moves.shape[1] != dimension:
                raise ValueError(f"moves: wanted shape [m, {dimension}], got {moves.shape}")
        return Balance(moves, self.n_moves, self.lengths)

    def __call__(self, log_density: LogDensityOfOne, y: Point) -> dict[str, Array]:
        def flow(log_ratio: Array, move: Point) -> Array:
            return jnp.tanh(log_ratio / 2)[None]

        return {"spread": balanced(log_density, y, self.moves, flow)}


def balanced(log_density: LogDensityOfOne, y: Point, moves: Nodes | None, flow: Any) -> Array:
    """Return the mean over moves of g(move) + g(-move), where g(v) = min(1, r) flow(log r, v) and r
    = p(y + v) / p(y). ValueError if ``moves`` is None."""
    if moves is None:
        raise ValueError("moves: give them, or draw them by .fitted(key, dimension, dtype)")
    here = log_density(y)

    def one(move: Point) -> Array:
        log_ratio = log_density(y + move) - here
        weight = jnp.exp(jnp.where(log_ratio > 0, 0, log_ratio))
        return weight * flow(log_ratio, move)

    def step(total: Array, move: Point) -> tuple[Array, None]:
        return total + one(move) + one(-move), None

    start = jnp.zeros_like(one(moves[0]))
    total, _ = jax.lax.scan(step, start, moves)
    return total / moves.shape[0]


def symmetric_moves(
    key: Key, n_moves: int, dimension: int, lengths: tuple[float, ...], dtype: DTypeLike
) -> Float[Array, "m d"]:
    """Return m = ``n_moves`` moves, with lengths interpolated in logarithms between ``lengths``.

    Moves 0 to d - 1 are orthogonal, and so are moves d to 2 d - 1, and so on: each block of d moves
    covers all directions at about the same length.
    """
    across = min(n_moves, dimension)
    exact = dtype if jnp.finfo(dtype).bits >= 32 else jnp.float32
    normal = jax.random.normal(key, (-(-n_moves // across), dimension, across), exact)
    directions = jnp.swapaxes(jnp.linalg.qr(normal)[0], 1, 2).reshape(-1, dimension)[:n_moves]
    places = np.linspace(0, len(lengths) - 1, n_moves)
    interpolated = np.exp(np.interp(places, np.arange(len(lengths)), np.log(lengths)))
    return (jnp.asarray(interpolated, exact)[:, None] * directions).astype(dtype)


class Exchangeable(eqx.Module):
    r"""Target minus its conditional mean given a set of exchangeable points.

    Let :math:`a_0 = y` be the target and :math:`a_1, .., a_m` draws of a normal density
    :math:`\nu`. If y is a draw of p, the probability that :math:`a_k` is the target, given the set,
    is :math:`w_k \propto p(a_k) / \nu(a_k)`, so that

    .. math:: E\Big[ y - \sum_{k=0}^m w_k a_k \Big] = 0

    exactly, for every m and every :math:`\nu` whose support includes that of p. The difference in
    brackets is the moment. It detects wrong weights of modes, and shifts. With many points in the
    bulk of p, it is close to the exact residual :math:`y - E_p y`. The moment is 0 if p is 0 at all
    draws, or has the same value at all points. It needs no gradient, constant or transform.

    If p is 0 at some point, let :math:`r_k = (a_k - \sum_l w_l a_l) / s`, where :math:`s^2` is the
    variance of the points under the weights. Then :math:`r / \sqrt{1 + r^2}` replaces a in the
    moment, because rare large targets would make the test reject too often. The moment has d
    further values, with :math:`r^2 / (1 + r^2)` in place of a, which are 0 if p is positive at all
    points. They detect a wrong spread of uniform densities and the like, which `Balance` misses.

    Points are drawn for each target from a normal distribution with the mean of all targets and
    ``scale`` times their standard deviation, whatever the option ``whiten`` of the test.

    Args:
        n_candidates: Number m of points per target.
        scale: Standard deviation of the normal density, as a multiple of that of all targets.

    Cost: m + 1 log densities per target.

    Source: Tjelmeland (2004) for the weights; Besag and Clifford (1989) for exchangeability.

    Example:
        >>> import jax, jaxcal
        >>> y = jax.random.normal(jax.random.key(0), (200, 1))
        >>> y = y.at[:140].add(3.0).at[140:].add(-3.0)  # the upper mode has 7 of 10 targets
        >>> modes = lambda p, y: jax.numpy.logaddexp(-((y[0] - 3) ** 2) / 2, -((y[0] + 3) ** 2) / 2)
        >>> model = jaxcal.Unnormalized(modes, None, in_axes=None)
        >>> result = jaxcal.moment_test(0, model, y, moment=jaxcal.moments.Exchangeable())
        >>> float(result.p_value) < 0.01
        True
    """

    n_candidates: int = eqx.field(default=32, static=True)
    scale: float = eqx.field(default=1.2, static=True)
    common: bool = eqx.field(default=True, init=False, static=True)
    randomized: bool = eqx.field(default=True, init=False, static=True)
    whole_space: bool = eqx.field(default=False, init=False, static=True)
    smoothness: int = eqx.field(default=0, init=False, static=True)

    def __check_init__(self):
        convert.integer(self.n_candidates, "n_candidates")
        convert.real(self.scale, "scale", above=0)

    def __call__(self, log_density: LogDensityOfOne, y: Point, key: Key) -> dict[str, Array]:
        drawn = self.scale * jax.random.normal(key, (self.n_candidates, y.size), y.dtype)
        members = jnp.concatenate([y[None], drawn])
        proposal = -jnp.sum((members / self.scale) ** 2, axis=1) / 2
        logs = jax.lax.map(log_density, members)
        flat = jnp.max(logs) == jnp.min(logs)  # does not depend on which member is the target
        weights = jax.nn.softmax(logs - proposal)
        gaps = members - (weights @ members)[None]
        variance = weights @ gaps**2
        r = gaps / jnp.where(variance > 0, variance, 1)[None] ** 0.5
        squares = r**2 / (1 + r**2)
        ends = jnp.any(logs == -jnp.inf)
        first = jnp.where(ends, r / jnp.sqrt(1 + r**2), gaps)
        both = jnp.concatenate([first, jnp.where(ends, squares, 0)], axis=1)
        return {"weights": jnp.where(flat, 0, both[0] - weights @ both)}
