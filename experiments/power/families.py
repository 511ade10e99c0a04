"""Forecasts whose faults are known: a base density of z, and y = center + root z for each x."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import network
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
    model: float = 0.0  # 1: the fault that the family itself has (HGM, QGM, networks)


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
    "QGM": Fault(model=1.0),
    "MMGM": Fault(every=0.1),
    "trained": Fault(model=1.0),
}
PLAIN = ["correct", "shift of one", "shift of all", "too narrow", "too wide"]
VARYING = ["wrong for some x", "shifts that cancel", "widths that cancel", "tail"]


class DataSet(NamedTuple):
    predictions: jaxcal.Unnormalized
    targets: Array  # [n, d]
    draws: Array  # [n, m, d], exact draws of the predictions
    logs: Callable[[Array], Array]  # log densities [n, m] of the predictions at [n, m, d]
    inputs: Array  # [n, q], all that the predictions are functions of
    ratios: Callable[[Array], Array] | None  # log of the actual over the claimed density, likewise


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


LOGS = (_normal, _modes, _student, _skewed, _box)
DRAWS = (_draw_normal, _draw_modes, _draw_student, _draw_skewed, _draw_box)
NORMAL, MODES, STUDENT, SKEWED, BOX = range(len(LOGS))


class Family(NamedTuple):
    """``base``: which density z has; ``width`` of the forecasts beside inputs of deviation 1,
    ``varying``: deviation of the log width over x; ``center``, ``deviation`` of the base, about
    which the spread changes; whether coordinates are correlated: numbers, so that one program
    serves all families of a dimension. Then the dimension, the faults, and the observations a data
    set, for power."""

    base: float
    width: float
    varying: float
    center: float
    deviation: float
    correlated: float
    dimension: int
    faults: tuple[str, ...]
    n: int = 200


ALL = (*PLAIN, "correlation left out")
FAMILIES = {
    "modes": Family(MODES, 0.5, 0, 0, 1, 0, 2, (*PLAIN, "mode weights", *VARYING[:3])),
    "widths": Family(NORMAL, 1, 0.4, 0, 1, 1, 2, (*ALL, *VARYING)),
    "narrow": Family(NORMAL, 1 / 12, 0.4, 0, 1, 1, 2, (*ALL, *VARYING[2:])),
    "student": Family(STUDENT, 1, 0.4, 0, 1.41, 1, 2, ALL),
    "skewed": Family(SKEWED, 1, 0.4, 0.4228, 0.803, 1, 2, ALL),
    "box": Family(BOX, 3, 0.4, 0, 0.236, 0, 2, ("correct", "box spread")),
    "hgm": Family(NORMAL, 1, 0, 0, 1, 0, 1, ("correct", "HGM"), 64),
    "qgm": Family(NORMAL, 1, 0, 0, 1, 0, 1, ("correct", "QGM")),
    "five": Family(NORMAL, 1, 0.4, 0, 1, 1, 5, ALL),
    "mgm": Family(NORMAL, 1, 0, 0, 1, 0, 5, ("correct", "MMGM")),
    "ten": Family(NORMAL, 1, 0.4, 0, 1, 1, 10, ALL),
    **{
        name: Family(NORMAL, 1, 0, 0, 1, 0, 2, ("correct", "trained"))
        for name in network.SIMULATIONS
    },
}
FAULTS["box spread"] = Fault(spread=0.9)


def log_density(params, y):
    center, inverse, weight, base = params
    return jax.lax.switch(base, LOGS, inverse @ (y - center), weight)


AXES = (0, 0, 0, None)  # the last is shared by all predictions


def root(correlation, d):
    cov = jnp.full((d, d), correlation) + (1 - correlation) * jnp.eye(d)
    return jnp.linalg.cholesky(cov)


def data_set(
    special: str, family: Family, key: jax.Array, fault: Fault, n: int, m: int = 99
) -> DataSet:
    """n forecasts with m exact draws each, and targets with a fault; ``special``: the name of a
    family with a program of its own."""
    if special in network.SIMULATIONS:
        return posteriors(network.posterior(special), key, fault, n, m)
    d, kind = family.dimension, jnp.asarray(family.base).astype(jnp.int32)
    x_key, width_key, z_key, draw_key, tail_key = jax.random.split(key, 5)
    x = jax.random.normal(x_key, (n, max(d, 2)))
    widths = family.width * jnp.exp(family.varying * jax.random.normal(width_key, (n, 1, 1)))
    claimed = root(fault.correlation * family.correlated, d)
    actual = root(CORRELATION * family.correlated, d)
    if special == "hgm":  # of the KCCSD paper: N(sum x, v(x)), and the fault is that v should be 1
        inputs = jax.random.normal(x_key, (n, 3))
        x = jnp.broadcast_to(jnp.sum(inputs, axis=1, keepdims=True), (n, 2))
        bump = jnp.exp(-jnp.sum((inputs - 2 / 3) ** 2, axis=1) / (2 * 0.8**2))
        widths = jnp.sqrt(1 + 10 * bump)[:, None, None]
    bend = 0.0
    if special == "qgm":  # the fault is that .1 x^2 is left out
        inputs = jax.random.uniform(x_key, (n, 2), minval=-2, maxval=2)
        x, bend = inputs + 1, 0.1 * inputs[:, :1] ** 2
        x = x + bend * (1 - fault.model)
    side = jnp.sign(x[:, 1:2])

    def draw(key, shape, weight):
        draws = [lambda key, weight, one=one: one(key, shape, weight) for one in DRAWS]
        return jax.lax.switch(kind, draws, key, weight)

    z = draw(z_key, (n, d), 0.5)
    wide = jax.random.uniform(tail_key, (n, 1)) < fault.tail
    spread = fault.spread * jnp.exp(fault.widths * side) * jnp.where(wide, 3.0, 1.0)
    if special == "hgm":
        spread = spread * jnp.where(fault.model > 0, 1 / widths[:, 0], 1.0)
    # the spread of the modes of a mixture changes inside of each mode
    of_mode = jnp.round(z / (2 * APART) + 0.5) * 2 * APART - APART
    of_mode = jnp.where(jnp.arange(d) == 0, of_mode, 0.0)
    middle = jnp.where(kind == MODES, of_mode, family.center)
    z = middle + spread * (z - middle)
    shift = fault.every + fault.some * (x[:, :1] > 1) + fault.cancelling * side
    shift = shift + fault.model * bend
    shift = jnp.broadcast_to(shift, (n, d)).at[:, 0].add(fault.first)
    claim = widths * claimed
    targets = x[:, :d] + jnp.einsum("nij,nj->ni", widths * actual, z)
    targets = targets + widths[:, :, 0] * family.deviation * shift
    inverse = jnp.linalg.inv(claim)
    weight = jnp.full(n, fault.weight)
    predictions = jaxcal.Unnormalized(log_density, (x[:, :d], inverse, weight, kind), in_axes=AXES)
    drawn = draw(draw_key, (n, m, d), fault.weight)
    draws = x[:, None, :d] + jnp.einsum("nij,nmj->nmi", claim, drawn)

    def logs(ys):
        over = jax.vmap(log_density, in_axes=(None, 0))
        return jax.vmap(over, in_axes=(AXES, 0))(predictions.params, ys)

    usual = fault.spread * jnp.exp(fault.widths * side) * jnp.ones((n, 1))
    if special == "hgm":
        usual = usual * jnp.where(fault.model > 0, 1 / widths[:, 0], 1.0)
    back = jnp.linalg.inv(widths * actual)
    offset = x[:, :d] + widths[:, :, 0] * family.deviation * shift

    def ratios(ys):
        """Log of the actual over the claimed density at [n, m, d]."""
        z = jnp.einsum("nij,nmj->nmi", back, ys - offset[:, None])
        log = jax.vmap(jax.vmap(scaled, in_axes=(0, None)))
        narrow, broad = log(z, usual[:, 0]), log(z, 3 * usual[:, 0])
        log_actual = jnp.logaddexp(jnp.log1p(-fault.tail) + narrow, jnp.log(fault.tail) + broad)
        roots = jnp.linalg.slogdet(claimed)[1] - jnp.linalg.slogdet(actual)[1]
        return log_actual + roots - logs(ys)

    def scaled(z, size):
        """Log density of a base whose spread is ``size`` times as wide."""
        plain = family.center + (z - family.center) / size
        logs = jax.lax.switch(kind, LOGS, plain, 0.5)
        return jnp.where(kind == MODES, _modes_of_spread(z, size), logs) - d * jnp.log(size)

    seen = jnp.concatenate([x, jnp.log(widths[:, :, 0])], axis=1)
    return DataSet(predictions, targets, draws, logs, seen, ratios)


def _modes_of_spread(z, size):
    e = jnp.zeros_like(z).at[0].set(APART)
    sides = [-jnp.sum((z - side * e) ** 2) / (2 * size**2) for side in (-1, 1)]
    return jnp.logaddexp(*sides) + jnp.log(0.5)


def posteriors(posterior: network.Posterior, key, fault, n, m):
    """Trained posteriors, and what they were to find, or draws of their own."""
    data_key, draw_key = jax.random.split(key)
    theta, x = network.simulate(data_key, n)
    params = jax.vmap(posterior.params)(x)
    keys = jax.random.split(draw_key, n)
    drawn = jax.vmap(lambda key, params: posterior.draw(key, params, m + 1))(keys, params)
    targets = jnp.where(fault.model > 0, theta, drawn[:, 0])
    predictions = jaxcal.Unnormalized(posterior.log_density, params)

    def logs(ys):
        over = jax.vmap(posterior.log_density, in_axes=(None, 0))
        return jax.vmap(over)(params, ys)

    return DataSet(predictions, targets, drawn[:, 1:], logs, x, None)
