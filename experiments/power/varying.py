"""Forecasts of several forms, and faults that vary with the input or are of form rather than size.

Claimed is y = center + root z with z of a base density; the targets have another center, root,
shape or base. Log densities up to constants that may differ between observations.
"""

import zlib
from typing import NamedTuple

import families
import jax
import jax.numpy as jnp
import network
from families import AXES, DataSet
from jax.nn import sigmoid
from jax.scipy.special import digamma

import jaxcal


class Fault(NamedTuple):
    """How the targets differ from what is claimed; all but ``correlation`` are 0 under calibration.

    Shifts in claimed deviations (of a bounded target: of its logit), spreads in logs. x_1 and x_2
    are standard normal and independent, and the claimed means where these exist; with one
    coordinate x_2 is x_1.
    """

    first: float = 0.0  # shift of the first coordinate
    every: float = 0.0  # shift of all coordinates
    shrunk_first: float = 0.0  # shift of the first coordinate, times x_1
    shrunk: float = 0.0  # shift of each coordinate, times its own claimed mean
    some: float = 0.0  # shift where x_1 > 1
    cancelling: float = 0.0  # shift, times the sign of x_2
    interaction: float = 0.0  # shift, times the sign of x_1 x_2
    corner: float = 0.0  # shift where x_1 > .8 and x_2 > .8
    sine: float = 0.0  # shift, times sin(2 x_1)
    spread: float = 0.0  # log spread of all coordinates
    spread_first: float = 0.0  # log spread of the first coordinate
    by_mean: float = 0.0  # log spread of each coordinate, times its own claimed mean
    trend: float = 0.0  # log spread of all, times x_1
    scale: float = 0.0  # log spread of all, times the claimed log width in its deviations
    widths: float = 0.0  # log spread of all, times the sign of x_2
    corner_spread: float = 0.0  # log spread of all where x_1 > .8 and x_2 > .8
    tails: float = 0.0  # 1: Student t4, same deviation; of waiting times: gamma(.6), same mean
    weight: float = 0.0  # logit of the weight of the upper mode
    weight_trend: float = 0.0  # the same, times x_2: claimed weights vary too little
    correlation: float = families.CORRELATION  # claimed; the targets have .5
    model: float = 0.0  # 1: the fault of a trained network


FAULTS = {
    "correct": Fault(),
    "shift of one": Fault(first=0.15),
    "shift of all": Fault(every=0.15),
    "too narrow": Fault(spread=0.14),
    "too wide": Fault(spread=-0.14),
    "one too wide": Fault(spread_first=-0.22),
    "correlation left out": Fault(correlation=0.0),
    "tails": Fault(tails=1.0),
    "width by own mean": Fault(by_mean=0.4),
    "shrinkage of one": Fault(shrunk_first=0.25),
    "shrinkage of all": Fault(shrunk=0.15),
    "spread trend in mean": Fault(trend=0.15),
    "spread trend in scale": Fault(scale=0.15),
    "widths that cancel": Fault(widths=0.2),
    "shifts that cancel": Fault(cancelling=0.2),
    "wrong for some x": Fault(some=0.6),
    "interaction": Fault(interaction=0.3),
    "corner": Fault(corner=1.0),
    "corner too narrow": Fault(corner_spread=0.7),
    "sine": Fault(sine=0.35),
    "mode weights": Fault(weight=0.6),
    "mode weights too even": Fault(weight_trend=0.8),
    "trained": Fault(model=1.0),
}


def _normal(z, shape):
    return -jnp.sum(z**2) / 2


def _student(z, shape):
    return -(shape[0, 0] + z.size) / 2 * jnp.log1p(jnp.sum(z**2) / shape[0, 0])


def _skewed(z, shape):
    """Log of Gamma(2), less its mean."""
    return jnp.sum(2 * z - jnp.exp(z + digamma(2.0)))


def _modes(z, shape):
    """``shape``: the logit of the weight of the upper mode, and half the way between the modes."""
    e = jnp.zeros_like(z).at[0].set(shape[1, 0])
    upper = shape[0, 0] - jnp.sum((z - e) ** 2) / 2
    return jnp.logaddexp(upper, -jnp.sum((z + e) ** 2) / 2)


def _counts(shape):
    """a and b of a Beta density, from the logit of its mean and log(a + b)."""
    logit, total = shape[..., 0, :], jnp.exp(shape[..., 1, :])
    return sigmoid(logit) * total, sigmoid(-logit) * total


def _bounded(z, shape):
    a, b = _counts(shape)
    inside = jnp.all((z > 0) & (z < 1))
    z = jnp.where(inside, z, 0.5)
    return jnp.where(inside, jnp.sum((a - 1) * jnp.log(z) + (b - 1) * jnp.log1p(-z)), -jnp.inf)


def _waiting(z, shape):
    """Gamma; with shape 1 exponential."""
    inside = jnp.all(z >= 0)
    z = jnp.where(inside, z, 1.0)
    powers = (shape[0] - 1) * jnp.log(jnp.maximum(z, 1e-30))
    return jnp.where(inside, jnp.sum(powers - z), -jnp.inf)


