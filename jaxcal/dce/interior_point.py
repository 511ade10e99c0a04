r"""Interior-point solver of the chain program of the lower distance, with fixed shapes.

.. math:: \max \sum_i p^0_i a_i + p^1_i b_i,\quad |a_{i+1} - a_i|, |b_{i+1} - b_i| \le g_i,\quad
          (1 - u_i) a_i + u_i b_i \le 0,\quad a_i, b_i \ge -1

(the last bounds exclude no optimum). A fixed number of steps, so it runs under jit and vmap. The
Newton matrix is block tridiagonal with 2 x 2 blocks: differences couple neighbours, calibration
couples a and b. Elimination from one end adds positive definite blocks only,

.. math:: T_{i+1} = C_{i+1} + (E_i^{-1} + T_i^{-1})^{-1},

so no digits cancel. Source: Blasiok et al. (2023), eq. 21; Mehrotra (1992).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from jaxcal.typing import Scalar, Vector

STEPS = 40
START = 0.1  # initial complementarity, in addition to that of the coupling
DONE = 1e-10  # complementarity at which iterations stop changing the solution
BACK = 0.995  # fraction of the step to the boundary


class Parts(NamedTuple):
    """One number per inequality: slopes of a and b up and down, calibration, and bounds."""

    up_a: Array
    down_a: Array
    up_b: Array
    down_b: Array
    calibrated: Array
    low_a: Array
    low_b: Array


class ChainProgram(NamedTuple):
    """Ascending positions u [m], gaps [m - 1] > 0 between them, masses of both labels [m]."""

    u: Vector
    gaps: Vector
    p0: Vector
    p1: Vector


class ChainSolution(NamedTuple):
    """Feasible dual functions ``a``, ``b`` [m]; ``at`` [m], the coupling's mass at each position;
    ``gap`` [], its complementarity and its deviation from the given masses."""

    a: Vector
    b: Vector
    at: Vector
    gap: Scalar


def _rows(program: ChainProgram, a: Array, b: Array) -> Parts:
    """Return the left sides of the inequalities, linear in a and b."""
    da, db = jnp.diff(a), jnp.diff(b)
    return Parts(da, -da, db, -db, (1 - program.u) * a + program.u * b, -a, -b)


def _columns(program: ChainProgram, x: Parts) -> tuple[Array, Array]:
    """Apply the transpose of `_rows`."""

    def divergence(flow: Array) -> Array:
        none = jnp.zeros(1, flow.dtype)
        return jnp.concatenate([none, flow]) - jnp.concatenate([flow, none])

    a = divergence(x.up_a - x.down_a) + (1 - program.u) * x.calibrated - x.low_a
    b = divergence(x.up_b - x.down_b) + program.u * x.calibrated - x.low_b
    return a, b


class _Blocks(NamedTuple):
    """Symmetric 2 x 2 matrices: entries aa, ab, bb."""

    aa: Array
    ab: Array
    bb: Array

    def inverse(self) -> "_Blocks":
        det = self.aa * self.bb - self.ab**2
        return _Blocks(self.bb / det, -self.ab / det, self.aa / det)

    def times(self, a: Array, b: Array) -> tuple[Array, Array]:
        return self.aa * a + self.ab * b, self.ab * a + self.bb * b


def _newton(program: ChainProgram, d: Parts) -> tuple[_Blocks, Array, Array]:
    """Return inverse pivots [m] and couplings [m - 1] of G' diag(d) G."""
    ea, eb = d.up_a + d.down_a, d.up_b + d.down_b
    u = program.u
    corner = _Blocks(
        (1 - u) ** 2 * d.calibrated + d.low_a,
        (1 - u) * u * d.calibrated,
        u**2 * d.calibrated + d.low_b,
    )

    def step(rest: _Blocks, item: tuple[Any, ...]) -> tuple[_Blocks, _Blocks]:
        ea, eb, corner = item
        pivot = _Blocks(rest.aa + ea, rest.ab, rest.bb + eb)
        back = rest.inverse()
        passed = _Blocks(back.aa + 1 / ea, back.ab, back.bb + 1 / eb).inverse()
        return jax.tree.map(jnp.add, corner, passed), pivot.inverse()

    first = jax.tree.map(lambda x: x[0], corner)
    others = jax.tree.map(lambda x: x[1:], corner)
    last, pivots = jax.lax.scan(step, first, (ea, eb, others))
    end = last.inverse()
    pivots = jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), pivots, end)
    return pivots, ea, eb


def _solve(factors: tuple[_Blocks, Array, Array], ra: Array, rb: Array) -> tuple[Array, Array]:
    pivots, ea, eb = factors
    none = jnp.zeros((), ra.dtype)

    def forward(carry: tuple[Array, Array], item: tuple[PyTree, ...]) -> PyTree:
        pivot, ea, eb, ra, rb = item
        a, b = ra + carry[0], rb + carry[1]
        xa, xb = pivot.times(a, b)
        return (ea * xa, eb * xb), (xa, xb)

    more = jnp.concatenate([ea, none[None]]), jnp.concatenate([eb, none[None]])
    _, (ya, yb) = jax.lax.scan(forward, (none, none), (pivots, *more, ra, rb))

    def backward(carry: tuple[Array, Array], item: tuple[PyTree, ...]) -> PyTree:
        pivot, ea, eb, ya, yb = item
        xa, xb = pivot.times(ea * carry[0], eb * carry[1])
        return (ya + xa, yb + xb), (ya + xa, yb + xb)

    _, x = jax.lax.scan(backward, (none, none), (pivots, *more, ya, yb), reverse=True)
    return x


