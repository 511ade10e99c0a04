"""Forecasts whose faults are known: a base density of z, and y = center + root z for each x."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

import jaxcal

CORRELATION = 0.5
APART = 3.0  # half the way from one mode to the other, in widths


class Fault(NamedTuple):
    """How the targets differ from what is claimed, in claimed deviations; numbers, so that one
    program serves all faults of a family."""

    first: float = 0.0  # shift of the first coordinate
    every: float = 0.0  # shift of all coordinates
    spread: float = 1.0  # of the targets over the claimed
    correlation: float = CORRELATION  # claimed; the targets have CORRELATION
    weight: float = 0.5  # of the upper mode, claimed; the targets have .5
    some: float = 0.0  # shift where the first input is above 1 (16 % of the x)
    cancelling: float = 0.0  # shift of the sign of the second input
    widths: float = 0.0  # log spread of the sign of the second input
    tail: float = 0.0  # share of targets from a density three times as wide
    model: float = 0.0  # 1: the fault that the family itself has (HGM)


FAULTS = {
    "correct": Fault(),
    "shift of one": Fault(first=0.15),
    "shift of all": Fault(every=0.15),
    "too narrow": Fault(spread=1.15),
    "too wide": Fault(spread=0.87),
    "correlation left out": Fault(correlation=0.0),
    "mode weights": Fault(weight=0.65),
    "wrong for some x": Fault(some=0.6),
    "shifts that cancel": Fault(cancelling=0.2),
    "widths that cancel": Fault(widths=0.2),
    "tail": Fault(tail=0.05),
    "HGM": Fault(model=1.0),
}
PLAIN = ["correct", "shift of one", "shift of all", "too narrow", "too wide"]
VARYING = ["wrong for some x", "shifts that cancel", "widths that cancel", "tail"]


class DataSet(NamedTuple):
    predictions: jaxcal.Unnormalized
    targets: Array  # [n, d]
    draws: Array  # [n, m, d], exact draws of the predictions
    logs: Callable[[Array], Array]  # log densities [n, m] of the predictions at [n, m, d]


class Base(NamedTuple):
    """A density of z: a log density (with the claimed weight), and its sampler."""

    log: Callable[[Array, Array], Array]
    draw: Callable[[jax.Array, tuple[int, ...], Array], Array]


def _normal(z, weight):
    return -jnp.sum(z**2) / 2


def _modes(z, weight):
    e = jnp.zeros_like(z).at[0].set(APART)
    upper = jnp.log(weight) - jnp.sum((z - e) ** 2) / 2
    return jnp.logaddexp(upper, jnp.log1p(-weight) - jnp.sum((z + e) ** 2) / 2)


def _student(z, weight):
    return -(4 + z.size) / 2 * jnp.log1p(jnp.sum(z**2) / 4)


def _skewed(z, weight):
    return jnp.sum(2 * z - jnp.exp(z))  # log of Gamma(2)


def _box(z, weight):
    """Triangular towards 0 on (0, 1): a jump at 0, and an end at 1."""
    inside = jnp.all((z > 0) & (z < 1))
    return jnp.where(inside, jnp.sum(jnp.log1p(-jnp.where(inside, z, 0))), -jnp.inf)


def _draw_normal(key, shape, weight):
    return jax.random.normal(key, shape)


def _draw_modes(key, shape, weight):
    side_key, key = jax.random.split(key)
    side = jnp.where(jax.random.uniform(side_key, shape[:-1]) < weight, APART, -APART)
    return jax.random.normal(key, shape).at[..., 0].add(side)


def _draw_student(key, shape, weight):
    chi_key, key = jax.random.split(key)
    chi = 2 * jax.random.gamma(chi_key, 2.0, (*shape[:-1], 1))
    return jax.random.normal(key, shape) * jnp.sqrt(4 / chi)


def _draw_skewed(key, shape, weight):
    return jnp.log(jax.random.gamma(key, 2.0, shape))


def _draw_box(key, shape, weight):
    return 1 - jnp.sqrt(jax.random.uniform(key, shape))


NORMAL = Base(_normal, _draw_normal)


class Family(NamedTuple):
    """``base`` of z, ``dimension``, ``width`` of the forecasts beside inputs of deviation 1,
    ``varying``: deviation of the log width over x; ``center``, ``deviation`` of the base, about
    which the spread changes; whether coordinates are correlated; and its faults."""

    base: Base
    dimension: int
    width: float
    varying: float
    center: float
    deviation: float
    correlated: bool
    faults: tuple[str, ...]
    n: int = 200  # observations a data set, for power


FAMILIES = {
    "modes": Family(
        Base(_modes, _draw_modes), 2, 0.5, 0.0, 0.0, 1.0, False,
        (*PLAIN, "mode weights", *VARYING[:3]),
    ),
    "widths": Family(NORMAL, 2, 1.0, 0.4, 0.0, 1.0, True,
                     (*PLAIN, "correlation left out", *VARYING)),
    "narrow": Family(NORMAL, 2, 1 / 12, 0.4, 0.0, 1.0, True,
                     (*PLAIN, "correlation left out", *VARYING[2:])),
    "student": Family(Base(_student, _draw_student), 2, 1.0, 0.4, 0.0, 1.41, True,
                      (*PLAIN, "correlation left out")),
    "skewed": Family(Base(_skewed, _draw_skewed), 2, 1.0, 0.4, 0.4228, 0.803, True,
                     (*PLAIN, "correlation left out")),
    "five": Family(NORMAL, 5, 1.0, 0.4, 0.0, 1.0, True, (*PLAIN, "correlation left out")),
    "hgm": Family(NORMAL, 1, 1.0, 0.0, 0.0, 1.0, False, ("correct", "HGM"), 64),
    "box": Family(Base(_box, _draw_box), 2, 3.0, 0.4, 0.0, 0.236, False,
                  ("correct", "box spread")),
}  # fmt: skip
FAULTS["box spread"] = Fault(spread=0.9)


def _density(base: Base):
    def log_density(params, y):
        center, inverse, weight = params
        return base.log(inverse @ (y - center), weight)

    return log_density


DENSITIES = {name: _density(family.base) for name, family in FAMILIES.items()}


def _root(correlation, d):
    cov = jnp.full((d, d), correlation) + (1 - correlation) * jnp.eye(d)
    return jnp.linalg.cholesky(cov)


def data_set(name: str, key: jax.Array, fault: Fault, n: int, m: int = 99) -> DataSet:
    """n forecasts with m exact draws each, and targets with a fault."""
    family = FAMILIES[name]
    base, d = family.base, family.dimension
    x_key, width_key, z_key, draw_key, tail_key = jax.random.split(key, 5)
    x = jax.random.normal(x_key, (n, max(d, 2)))
    widths = family.width * jnp.exp(family.varying * jax.random.normal(width_key, (n, 1, 1)))
    claimed = _root(fault.correlation if family.correlated else 0.0, d)
    actual = _root(CORRELATION if family.correlated else 0.0, d)
    if name == "hgm":  # of the KCCSD paper: N(sum x, v(x)), and the fault is that v should be 1
        inputs = jax.random.normal(x_key, (n, 3))
        x = jnp.broadcast_to(jnp.sum(inputs, axis=1, keepdims=True), (n, 2))
        bump = jnp.exp(-jnp.sum((inputs - 2 / 3) ** 2, axis=1) / (2 * 0.8**2))
        widths = jnp.sqrt(1 + 10 * bump)[:, None, None]
    side = jnp.sign(x[:, 1:2])
    z = base.draw(z_key, (n, d), 0.5)
    wide = jax.random.uniform(tail_key, (n, 1)) < fault.tail
    spread = fault.spread * jnp.exp(fault.widths * side) * jnp.where(wide, 3.0, 1.0)
    spread = spread * jnp.where(fault.model > 0, 1 / widths[:, 0], 1.0)
    # the spread of the modes of a mixture changes inside of each mode
    middle = jnp.round(z / (2 * APART) + 0.5) * 2 * APART - APART if name == "modes" else 0.0
    middle = jnp.where(jnp.arange(d) == 0, middle, 0.0) if name == "modes" else family.center
    z = middle + spread * (z - middle)
    shift = fault.every + fault.some * (x[:, :1] > 1) + fault.cancelling * side
    shift = jnp.broadcast_to(shift, (n, d)).at[:, 0].add(fault.first)
    claim = widths * claimed
    targets = x[:, :d] + jnp.einsum("nij,nj->ni", widths * actual, z)
    targets = targets + widths[:, :, 0] * family.deviation * shift
    inverse = jnp.linalg.inv(claim)
    weight = jnp.full(n, fault.weight)
    predictions = jaxcal.Unnormalized(DENSITIES[name], (x[:, :d], inverse, weight))
    drawn = base.draw(draw_key, (n, m, d), fault.weight)
    draws = x[:, None, :d] + jnp.einsum("nij,nmj->nmi", claim, drawn)

    def logs(ys):
        over = jax.vmap(DENSITIES[name], in_axes=(None, 0))
        return jax.vmap(over)(predictions.params, ys)

    return DataSet(predictions, targets, draws, logs)
