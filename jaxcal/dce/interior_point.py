r"""Solve the linear program of the lower distance by an interior-point method of fixed shapes.

.. math:: \max \sum_i p^0_i a_i + p^1_i b_i,\quad |a_{i+1} - a_i|, |b_{i+1} - b_i| \le g_i,\quad
          (1 - u_i) a_i + u_i b_i \le 0,\quad a_i, b_i \ge -1

Variables a, b are dual functions for labels 0 and 1 at positions u; g are the gaps of u, and p^0,
p^1 the masses of the labels. The bounds -1 exclude no optimum. The number of steps is fixed, for
jit and vmap. The Newton matrix has 2 x 2 blocks: C_i + E_{i-1} + E_i on the diagonal, and -E_i next
to it. Block elimination has the pivots T_i + E_i, with T_1 = C_1 and

.. math:: T_{i+1} = C_{i+1} + (E_i^{-1} + T_i^{-1})^{-1}

All terms are positive definite, so no digits cancel. Determinants of blocks are kept positive.
Source: Blasiok et al. (2023), eq. 21; Mehrotra (1992).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxcal.numerics import at_least
from jaxcal.typing import Scalar, Vector

STEPS = 40
START = 0.1  # initial complementarity, in addition to that of the coupling
DONE = 1e-10  # complementarity at which iterations stop changing the solution
BACK = 0.995  # fraction of the step to the boundary

Pairs = Float[Array, "m 2"]  # values of a and b, or numbers for labels 0 and 1
Blocks = Float[Array, "*m 3"]  # symmetric 2 x 2 matrices: entries aa, ab, bb


class Parts(NamedTuple):
    """One number per inequality: ``slopes`` for a_{i+1} - a_i <= g_i, the same for b, -a and -b;
    ``bounds`` for (1 - u) a + u b <= 0, a >= -1 and b >= -1."""

    slopes: Float[Array, "m-1 4"]
    bounds: Float[Array, "m 3"]


class ChainProgram(NamedTuple):
    """Linear program: positions ``u`` [m], their ``gaps`` > 0, and ``masses`` of labels 0 and 1."""

    u: Vector
    gaps: Vector
    masses: Pairs

    @property
    def shares(self) -> Pairs:
        """Return P(y = 0) and P(y = 1) of calibrated predictions u, [m, 2]."""
        return jnp.stack([1 - self.u, self.u], axis=1)


class ChainSolution(NamedTuple):
    """Solution of a `ChainProgram`. ``a`` and ``b`` [m] are the dual functions. ``at`` [m] are the
    masses of the calibrated predictions u in the best coupling with the data. ``gap`` [] is the
    sum of slack times multiplier, plus the absolute errors of the mass constraints."""

    a: Vector
    b: Vector
    at: Vector
    gap: Scalar


def _rows(program: ChainProgram, z: Pairs) -> Parts:
    """Return the left sides of all inequalities, written with "<=", for z = (a, b)."""
    rise = jnp.diff(z, axis=0)
    calibrated = jnp.sum(program.shares * z, axis=1, keepdims=True)
    return Parts(jnp.concatenate([rise, -rise], axis=1), jnp.concatenate([calibrated, -z], axis=1))


def _columns(program: ChainProgram, x: Parts) -> Pairs:
    """Return the transpose of the linear map `_rows`, applied to x."""
    flow = jnp.pad(x.slopes[:, :2] - x.slopes[:, 2:], ((1, 1), (0, 0)))
    return flow[:-1] - flow[1:] + program.shares * x.bounds[:, :1] - x.bounds[:, 1:]


def _inverse(x: Blocks) -> Blocks:
    product = x[..., :1] * x[..., 2:]
    # in late steps one constraint outweighs the others, and the determinant may round to 0
    det = at_least(product - x[..., 1:2] ** 2, jnp.finfo(x.dtype).eps * product)
    return jnp.stack([x[..., 2], -x[..., 1], x[..., 0]], axis=-1) / det


def _diagonal(x: Array) -> Blocks:
    return jnp.stack([x[..., 0], jnp.zeros_like(x[..., 0]), x[..., 1]], axis=-1)


def _times(x: Blocks, z: Array) -> Array:
    return x[..., :2] * z[..., :1] + x[..., 1:] * z[..., 1:]


def _newton(program: ChainProgram, d: Parts) -> tuple[Blocks, Array]:
    """Factor G' diag(d) G, with G the linear map `_rows`, by block elimination. Return the inverse
    pivots, [m, 3], and the couplings, [m, 2], whose last row is 0."""
    couplings = d.slopes[:, :2] + d.slopes[:, 2:]
    share, calibrated = program.shares, d.bounds[:, :1]
    mixed, ends = share[:, :1] * share[:, 1:] * calibrated, share**2 * calibrated + d.bounds[:, 1:]
    corner = jnp.concatenate([ends[:, :1], mixed, ends[:, 1:]], axis=1)

    def step(rest: Array, item: tuple[Array, ...]) -> tuple[Array, Array]:
        coupling, corner = item
        passed = _inverse(_inverse(rest) + _diagonal(1 / coupling))
        return corner + passed, _inverse(rest + _diagonal(coupling))

    last, pivots = jax.lax.scan(step, corner[0], (couplings, corner[1:]))
    pivots = jnp.concatenate([pivots, _inverse(last)[None]])
    return pivots, jnp.pad(couplings, ((0, 1), (0, 0)))


def _solve(factors: tuple[Blocks, Array], right: Pairs) -> Pairs:
    none = jnp.zeros(2, right.dtype)

    def forward(carry: Array, item: tuple[Array, ...]) -> tuple[Array, Array]:
        pivot, coupling, right = item
        x = _times(pivot, right + carry)
        return coupling * x, x

    def backward(carry: Array, item: tuple[Array, ...]) -> tuple[Array, Array]:
        pivot, coupling, y = item
        x = y + _times(pivot, coupling * carry)
        return x, x

    _, y = jax.lax.scan(forward, none, (*factors, right))
    return jax.lax.scan(backward, none, (*factors, y), reverse=True)[1]


def _coupling(program: ChainProgram, mu: float) -> Parts:
    """Return positive initial multipliers: a coupling that satisfies the mass constraints.

    The mass of each label moves to u = 0 or 1, where it is calibrated, and every position gets a
    small mass, proportional to ``mu``. Later steps keep the constraints."""
    u, masses = program.u, program.masses
    some = jnp.full_like(u, 4 * mu)  # slacks of calibration and bounds start at 1/4 and 3/4
    ends = jnp.sum(masses + some[:, None] * program.shares[:, ::-1], axis=0)
    at = some.at[0].add(ends[0]).at[-1].add(ends[1])
    net = jnp.cumsum(program.shares * at[:, None] - some[:, None] - masses, axis=0)[:-1]
    flow = at_least(jnp.concatenate([net, -net], axis=1), 0) + (mu / program.gaps)[:, None]
    return Parts(flow, jnp.stack([at, some, some], axis=1))


def _dot(x: Parts, y: Parts) -> Scalar:
    return jnp.sum(x.slopes * y.slopes) + jnp.sum(x.bounds * y.bounds)


def _moved(x: PyTree, step: Scalar, dx: PyTree) -> PyTree:
    return jax.tree.map(lambda p, q: p + step * q, x, dx)


def _longest(x: Parts, dx: Parts) -> Scalar:
    """Return the largest t <= 1 for which no entry of x + t dx is negative; x is positive."""
    steps = [
        jnp.min(jnp.where(q < 0, -p / jnp.where(q < 0, q, -1), 1), initial=1)
        for p, q in zip(x, dx, strict=True)
    ]
    return jnp.minimum(*steps)


def _best(program: ChainProgram, point: PyTree, old: PyTree) -> PyTree:
    """Return the best values so far: the pairs (minus the objective, (a, b)) and (``gap``, ``at``).
    Each pair is taken from ``old`` or ``point``, whichever has the smaller first entry."""
    z, slack, price = point
    deviation = jnp.sum(jnp.abs(program.masses - _columns(program, price)))
    offers = (
        (-jnp.sum(program.masses * z), z),
        (_dot(slack, price) + deviation, price.bounds[:, 0]),
    )
    return tuple(
        jax.tree.map(partial(jnp.where, offer[0] < best[0]), offer, best)
        for offer, best in zip(offers, old, strict=True)
    )


def _step(program: ChainProgram, point: PyTree, done: float) -> PyTree:
    """Return the next point (functions, slacks, multipliers) by Mehrotra's predictor and corrector;
    the same point if its complementarity is at most ``done`` or the step is not finite."""
    _, slack, price = point
    count = sum(x.size for x in slack)
    mu = _dot(slack, price) / count
    factors = _newton(program, jax.tree.map(jnp.divide, price, slack))
    deviation = program.masses - _columns(program, price)

    def direction(_: Array, stage: tuple[Parts, PyTree]) -> tuple[Parts, PyTree]:
        target = stage[0]
        scaled = _columns(program, jax.tree.map(jnp.divide, target, slack))
        dz = _solve(factors, deviation - scaled)
        ds = jax.tree.map(jnp.negative, _rows(program, dz))
        dp = jax.tree.map(lambda t, p, ds, s: (t - p * ds) / s, target, price, ds, slack)
        after, priced = (_moved(x, _longest(x, dx), dx) for x, dx in ((slack, ds), (price, dp)))
        centre = (_dot(after, priced) / count / mu) ** 3 * mu
        corrected = jax.tree.map(lambda s, p, x, y: centre - s * p - x * y, slack, price, ds, dp)
        return corrected, (dz, ds, dp)

    predictor = jax.tree.map(lambda s, p: -s * p, slack, price)
    # a loop over predictor and corrector compiles in half the time of two calls
    _, (dz, ds, dp) = jax.lax.fori_loop(0, 2, direction, (predictor, point))
    primal, dual = BACK * _longest(slack, ds), BACK * _longest(price, dp)
    new = *_moved(point[:2], primal, (dz, ds)), _moved(price, dual, dp)
    finite = jnp.all(jnp.isfinite(new[0])) & (mu * count > done)
    return jax.tree.map(lambda x, y: jnp.where(finite, x, y), new, point)


def solve_chain(program: ChainProgram) -> ChainSolution:
    """Return the best dual functions and coupling of 40 steps, each of cost O(m)."""
    m, gaps = program.u.size, program.gaps
    limits = Parts(
        jnp.broadcast_to(gaps[:, None], (m - 1, 4)),
        jnp.broadcast_to(jnp.array([0, 1, 1], gaps.dtype), (m, 3)),
    )
    done = max(DONE, float(jnp.finfo(gaps.dtype).eps))
    z = jnp.full((m, 2), -0.25, gaps.dtype)
    slack = jax.tree.map(jnp.subtract, limits, _rows(program, z))
    first = z, slack, _coupling(program, START / m)

    def step(carry: PyTree, _: None) -> tuple[PyTree, None]:
        point, best = carry
        return (_step(program, point, done), _best(program, point, best)), None

    none = jnp.full((), jnp.inf, gaps.dtype)
    best = (none, z), (none, first[2].bounds[:, 0])
    # one iteration more than steps, because each compares the point that it starts from
    ((_, ((_, z), (gap, at))), _) = jax.lax.scan(step, (first, best), None, length=STEPS + 1)
    return ChainSolution(z[:, 0], z[:, 1], at, gap)