def _coupling(program: ChainProgram, mu: float) -> Parts:
    """Return a positive initial coupling as multipliers that satisfy the mass constraints.

    Each label is moved to its end, 0 or 1, where it is calibrated; every position has some mass.
    Later steps keep the constraints.
    """
    u, p0, p1 = program.u, program.p0, program.p1
    some = jnp.full_like(u, 4 * mu)  # slacks of calibration and bounds start at 1/4 and 3/4
    at = some.at[0].add(jnp.sum(p0 + some * u)).at[-1].add(jnp.sum(p1 + some * (1 - u)))

    def flow(p: Array, part: Array) -> tuple[Array, Array]:
        net = jnp.cumsum(part * at - some - p)[:-1]
        least = mu / program.gaps
        return jnp.maximum(net, 0) + least, jnp.maximum(-net, 0) + least

    return Parts(*flow(p0, 1 - u), *flow(p1, u), at, some, some)


def _dot(x: Parts, y: Parts) -> Scalar:
    return jnp.sum(jnp.stack([jnp.sum(p * q) for p, q in zip(x, y, strict=True)]))


def _combine(f: Any, *parts: Parts) -> Parts:
    return jax.tree.map(f, *parts)


def _moved(x: Parts, step: Scalar, dx: Parts) -> Parts:
    return _combine(lambda p, q: p + step * q, x, dx)


def _longest(x: Parts, dx: Parts) -> Scalar:
    """Return the longest step of at most 1 for which all of x stay positive."""
    steps = _combine(
        lambda p, q: jnp.min(jnp.where(q < 0, -p / jnp.where(q < 0, q, -1), jnp.inf)), x, dx
    )
    return jnp.minimum(1.0, jnp.min(jnp.stack(steps)))


def _best(program: ChainProgram, point: PyTree, *kept: PyTree) -> PyTree:
    """Return the functions of the largest mean and the coupling of the smallest deviation so far.

    They may come from different steps, since rounding moves masses where slacks are small."""
    a, b, slack, price = point
    mean = jnp.sum(program.p0 * a + program.p1 * b)
    back = _columns(program, price)
    lost = jnp.sum(jnp.abs(program.p0 - back[0]) + jnp.abs(program.p1 - back[1]))
    offers = (-mean, (a, b)), (_dot(slack, price) + lost, price.calibrated)
    return tuple(
        jax.tree.map(partial(jnp.where, offer[0] < old[0]), offer, old)
        for offer, old in zip(offers, kept or offers, strict=True)
    )


def _step(program: ChainProgram, point: PyTree, done: float) -> PyTree:
    """Return the next point by Mehrotra's predictor and corrector; unchanged if it is `done`."""
    a, b, slack, price = point
    count = sum(x.size for x in slack)
    mu = _dot(slack, price) / count
    factors = _newton(program, _combine(jnp.divide, price, slack))
    back = _columns(program, price)
    dual = program.p0 - back[0], program.p1 - back[1]

    def direction(target: Parts) -> tuple[Any, ...]:
        # target: the desired change of slack x price
        scaled = _columns(program, _combine(jnp.divide, target, slack))
        da, db = _solve(factors, dual[0] - scaled[0], dual[1] - scaled[1])
        dslack = _combine(jnp.negative, _rows(program, da, db))
        dprice = _combine(lambda t, p, ds, s: (t - p * ds) / s, target, price, dslack, slack)
        return da, db, dslack, dprice

    _, _, ds, dp = direction(_combine(lambda s, p: -s * p, slack, price))
    after = _moved(slack, _longest(slack, ds), ds)
    priced = _moved(price, _longest(price, dp), dp)
    sigma = (_dot(after, priced) / count / mu) ** 3
    da, db, ds, dp = direction(
        _combine(lambda s, p, x, y: sigma * mu - s * p - x * y, slack, price, ds, dp)
    )
    primal, dual_step = BACK * _longest(slack, ds), BACK * _longest(price, dp)
    new = a + primal * da, b + primal * db, _moved(slack, primal, ds), _moved(price, dual_step, dp)
    finite = jnp.all(jnp.isfinite(new[0] + new[1])) & (mu * count > done)
    return jax.tree.map(lambda x, y: jnp.where(finite, x, y), new, point)


def solve_chain(program: ChainProgram) -> ChainSolution:
    """Return the solution after a fixed number of steps from an interior point. O(m) per step."""
    m, gaps = program.u.size, program.gaps
    one = jnp.ones(m, program.u.dtype)
    limits = Parts(gaps, gaps, gaps, gaps, 0 * one, one, one)
    done = max(DONE, float(jnp.finfo(gaps.dtype).eps))
    a = b = -0.25 * one
    slack = _combine(jnp.subtract, limits, _rows(program, a, b))
    first = a, b, slack, _coupling(program, START / m)

    def step(carry: PyTree, _: None) -> tuple[Any, None]:
        point, *kept = carry
        point = _step(program, point, done)
        return (point, *_best(program, point, *kept)), None

    carry = (first, *_best(program, first))
    (_, (_, (a, b)), (gap, at)), _ = jax.lax.scan(step, carry, None, length=STEPS)
    return ChainSolution(a, b, at, gap)
