"""Estimators and tests of SKCE on synthetic Gaussians: bias, variance, errors of both types."""

import math
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import ndtr

from jaxcal.kernels import Gaussian, Laplace
from jaxcal.nulls import BlockNormal
from jaxcal.skce import skce_test
from jaxcal.ucme import F, ucme_test

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner
from reference.nulls import BlockSquares, ChiSquared, Gamma, Multinomial
from reference.regression import DEVIATION, gaussian_forecasts

FOLDER = Path(__file__).parent
# the paper's kernel: exp(-W_2(p, p')) exp(-|y - y'|^2 / 2)
KERNEL = {
    "standardize": False,
    "target_kernel": Gaussian(1.0),
    "prediction_kernel": Laplace(1.0),
}
# SKCE by quadrature
TRUTH = {("calibrated", 1): 0.0, ("calibrated", 10): 0.0}
TRUTH |= {("uncalibrated", 1): 0.1107737, ("uncalibrated", 10): 0.0595975}
ESTIMATORS = ("biased", "pairs", "root", "full")
TESTS = ("pairs", "root", "pairs_b", "root_b", "bootstrap", "gamma", "cme", "cme_f")


@dataclass(frozen=True)
class Config:
    data_sets: int = 500
    sizes: tuple[int, ...] = (4, 16, 64, 256, 1024)
    dimensions: tuple[int, ...] = (1, 10)
    n_draws: int = 1000
    n_draws_large: int = 199  # where n > 500: the level is the same, five times less work
    n_locations: int = 10
    seed: int = 20210503


QUICK = Config(data_sets=20, sizes=(4, 16), dimensions=(1,), n_draws=50, n_draws_large=50)


def predicted(means: jax.Array) -> dist.Distribution:
    return dist.Normal(means, DEVIATION).to_event(1)


def locations(key: jax.Array, j: int, d: int):
    """Test predictions N(m, 0.1^2 I), m ~ U[0, 1]^d, and test targets N(0, 0.1^2 I)."""
    mean_key, target_key = jax.random.split(key)
    means = jax.random.uniform(mean_key, (j, d))
    return predicted(means), DEVIATION * jax.random.normal(target_key, (j, d))


@cache
def program(n: int, d: int, n_draws: int, n_locations: int):
    """All estimates and p-values of every data set; one program for both models."""

    def one(data_key, test_key, place_key, calibrated):
        means, _, targets = gaussian_forecasts(data_key, n, d=d, calibrated=calibrated)
        test = partial(skce_test, test_key, predicted(means), targets, **KERNEL)
        full = test(null=Multinomial(n_draws))
        size = max(2, math.isqrt(n))
        pairs, root = test(null=BlockNormal(2)), test(null=BlockNormal(size))
        p = {
            "pairs": ndtr(-pairs.statistic),  # the paper's limit for many blocks
            "root": ndtr(-root.statistic),
            "pairs_b": test(null=BlockSquares(2)).p_value,
            "root_b": test(null=BlockSquares(size)).p_value,
            "bootstrap": full.p_value,
            "gamma": test(null=Gamma()).p_value,
        }
        if n > n_locations:
            at = locations(place_key, n_locations, d)
            place = partial(ucme_test, test_key, predicted(means), targets, locations=at, **KERNEL)
            p |= {"cme": place(null=ChiSquared()).p_value, "cme_f": place(null=F()).p_value}
        estimates = (full.biased, pairs.estimate, root.estimate, full.estimate)
        return dict(zip(ESTIMATORS, estimates, strict=True)), p

    return runner.spread(one)


def make(config: Config) -> runner.Study:
    """Estimators and tests of SKCE on the paper's synthetic Gaussians."""
    cells = [
        {
            "model": model,
            "d": d,
            "n": n,
            "data_sets": config.data_sets,
            "draws": config.n_draws if n <= 500 else config.n_draws_large,
        }
        for n in config.sizes
        for d in config.dimensions
        for model in ("calibrated", "uncalibrated")
    ]

    def measure(cell, key):
        model, n, d, sets = (cell[name] for name in ("model", "n", "d", "data_sets"))
        # locations are drawn once for a model and dimension, as in the paper's experiment
        place = jax.random.fold_in(jax.random.key(config.seed), zlib.crc32(f"{model},{d}".encode()))
        keys = (jax.random.split(k, sets) for k in jax.random.split(key))
        estimates, p = program(n, d, cell["draws"], config.n_locations)(
            *keys,
            jnp.broadcast_to(place, (sets,)),
            jnp.full(sets, model == "calibrated"),
        )
        return summary(estimates, p, TRUTH[model, d])

    return runner.Study(cells, measured(), measure, config.seed, paired=("draws",))


def measured() -> tuple[str, ...]:
    of_estimates = [
        f"{name}_{what}"
        for name in ESTIMATORS
        for what in ("mean", "error", "error_se", "variance", "variance_se")
    ]
    return (
        *of_estimates,
        *(f"{name}_rejected" for name in TESTS),
        "cme_singular",
        "not_a_number",
    )


def summary(estimates, p, truth: float) -> dict[str, float]:
    """Mean, mean absolute error and variance, with standard errors; rejections at 5 %."""
    by_name = {}
    for name, values in estimates.items():
        error, about = jnp.abs(values - truth), values - jnp.mean(values)
        sets = values.size
        variance = jnp.var(values, ddof=1)
        spread = jnp.mean(about**4) - variance**2
        by_name[f"{name}_mean"] = jnp.mean(values)
        by_name[f"{name}_error"] = jnp.mean(error)
        by_name[f"{name}_error_se"] = jnp.std(error, ddof=1) / sets**0.5
        by_name[f"{name}_variance"] = variance
        by_name[f"{name}_variance_se"] = jnp.sqrt(jnp.maximum(spread, 0) / sets)
    for name in TESTS:  # a test that refuses so few observations has no count
        by_name[f"{name}_rejected"] = int(jnp.sum(p[name] <= 0.05)) if name in p else float("nan")
    no_verdict = {name: int(jnp.sum(jnp.isnan(values))) for name, values in p.items()}
    by_name["cme_singular"] = max(no_verdict.pop(name, 0) for name in ("cme", "cme_f"))
    by_name["not_a_number"] = sum(no_verdict.values())
    return by_name


def main(arguments: Sequence[str] | None = None) -> Path:
    jax.config.update("jax_enable_x64", True)  # h is a small difference of numbers near 1
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
