"""Does whitening see wrong widths of sharp forecasts, and is it ever worse than no whitening?"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, polygamma

from jaxcal import Unnormalized, kccsd_test
from jaxcal.nulls import Wild
from jaxcal.whitening import Landing, LocationScale, Regression

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
DEGREES = 4.0  # of Student's t
SHAPE = 1.0  # of the gamma distribution whose logarithm is the skewed family
APART = 3.0  # from the middle to each of two modes, in their standard deviations

# form, spread of the centres and range of the widths, both in typical widths, and correlation
FAMILIES = {
    "gaussian": (0, 2.5, 1.0, 0.0),
    "sharp": (0, 10.0, 1.0, 0.0),
    "widths 10": (0, 2.5, 10.0, 0.0),
    "widths 100": (0, 2.5, 100.0, 0.0),
    "correlated": (0, 2.5, 3.0, 0.8),
    "student": (1, 2.5, 3.0, 0.0),
    "skewed": (2, 2.5, 3.0, 0.0),
    "modes": (3, 2.5, 1.0, 0.0),
}
FAULTS = {  # of the targets: shift, spread of all, and by turns, in claimed standard deviations
    "correct": (0.0, 1.0, 1.0),
    "shifted": (0.15, 1.0, 1.0),
    "too narrow": (0.0, 1.15, 1.0),
    "too wide": (0.0, 0.85, 1.0),
    "by turns": (0.0, 1.0, 1.3498588),
}
METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "precondition diagonal": {"precondition": "diagonal"},
    "precondition full": {"precondition": "full"},
    "regression": {"whiten": Regression()},
    "landing": {"whiten": Landing()},
    "landing, location and scale": {
        "whiten": Landing(),
        "divergence": LocationScale(Landing()),
    },
}


@dataclass(frozen=True)
class Config:
    power_sets: int = 200
    level_sets: int = 1000
    power_size: int = 300
    level_sizes: tuple[int, ...] = (64, 200)
    large: int = 1000
    large_families: tuple[str, ...] = ("gaussian", "student")
    families: tuple[str, ...] = tuple(FAMILIES)
    methods: tuple[str, ...] = tuple(METHODS)
    many_dimensions: int = 5
    n_draws: int = 199
    seed: int = 20261122


QUICK = Config(
    power_sets=4,
    level_sets=4,
    power_size=16,
    level_sizes=(16,),
    large_families=(),
    families=("gaussian",),
    methods=("plain", "landing"),
    many_dimensions=2,
    n_draws=19,
)


def standardized(form: jax.Array, z: jax.Array) -> jax.Array:
    """Log density of the noise of a family, [d] -> []."""
    d = len(z)
    mean, deviation = digamma(SHAPE), jnp.sqrt(polygamma(1, SHAPE))
    w = mean + deviation * jnp.where(form == 2, z, 0.0)  # another family may be infinite here
    far = jnp.zeros(d, z.dtype).at[0].set(APART)
    modes = jnp.stack([-jnp.sum((z - side * far) ** 2) / 2 for side in (-1.0, 1.0)])
    forms = jnp.stack(
        [
            -jnp.sum(z**2) / 2,
            -(DEGREES + d) / 2 * jnp.log1p(jnp.sum(z**2) / DEGREES),
            jnp.sum(SHAPE * w - jnp.exp(w)),
            jax.scipy.special.logsumexp(modes),
        ]
    )
    return forms[form]


def log_density(params: Any, y: jax.Array) -> jax.Array:
    form, center, inverse_root = params
    return standardized(form, inverse_root @ (y - center))


def noise(key: jax.Array, form: jax.Array, n: int, d: int, spread: jax.Array) -> jax.Array:
    """Draws [n, d] of the noise; ``spread`` [n, 1] scales it, inside of each mode."""
    normal_key, gamma_key, mode_key = jax.random.split(key, 3)
    z = jax.random.normal(normal_key, (n, d))
    squares = 2 * jax.random.gamma(gamma_key, DEGREES / 2, (n, 1))
    logs = jnp.log(jax.random.gamma(gamma_key, SHAPE, (n, d)))
    skewed = (logs - digamma(SHAPE)) / jnp.sqrt(polygamma(1, SHAPE))
    side = jax.random.rademacher(mode_key, (n, 1), z.dtype) * APART * (jnp.arange(d) == 0)
    forms = jnp.stack([z, z * jnp.sqrt(DEGREES / squares), skewed, z])
    return spread * forms[form] + jnp.where(form == 3, side, 0)


def data(key: jax.Array, family: jax.Array, fault: jax.Array, n: int, d: int):
    """Predictions of a family, and targets with a fault."""
    form, apart, widths, correlation = family
    shift, spread, by_turns = fault
    form = form.astype(int)
    center_key, width_key, noise_key = jax.random.split(key, 3)
    centers = apart * jax.random.normal(center_key, (n, d))
    width = widths ** jax.random.uniform(width_key, (n, 1, 1), minval=-0.5, maxval=0.5)
    matrix = correlation ** jnp.abs(jnp.arange(d)[:, None] - jnp.arange(d))
    matrix = jnp.where(jnp.eye(d) > 0, 1.0, matrix)
    root = width * jnp.linalg.cholesky(matrix)
    inverse = jnp.linalg.inv(jnp.linalg.cholesky(matrix)) / width
    turns = jnp.where(jnp.arange(n)[:, None] % 2 == 0, by_turns, 1 / by_turns)
    z = noise(noise_key, form, n, d, spread / turns) + shift
    targets = centers + jnp.einsum("nij,nj->ni", turns[:, :, None] * root, z)
    forms = jnp.full(n, form)
    return Unnormalized(log_density, (forms, centers, inverse / turns[:, :, None])), targets


@lru_cache(maxsize=2)
def program(method: str, n: int, d: int, n_draws: int):
    """One program a method and size, for every family and fault."""

    def one(key, family, fault):
        data_key, test_key = jax.random.split(key)
        predictions, targets = data(data_key, family, fault, n, d)
        result = kccsd_test(test_key, predictions, targets, null=Wild(n_draws), **METHODS[method])
        astray = result.notes.get("centres-astray", 0)
        clamped = result.notes.get("clamped-scales", 0)
        return result.p_value, jnp.asarray(clamped), jnp.asarray(astray)

    return runner.spread(one)


MEASURED = (*runner.REJECTIONS, "clamped", "astray")


def make(config: Config) -> runner.Study:
    """Rejections at 5 % and 1 %, and the share of predictions clamped and astray."""

    def cell(family, d, n, fault, method, sets):
        names = ("family", "d", "n", "fault", "method", "data_sets")
        return dict(zip(names, (family, d, n, fault, method, sets), strict=True))

    cells = []
    for method in config.methods:
        for n in config.level_sizes:
            cells += [cell(f, 2, n, "correct", method, config.level_sets) for f in config.families]
        cells += [
            cell(f, 2, config.large, "correct", method, config.level_sets)
            for f in config.large_families
        ]
        cells += [
            cell(f, 2, config.power_size, fault, method, config.power_sets)
            for f in config.families
            for fault in FAULTS
            if fault != "correct"
        ]
        if (d := config.many_dimensions) != 2:
            n = config.level_sizes[-1]
            cells += [
                cell(
                    "correlated",
                    d,
                    n,
                    fault,
                    method,
                    config.level_sets if fault == "correct" else config.power_sets,
                )
                for fault in FAULTS
            ]

    def measure(cell, key):
        sets, n = cell["data_sets"], cell["n"]
        keys = jax.random.split(key, sets)
        family, fault = (
            jnp.broadcast_to(jnp.asarray(values), (sets, len(values)))
            for values in (FAMILIES[cell["family"]], FAULTS[cell["fault"]])
        )
        p, clamped, astray = program(cell["method"], n, cell["d"], config.n_draws)(
            keys, family, fault
        )
        return {
            **runner.rejections(p),
            "clamped": jnp.mean(clamped) / n,
            "astray": jnp.mean(astray) / n,
        }

    return runner.Study(cells, MEASURED, measure, config.seed, paired=("method",))


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
