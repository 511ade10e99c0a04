"""Which coordinate is off? How often the guilty and the innocent are named, and the right way."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from jaxcal import Unnormalized, kccsd_test
from jaxcal.nulls import Wild

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
BATCH = 50  # data sets a step
CORRELATION = 0.8
DEGREES = 5
APART = 1.5  # from the middle of two modes to each, in their own standard deviations


@dataclass(frozen=True)
class Config:
    data_sets: int = 1000
    sizes: tuple[int, ...] = (64, 300)
    widths: tuple[int, ...] = (1, 10, 100)
    dimensions: tuple[int, ...] = (2, 5)
    others: tuple[str, ...] = ("student", "modes")
    n_draws: int = 199
    seed: int = 20261121


QUICK = Config(data_sets=20, sizes=(16,), widths=(10,), dimensions=(2,), others=(), n_draws=19)


def root(d: int) -> jax.Array:
    """Of a covariance with variances 1 and correlation .8^|i - j|."""
    gaps = jnp.abs(jnp.arange(d)[:, None] - jnp.arange(d))
    return jnp.linalg.cholesky(CORRELATION**gaps)


def gaussian(inverse_root: jax.Array, center: jax.Array, y: jax.Array) -> jax.Array:
    return -jnp.sum((inverse_root @ (y - center)) ** 2) / 2


def student(inverse_root: jax.Array, center: jax.Array, y: jax.Array) -> jax.Array:
    squares = jnp.sum((inverse_root @ (y - center)) ** 2)
    return -(DEGREES + len(y)) / 2 * jnp.log1p(squares / DEGREES)


def log_density(params: Any, y: jax.Array, *, form: Any) -> jax.Array:
    inverse_root, center = params
    return form(inverse_root, center, y)


LOG_DENSITIES = {form: partial(log_density, form=form) for form in (gaussian, student)}


def data(
    key: jax.Array, shift: jax.Array, *, family: str, d: int, width: int, n: int, route: str
) -> tuple[Any, jax.Array]:
    """Predictions whose coordinate 0 lies too high by ``shift`` of its standard deviation; targets.

    Widths vary by the factor ``width`` from prediction to prediction, and so do the units of the
    coordinates.
    """
    x_key, width_key, noise_key, mode_key = jax.random.split(key, 4)
    scale = width ** jax.random.uniform(width_key, (n, 1), minval=-0.5, maxval=0.5)
    units = width ** jnp.linspace(0, 1, d)
    roots = units[:, None] * root(d) * scale[:, :, None]
    centers = 2 * jax.random.normal(x_key, (n, d)) * units
    noise = jax.random.normal(noise_key, (n, d))
    if family == "student":
        noise = noise / jnp.sqrt(jax.random.chisquare(mode_key, DEGREES, shape=(n, 1)) / DEGREES)
    apart = 0.0
    if family == "modes":  # along the diagonal
        apart = APART * jnp.ones(d)
        noise = noise + jnp.linalg.solve(root(d), apart) * jax.random.rademacher(
            mode_key, (n, 1), noise.dtype
        )
    deviations = jnp.sqrt(jnp.sum(roots**2, axis=2))
    claimed = deviations * jnp.sqrt(1 + (apart**2 if family == "modes" else 0.0))
    if family == "student":
        claimed = deviations * (DEGREES / (DEGREES - 2)) ** 0.5
    ys = centers + jnp.einsum("nij,nj->ni", roots, noise)
    ys = ys - shift * claimed * (jnp.arange(d) == 0)
    if family == "modes":
        offsets = apart * deviations
        parts = jnp.stack([centers + offsets, centers - offsets], axis=1)
        mixing = dist.Categorical(jnp.full((n, 2), 0.5))
        covariances = jnp.einsum("nij,nkj->nik", roots, roots)
        normals = dist.MultivariateNormal(parts, covariance_matrix=covariances[:, None])
        return dist.MixtureSameFamily(mixing, normals), ys
    if route == "moments":
        return dist.MultivariateNormal(centers, scale_tril=roots), ys
    form = student if family == "student" else gaussian
    inverse = jax.vmap(lambda r: jax.scipy.linalg.solve_triangular(r, jnp.eye(d), lower=True))
    return Unnormalized(LOG_DENSITIES[form], (inverse(roots), centers)), ys


MEASURED = (
    "guilty_found",
    "innocent_accused",
    "wrong_sign",
    "guilty_covered",
    "innocent_covered",
    "mean_guilty",
    "mean_innocent",
    "given_others_innocent_accused",
)


def make(config: Config) -> runner.Study:
    """Marginal means of `kccsd_test(coordinates=True)`, and the split given the others beside them.

    Where nothing is shifted ("shift" 0) coordinate 0 is innocent too, and "found" is an accusation.
    """
    groups = [
        ("gaussian", d, width, n, route)
        for d, width, n, route in product(
            config.dimensions, config.widths, config.sizes, ("moments", "nodes")
        )
    ]
    routes = {"student": "nodes", "modes": "moments"}
    groups += [(f, 2, 1, n, routes[f]) for f, n in product(config.others, config.sizes)]
    cells = [
        dict(zip(("family", "d", "width", "n", "route", "shift"), (*group, shift), strict=True))
        for group in groups
        for shift in (0.0, round(4 / group[3] ** 0.5, 2))
    ]

    @lru_cache(maxsize=2)
    def program(family, d, width, n, route):
        def one(key, shift):
            data_key, test_key = jax.random.split(key)
            predictions, ys = data(
                data_key, shift, family=family, d=d, width=width, n=n, route=route
            )
            result = kccsd_test(
                test_key, predictions, ys, null=Wild(config.n_draws), coordinates=True
            )
            split = result.coordinates
            assert split is not None
            return split.marginal_mean, split.p_adjusted

        return jax.jit(
            lambda keys, shift: jax.lax.map(lambda key: one(key, shift), keys, batch_size=BATCH)
        )

    def measure(cell, key):
        names = ("family", "d", "width", "n", "route")
        keys = jax.random.split(key, config.data_sets)
        shift = jnp.asarray(cell["shift"], jnp.float32)
        means, given_others = program(*(cell[name] for name in names))(keys, shift)
        accused = (means.p_adjusted <= 0.05) & jnp.isfinite(means.low)  # named where limits are
        truth = shift * (jnp.arange(cell["d"]) == 0)
        covered = (means.low <= truth) & (truth <= means.high)
        return {
            "guilty_found": jnp.mean(accused[:, 0]),
            "innocent_accused": jnp.mean(jnp.any(accused[:, 1:], axis=1)),
            "wrong_sign": jnp.mean(accused[:, 0] & (means.estimate[:, 0] < 0)),
            "guilty_covered": jnp.mean(covered[:, 0]),
            "innocent_covered": jnp.mean(covered[:, 1:]),
            "mean_guilty": jnp.mean(means.estimate[:, 0]),
            "mean_innocent": jnp.mean(means.estimate[:, 1:]),
            "given_others_innocent_accused": jnp.mean(jnp.any(given_others[:, 1:] <= 0.05, axis=1)),
        }

    return runner.Study(cells, MEASURED, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