def _draw_normal(key, size, shape):
    return jax.random.normal(key, size)


def _draw_student(key, size, shape):
    chi_key, key = jax.random.split(key)
    half = shape[..., 0, :1] / 2
    chi = jax.random.gamma(chi_key, half, (*size[:-1], 1))
    return jax.random.normal(key, size) * jnp.sqrt(half / chi)


def _draw_skewed(key, size, shape):
    return jax.random.loggamma(key, 2.0, size) - digamma(2.0)


def _draw_modes(key, size, shape):
    side_key, key = jax.random.split(key)
    upper = jax.random.uniform(side_key, size[:-1]) < sigmoid(shape[..., 0, 0])
    return jax.random.normal(key, size).at[..., 0].add(jnp.where(upper, 1, -1) * shape[..., 1, 0])


def _draw_bounded(key, size, shape):
    drawn = jax.random.beta(key, *_counts(shape), size)
    return jnp.clip(drawn, 1e-6, 1 - 1e-6)  # a float32 that rounds to an end is no target


def _draw_waiting(key, size, shape):
    return jnp.exp(jax.random.loggamma(key, shape[..., 0, :], size))


LOGS = (_normal, _student, _skewed, _modes, _bounded, _waiting)
DRAWS = (_draw_normal, _draw_student, _draw_skewed, _draw_modes, _draw_bounded, _draw_waiting)
NORMAL, STUDENT, SKEWED, MODES, BOUNDED, WAITING = range(len(LOGS))


class Family(NamedTuple):
    """``width`` of the forecasts beside claimed means of deviation 1, ``varying``: deviation of the
    log width over x; ``deviation`` of the base, in which shifts are measured; whether coordinates
    are correlated; ``degrees`` of freedom. Numbers, so that one program serves all families of a
    dimension, which follows with the faults."""

    base: float
    width: float
    varying: float
    deviation: float
    correlated: float
    degrees: float
    dimension: int
    faults: tuple[str, ...]


SPREADS = ("spread trend in mean", "spread trend in scale", "widths that cancel")
VARYING = (*SPREADS, "shrinkage of all", "shifts that cancel", "sine")
PLANE = ("shrinkage of one", "one too wide", "interaction", "corner")
FAMILIES = {
    "normal 1": Family(NORMAL, 1, 0.4, 1, 0, 4, 1, ("tails", "width by own mean", *VARYING)),
    "normal 2": Family(
        NORMAL,
        *(1, 0.4, 1, 1, 4, 2),
        ("tails", "width by own mean", *VARYING, *PLANE, "corner too narrow", "wrong for some x"),
    ),
    "normal 5": Family(
        NORMAL, 1, 0.4, 1, 1, 4, 5, ("tails", "width by own mean", *VARYING, *PLANE)
    ),
    "normal 10": Family(
        NORMAL, 1, 0.4, 1, 1, 4, 10, ("tails", *VARYING, *PLANE, "corner too narrow")
    ),
    "student": Family(
        STUDENT,
        *(1, 0.4, 1.41, 1, 4, 2),
        ("too narrow", "too wide", "shrinkage of all", *SPREADS[::2]),
    ),
    "heavy": Family(  # no variance
        STUDENT,
        *(1, 0.4, 1.41, 1, 1.5, 2),
        ("shift of one", "too narrow", "shrinkage of all", "spread trend in mean"),
    ),
    "skewed 2": Family(
        SKEWED,
        *(1, 0.4, 0.803, 1, 4, 2),
        ("shift of one", "width by own mean", "shrinkage of one", "widths that cancel", "sine"),
    ),
    "skewed 5": Family(
        SKEWED,
        *(1, 0.4, 0.803, 1, 4, 5),
        ("shift of one", "correlation left out", "shrinkage of all", "spread trend in scale"),
    ),
    "modes": Family(  # their weights vary with x_2
        MODES,
        *(0.5, 0, 1, 0, 4, 2),
        ("mode weights", "mode weights too even", "too narrow", "shrinkage of all", *SPREADS[::2]),
    ),
    "bounded 1": Family(
        BOUNDED, 1, 0.3, 0.67, 0, 4, 1, ("shift of all", "too wide", "shrinkage of all", *SPREADS)
    ),
    "bounded 2": Family(
        BOUNDED, 1, 0.3, 0.67, 0, 4, 2, ("too narrow", "shift of one", "interaction", *SPREADS[1:])
    ),
    "waiting 1": Family(WAITING, 1, 0, 1, 0, 4, 1, ("tails", "too narrow", "spread trend in mean")),
    "waiting 2": Family(WAITING, 1, 0, 1, 0, 4, 2, ("tails", "too wide", *SPREADS[::2])),
    **{name: Family(NORMAL, 1, 0, 1, 0, 4, 2, ("trained",)) for name in network.STUDIED},
}


