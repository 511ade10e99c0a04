"""Which fault is it? How often shift, spread and correlation are found, and innocents accused."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal.moments.attribution import claims, faults

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner
from reference.given_others import given_others

FOLDER = Path(__file__).parent
CORRELATION, WEAKER = 0.8, 0.5
DEGREES = 5.0
APART = 1.5  # from the middle of two modes to each, in their own standard deviations
FAULTS = {  # shift and spread of coordinate 0, and whether its correlation with 1 is weaker
    "none": (0.0, 1.0, 0.0),
    "shift": (0.5, 1.0, 0.0),
    "spread": (0.0, 1.3, 0.0),
    "correlation": (0.0, 1.0, 1.0),
    "all three": (0.5, 1.3, 1.0),
}


@dataclass(frozen=True)
class Config:
    data_sets: int = 1000
    gaussians: tuple[tuple[int, int, str], ...] = (  # d, n and where covariances come from
        (2, 64, "moments"),
        (2, 64, "nodes"),
        (2, 300, "moments"),
        (2, 300, "nodes"),
        (5, 300, "moments"),
        (5, 300, "nodes"),
        (10, 300, "moments"),
    )
    many: tuple[tuple[int, int, str], ...] = ((100, 1000, "moments"),)
    few_sets: int = 50
    others: tuple[tuple[str, int], ...] = (("student", 300), ("modes", 300))
    seed: int = 20261122


QUICK = Config(data_sets=8, gaussians=((2, 16, "nodes"),), many=(), others=())


def log_density(family: str, z: jax.Array) -> jax.Array:
    """Of the noise [d], up to a constant."""
    d = len(z)
    if family == "student":
        return -(DEGREES + d) / 2 * jnp.log1p(jnp.sum(z**2) / DEGREES)
    if family == "modes":
        far = APART * jnp.ones(d)
        sides = [-jnp.sum((z - side * far) ** 2) / 2 for side in (-1.0, 1.0)]
        return jax.scipy.special.logsumexp(jnp.stack(sides))
    return -jnp.sum(z**2) / 2


def data(key: jax.Array, fault: jax.Array, *, family: str, d: int, n: int, m: int):
    """Targets [n, d], scores at them and at m base points, true centres and covariances."""
    shift, spread, weaker = fault
    keys = jax.random.split(key, 5)
    gaps = jnp.abs(jnp.arange(d)[:, None] - jnp.arange(d))
    claimed = CORRELATION**gaps
    pair = (gaps == 1) & (jnp.arange(d)[:, None] + jnp.arange(d) == 1)
    actual = jnp.where(pair & (weaker > 0), WEAKER, claimed)
    scale = 10 ** jax.random.uniform(keys[0], (n, 1), minval=-0.5, maxval=0.5)
    centers = 2 * jax.random.normal(keys[1], (n, d))
    noise = jax.random.normal(keys[2], (n, d))
    covariance, deviation = claimed, 1.0
    if family == "student":
        noise = noise * jnp.sqrt(DEGREES / jax.random.chisquare(keys[3], DEGREES, shape=(n, 1)))
        covariance, deviation = claimed * DEGREES / (DEGREES - 2), (DEGREES / (DEGREES - 2)) ** 0.5
    root = jnp.linalg.cholesky(claimed)
    if family == "modes":  # noise has covariance I + APART^2 1 1^T
        noise = noise + APART * jax.random.rademacher(keys[3], (n, 1), noise.dtype)
        covariance = root @ (jnp.eye(d) + APART**2) @ root.T
        deviation = jnp.sqrt(jnp.diagonal(covariance))[0]
    relative = noise @ jnp.linalg.cholesky(actual).T
    relative = relative.at[:, 0].multiply(spread).at[:, 0].add(shift * deviation)
    ys = centers + scale * relative
    inverse = jnp.linalg.inv(root)

    def score(y, center, scale):
        return jax.grad(lambda y: log_density(family, inverse @ (y - center) / scale))(y)

    scores = jax.vmap(score)(ys, centers, scale[:, 0])
    nodes = 3 * jax.random.normal(keys[4], (m, d))
    at_nodes = jax.vmap(lambda center, s: jax.vmap(lambda z: score(z, center, s))(nodes))(
        centers, scale[:, 0]
    )
    return ys, scores, nodes, at_nodes, centers, scale[:, :, None] ** 2 * covariance[None]


KINDS = ("mean", "spread", "correlation")
MEASURED = (
    *(f"{kind}_{what}" for kind in KINDS for what in ("found", "innocent_accused", "covered")),
    "conditional_mean_accused",
    "conditional_spread_accused",
    "not_a_number",
)


@lru_cache(maxsize=2)
def program(family: str, d: int, n: int, route: str):
    m = max(10, 2 * d) if route == "nodes" else 1

    def one(key, fault):
        ys, scores, nodes, at_nodes, centers, covariances = data(
            key, fault, family=family, d=d, n=n, m=m
        )
        if route == "nodes":
            claimed = claims(None, nodes, at_nodes, ys, scores)
            centers, covariances = claimed.centers, claimed.covariances
        scored = ys, scores, centers, covariances
        return faults(*scored), given_others(*scored)

    return runner.spread(one)


def make(config: Config) -> runner.Study:
    """Coordinate 0, and its pair with 1, are guilty; everything else is innocent."""
    groups = [("gaussian", *group, config.data_sets) for group in config.gaussians]
    groups += [("gaussian", *group, config.few_sets) for group in config.many]
    groups += [
        (family, 2, n, "nodes" if family == "student" else "moments", config.data_sets)
        for family, n in config.others
    ]
    names = ("family", "d", "n", "route", "data_sets", "fault")
    cells = [dict(zip(names, (*group, fault), strict=True)) for group in groups for fault in FAULTS]

    def measure(cell, key):
        sets, d, fault = cell["data_sets"], cell["d"], FAULTS[cell["fault"]]
        keys = jax.random.split(key, sets)
        wide = jnp.broadcast_to(jnp.asarray(fault), (sets, 3))
        result, exact = program(cell["family"], d, cell["n"], cell["route"])(keys, wide)
        shift, spread, weaker = fault
        truths = {
            "mean": -shift * (np.arange(d) == 0),
            "spread": -np.log(spread) * (np.arange(d) == 0),
            "correlation": (CORRELATION - WEAKER) * weaker * (np.arange(d * (d - 1) // 2) == 0),
        }
        row = {}
        for kind in KINDS:
            means, truth = getattr(result, kind), jnp.asarray(truths[kind])[None]
            accused = means.p_adjusted <= 0.05
            innocent = np.asarray(truths[kind] == 0)
            row[f"{kind}_found"] = jnp.mean(accused[:, 0])
            row[f"{kind}_innocent_accused"] = jnp.mean(jnp.any(accused & innocent[None], axis=1))
            row[f"{kind}_covered"] = jnp.mean((means.low <= truth) & (truth <= means.high))
        others = np.arange(d) > 0
        for kind in ("mean", "spread"):
            accused = getattr(exact, kind).p_adjusted <= 0.05
            row[f"conditional_{kind}_accused"] = jnp.mean(jnp.any(accused & others[None], axis=1))
        numbers = jnp.concatenate([getattr(result, kind).p_value for kind in KINDS], axis=1)
        return row | {"not_a_number": int(jnp.sum(jnp.isnan(numbers)))}

    return runner.Study(cells, MEASURED, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
