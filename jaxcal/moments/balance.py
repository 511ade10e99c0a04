r"""Moments from log densities alone: what a reversible move takes away, its reverse brings back.

For a set of moves :math:`y' = y \pm \delta` that depends on no target, and any antisymmetric
:math:`\varphi(y, y') = -\varphi(y', y)`,

.. math:: E_{y \sim p} \sum_\delta \min\Big(1, \frac{p(y')}{p(y)}\Big)\, \varphi(y, y') = 0,

since :math:`\min(p(y), p(y'))` is symmetric. No gradient, no constant; where p(y') = 0 a move
counts 0, so that supports with boundaries need no transform.
Source: detailed balance of Metropolis et al. (1953).
"""

from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.moments.evaluation import LogDensityOfOne
from jaxcal.read import convert
from jaxcal.typing import DTypeLike, Key, Nodes, Point


def _moves(value: object) -> Nodes | None:
    """Moves [m, d] as an array, or None."""
    if value is None:
        return None
    moves = convert.floats(value, "moves")
    if moves.ndim != 2 or moves.shape[0] < 1:
        raise ValueError(f"moves: wanted shape [m, d], got {moves.shape}")
    return moves


class Balance(eqx.Module):
    r"""Metropolis balance of the log density: :math:`\varphi = \tanh(\frac12 \log p(y') / p(y))`.

    One number: the mean over moves y -> y' of the acceptance probability min(1, p(y') / p(y))
    times :math:`\varphi`. Sees wrong spread, inside of every mode and of any shape; bounded,
    whatever the tails. Needs no gradient. A flatter flow sees heavy tails better and is more skewed
    (`experiments/level`, `experiments/power`).

    Args:
        moves: Moves y' - y, [m, d], in the units of the predictions, each made in both
            directions. None draws ``n_moves`` of them, d at a time at right angles.
        n_moves: Number m of moves to draw.
        lengths: Lengths of the moves that are drawn, in deviations of the targets: m lengths run
            through these in even steps of their logarithms. Along d directions at right angles a
            wrong spread is the same question d times, so lengths do not depend on d. A normal
            prediction answers loudest to moves of 1.6 times its deviation; by default predictions
            up to 1.4 times as wide as all targets are heard, which calibrated ones rarely exceed.

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
        _check(self)

    def fitted(self, key: Key, dimension: int, dtype: DTypeLike) -> "Balance":
        """The same moment with moves drawn where none were given."""
        return _fitted(self, key, dimension, dtype)

    def __call__(self, log_density: LogDensityOfOne, y: Point) -> dict[str, Array]:
        def flow(log_ratio: Array, move: Point) -> Array:
            return jnp.tanh(log_ratio / 2)[None]

        return {"spread": _balance(log_density, y, self.moves, flow)}


class Jumps(eqx.Module):
    r"""Metropolis balance of the coordinates over big moves: :math:`\varphi = y' - y`, [d].

    Sees where the mass is, beyond the reach of scores: wrong weights of modes, and shifts. Needs
    no gradient.

    Args:
        moves: As in `Balance`, but in units that all predictions share, as big as the spread of
            all targets, also where each prediction has its own units.
        n_moves: As in `Balance`.
        lengths: As in `Balance`.

    Cost: 2 m log densities.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> standard_normal = lambda y: -jnp.sum(y**2) / 2
        >>> jumps = jaxcal.moments.Jumps(jnp.ones((1, 1)))
        >>> bool(jumps(standard_normal, jnp.array([2.0]))["weights"][0] < 0)  # back to the mass
        True
    """

    moves: Nodes | None = eqx.field(default=None, converter=_moves)
    n_moves: int = eqx.field(default=24, static=True)
    lengths: tuple[float, ...] = eqx.field(default=(3.0, 0.8), static=True)
    common: bool = eqx.field(default=True, init=False, static=True)
    whole_space: bool = eqx.field(default=False, init=False, static=True)
    smoothness: int = eqx.field(default=0, init=False, static=True)

    def __check_init__(self):
        _check(self)

    def fitted(self, key: Key, dimension: int, dtype: DTypeLike) -> "Jumps":
        """The same moment with moves drawn where none were given."""
        return _fitted(self, key, dimension, dtype)

    def __call__(self, log_density: LogDensityOfOne, y: Point) -> dict[str, Array]:
        return {"weights": _balance(log_density, y, self.moves, lambda _, move: move)}


def _balance(log_density: LogDensityOfOne, y: Point, moves: Nodes | None, flow: Any) -> Array:
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
    """Moves whose lengths run through ``lengths``; they depend on no target.

    Any d consecutive moves are orthogonal, so that no direction is left out at any length; a given
    power then takes half as many moves.
    """
    across = min(n_moves, dimension)
    exact = dtype if jnp.finfo(dtype).bits >= 32 else jnp.float32
    normal = jax.random.normal(key, (-(-n_moves // across), dimension, across), exact)
    directions = jnp.swapaxes(jnp.linalg.qr(normal)[0], 1, 2).reshape(-1, dimension)[:n_moves]
    places = np.linspace(0, len(lengths) - 1, n_moves)
    through = np.exp(np.interp(places, np.arange(len(lengths)), np.log(lengths)))
    return (jnp.asarray(through, exact)[:, None] * directions).astype(dtype)


Moving = TypeVar("Moving", Balance, Jumps)


def _fitted(balance: Moving, key: Key, dimension: int, dtype: DTypeLike) -> Moving:
    if balance.moves is None:
        moves = symmetric_moves(key, balance.n_moves, dimension, balance.lengths, dtype)
    else:
        moves = balance.moves.astype(dtype)
        if moves.shape[1] != dimension:
            raise ValueError(f"moves: wanted shape [m, {dimension}], got {moves.shape}")
    return type(balance)(moves, balance.n_moves, balance.lengths)


def _check(balance: "Balance | Jumps") -> None:
    convert.integer(balance.n_moves, "n_moves")
    if not isinstance(balance.lengths, tuple | list):
        raise TypeError(f"lengths: wanted a tuple of numbers, got {convert.say(balance.lengths)}")
    for length in balance.lengths:
        convert.real(length, "lengths", above=0)


class Exchangeable(eqx.Module):
    r"""A target less its mean given a set it may be any member of. Sees where the mass is.

    Let :math:`a_0 = y` be the target and :math:`a_1, .., a_m` draws of a density :math:`\nu`, here
    normal. If y is a draw of p, the probability that :math:`a_k` is the target, given the set, is
    :math:`w_k \propto p(a_k) / \nu(a_k)`, so that

    .. math:: E\Big[ y - \sum_{k=0}^m w_k a_k \Big] = 0

    exactly, for every m and every :math:`\nu` that reaches wherever p does. The mean tells of wrong
    weights of modes and of shifts, and nears the exact residual :math:`y - E_p y` the more of the
    points lie where p has its mass; with none there, or where all members of the set are equally
    likely, it is 0. Needs no gradient, no constant and no
    transform of a bounded support.

    Where the density is 0 at a member of the set, members are taken in the units of the set:
    :math:`r_k = (a_k - \sum_l w_l a_l) / s` with :math:`s^2` the variance of the weights. The same
    is said of :math:`r / \sqrt{1 + r^2}` in the place of a, and of :math:`r^2 / (1 + r^2)`, which
    sees the spread of densities that end, such as a uniform one, of which `Balance` sees nothing.
    Both are bounded, as a large target that is rare would make the test reject too often. Elsewhere
    the last d of the 2 d values are 0.

    Points are drawn anew for each target, about the middle of all targets, ``scale`` times as far
    as these: in units in common, also where each prediction has its own.

    Args:
        n_candidates: Points m beside each target.
        scale: Deviation of the normal density, in those of all targets.

    Cost: m + 1 log densities a target.

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
        flat = jnp.max(logs) == jnp.min(logs)  # whichever is the target; so no mean of it moves
        weights = jax.nn.softmax(logs - proposal)
        gaps = members - (weights @ members)[None]
        variance = weights @ gaps**2
        r = gaps / jnp.where(variance > 0, variance, 1)[None] ** 0.5
        squares = r**2 / (1 + r**2)
        ends = jnp.any(logs == -jnp.inf)
        first = jnp.where(ends, r / jnp.sqrt(1 + r**2), gaps)
        both = jnp.concatenate([first, jnp.where(ends, squares, 0)], axis=1)
        return {"weights": jnp.where(flat, 0, both[0] - weights @ both)}