def unseen(family: str, fault: str) -> bool:
    """Whether a cell is kept for the end: a third of them, by a checksum of its names."""
    return fault != "correct" and zlib.crc32(f"{family}/{fault}".encode()) % 3 == 0


def log_density(params, y):
    center, inverse, shape, base = params
    return jax.lax.switch(base, LOGS, inverse @ (y - center), shape)


def _faulty(fault: Fault, x, log_width, d):
    """Shift in claimed deviations and log spread [n, d] of the targets."""
    x_1, x_2 = x[:, :1], x[:, min(1, d - 1)][:, None]
    side, corner = jnp.sign(x_2), (x_1 > 0.8) & (x_2 > 0.8)
    first, means = jnp.eye(1, d), x[:, :d]
    shift = (fault.first + fault.shrunk_first * x_1) * first + fault.every + fault.shrunk * means
    shift = shift + fault.some * (x_1 > 1) + fault.cancelling * side + fault.corner * corner
    shift = shift + fault.interaction * jnp.sign(x_1) * side + fault.sine * jnp.sin(2 * x_1)
    spread = fault.spread + fault.spread_first * first + fault.by_mean * means + fault.trend * x_1
    spread = spread + fault.scale * log_width + fault.widths * side + fault.corner_spread * corner
    return shift, spread


def data_set(
    special: str, family: Family, key: jax.Array, fault: Fault, n: int, m: int = 99
) -> DataSet:
    """n forecasts with m exact draws each, and targets with a fault; ``special``: the name of a
    trained network."""
    if special:
        return families.posteriors(network.posterior(special), key, fault, n, m)
    d, kind = family.dimension, jnp.asarray(family.base).astype(jnp.int32)
    x_key, width_key, z_key, draw_key = jax.random.split(key, 4)
    x = jax.random.normal(x_key, (n, max(d, 2)))
    log_width = jax.random.normal(width_key, (n, 1))  # in its deviations
    shift, spread = _faulty(fault, x, log_width, d)
    waiting, bounded, modes = kind == WAITING, kind == BOUNDED, kind == MODES
    width = family.width * jnp.exp(family.varying * log_width)
    width = jnp.where(bounded, 1.0, jnp.where(waiting, jnp.exp(0.5 * x[:, :d]), width))
    center = jnp.where(bounded | waiting, 0.0, x[:, :d])

    first = jnp.where(bounded, 0.7 * x[:, :d], jnp.where(waiting, 1.0, family.degrees))
    second = jnp.where(bounded, jnp.log(8.0) - 2 * family.varying * log_width, families.APART)
    claimed = (
        center,
        width[:, :, None] * families.root(fault.correlation * family.correlated, d),
        _shapes(jnp.where(modes, x[:, 1:2], first), second, n, d),
        kind,
    )

    # the modes grow, and stay where they are
    other = (fault.tails > 0) & (kind == NORMAL)
    logit = (1 + fault.weight_trend) * x[:, 1:2] + fault.weight
    first = first + jnp.where(bounded, family.deviation * shift, 0.0)
    first = jnp.where(waiting & (fault.tails > 0), 0.6, jnp.where(other, 4.0, first))
    scale = jnp.exp(jnp.where(bounded, 0.0, spread))
    of_mode = families.APART / scale[:, :1]
    second = jnp.where(bounded, second - 2 * spread, jnp.where(modes, of_mode, second))
    scale = scale * jnp.where(other, 0.5**0.5, jnp.where(waiting, 1 / first, 1.0)) * width
    actual = (
        center + jnp.where(bounded, 0.0, width * family.deviation * shift),
        scale[:, :, None] * families.root(families.CORRELATION * family.correlated, d),
        _shapes(jnp.where(modes, logit, first), second, n, d),
        jnp.where(other, STUDENT, kind),
    )

    def draw(key, truth, m):
        center, root, shape, kind = truth
        size, spread_out = (n, m, d), shape[:, None]
        drawn = [lambda key, shape, one=one: one(key, size, shape) for one in DRAWS]
        z = jax.lax.switch(kind, drawn, key, spread_out)
        return center[:, None] + jnp.einsum("nij,nmj->nmi", root, z)

    def logs(truth, ys):
        center, root, shape, kind = truth
        params = center, jnp.linalg.inv(root), shape, kind
        over = jax.vmap(log_density, in_axes=(None, 0))
        return jax.vmap(over, in_axes=(AXES, 0))(params, ys)

    params = claimed[0], jnp.linalg.inv(claimed[1]), *claimed[2:]
    predictions = jaxcal.Unnormalized(log_density, params, in_axes=AXES)
    seen = jnp.concatenate([x, log_width], axis=1)
    return DataSet(
        predictions,
        draw(z_key, actual, 1)[:, 0],
        draw(draw_key, claimed, m),
        lambda ys: logs(claimed, ys),
        seen,
        lambda ys: logs(actual, ys) - logs(claimed, ys),
    )


def _shapes(first, second, n, d):
    return jnp.stack([jnp.broadcast_to(one, (n, d)) for one in (first, second)], axis=1)
