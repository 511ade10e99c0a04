"""Does SKCE keep its level when its expectations come from MCMC? Figure 2 of the KCCSD paper."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from jaxcal import Draws, Unnormalized, kccsd_test
from jaxcal.candidates import Chains, exchangeability_test
from jaxcal.divergences import Vectors, Wasserstein
from jaxcal.mcmc import HMC, MALA, NUTS, mcmc_draws
from jaxcal.skce import skce_test

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
CHAINS = 2  # one draw from each stands for the prediction
BATCH = 50  # data sets whose chains walk side by side
ADAPTED = {"MALA": MALA(), "HMC": HMC(), "NUTS": NUTS(depth=4, target=0.8)}


@dataclass(frozen=True)
class Config:
    data_sets: int = 200
    n: int = 200
    models: tuple[str, ...] = ("LGM", "HGM", "QGM", "MGM")
    fixed: tuple[float, ...] = (0.1, 0.3)
    steps: tuple[int, ...] = (10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 1280)
    adapted: tuple[str, ...] = tuple(ADAPTED)
    adapted_steps: tuple[int, ...] = (2, 5, 10, 20, 40, 160)
    from_targets: tuple[str, ...] = ("LGM", "HGM", "QGM")  # the models of the paper's figure
    exact_steps: tuple[int, ...] = (1, 5)  # back from the target, and forward again
    seed: int = 20230721


QUICK = Config(20, 30, ("QGM",), (0.3,), (10, 40), ("MALA",), (10,), ("QGM",), (2,))


# Calibrated models N(mean, sd^2 I): key, n -> mean [n, d], sd [n, 1]


def mgm(key: jax.Array, n: int):
    """N(x, I) in five dimensions."""
    return jax.random.normal(key, (n, 5)), jnp.ones((n, 1))


def lgm(key: jax.Array, n: int):
    """N(x_1 + 2 x_2 + .. + 5 x_5, 1)."""
    x = jax.random.normal(key, (n, 5))
    return jnp.sum(x * jnp.arange(1, 6), axis=1, keepdims=True), jnp.ones((n, 1))


def hgm(key: jax.Array, n: int):
    """N(sum x, v(x)) with 1 <= v <= 11."""
    x = jax.random.normal(key, (n, 3))
    v = 1 + 10 * jnp.exp(-jnp.sum((x - 2 / 3) ** 2, axis=1, keepdims=True) / (2 * 0.8**2))
    return jnp.sum(x, axis=1, keepdims=True), jnp.sqrt(v)


def qgm(key: jax.Array, n: int):
    """N(.1 x^2 + x + 1, 1) with x between -2 and 2."""
    x = jax.random.uniform(key, (n, 1), minval=-2, maxval=2)
    return 0.1 * x**2 + x + 1, jnp.ones((n, 1))


MODELS = {f.__name__.upper(): f for f in (mgm, lgm, hgm, qgm)}


def log_density(params: Any, y: jax.Array) -> jax.Array:
    """What the sampler sees: a normal density without its constant."""
    mean, sd = params
    return -jnp.sum(((y - mean) / sd) ** 2) / 2


class Data(NamedTuple):
    """All data sets of a model: mean and targets [sets, n, d], sd [sets, n, 1]."""

    mean: jax.Array
    sd: jax.Array
    targets: jax.Array

    @classmethod
    def of(cls, key: jax.Array, model: str, sets: int, n: int) -> "Data":
        def one(key: jax.Array) -> "Data":
            model_key, noise_key = jax.random.split(key)
            mean, sd = MODELS[model](model_key, n)
            return cls(mean, sd, mean + sd * jax.random.normal(noise_key, mean.shape))

        return jax.vmap(one)(jax.random.split(key, sets))


# The tests, each over many data sets


@runner.spread
def from_draws(key, mean, sd, targets, draws):
    """p-values of SKCE from draws [n, 2, d], and of a calibration test of the first draw itself.

    The distance is the exact 2-Wasserstein distance, so that draws serve the expectations alone.
    Each draw is given twice, which leaves their mean what it is.
    """
    skce_key, check_key = jax.random.split(key)
    exact = Vectors(jnp.concatenate([mean, sd * mean.shape[1] ** 0.5], axis=1))
    results = Draws(jnp.concatenate([draws, draws], axis=1))
    result = skce_test(skce_key, results, targets, divergence=exact, standardize=False)
    return result.p_value, stein(check_key, mean, sd, draws[:, 0])


def stein(key, mean, sd, targets):
    """The p-value of KCCSD."""
    predictions = dist.Normal(mean, sd).to_event(1)
    options = {"divergence": Wasserstein(), "standardize": False}
    return kccsd_test(key, predictions, targets, **options).p_value


@runner.spread
def without_draws(key, mean, sd, targets):
    """p-values of KCCSD and of SKCE in closed form."""
    predictions = dist.Normal(mean, sd).to_event(1)
    options = {"divergence": Wasserstein(), "standardize": False}
    exact = skce_test(key, predictions, targets, **options)
    return stein(key, mean, sd, targets), exact.p_value


@lru_cache
def exact(steps: int):
    """p-values of the exchangeability test, whose chains walk back from the target and forward."""

    def one(key, mean, sd, targets):
        predictions = Unnormalized(log_density, (mean, sd))
        proposal = Chains(n_steps=steps)
        return exchangeability_test(key, predictions, targets, proposal=proposal).p_value

    return runner.spread(one)


def draw(
    key: jax.Array, data: Data, sampler: Any, start: str, *, kept: int, **options: int
) -> jax.Array:
    """``kept`` times one draw from each chain of each prediction: [sets, n, kept, CHAINS, d].

    ``start``: "target", where chains begin with a draw of a calibrated prediction, or "normal".
    """
    sets, n, d = data.mean.shape
    size = min(BATCH, sets)
    parts = []
    for k, begin in enumerate(range(0, sets, size)):
        part = slice(begin, begin + size)
        params = (data.mean[part].reshape(-1, d), data.sd[part].reshape(-1, 1))
        targets = data.targets[part].reshape(-1, d)
        begin_at = jnp.broadcast_to(targets, (CHAINS, *targets.shape))
        result = mcmc_draws(
            jax.random.fold_in(key, k),
            Unnormalized(log_density, params),
            sampler=sampler,
            n_samples=kept * CHAINS,
            n_chains=CHAINS,
            event_shape=d,
            start=begin_at if start == "target" else None,
            **options,
        )
        parts.append(result.samples.reshape(-1, n, kept, CHAINS, d))
    return jnp.concatenate(parts)


def make(config: Config) -> runner.Study:
    """False rejection rates of SKCE at level .05 over the number of MCMC steps, and of KCCSD."""
    unit = min(config.steps)  # all numbers of steps are multiples of the smallest
    lines = [
        ("SKCE from draws", "MALA", str(step), start, n)
        for start in ("normal", "target")
        for step in config.fixed
        for n in config.steps
    ]
    lines += [
        ("SKCE from draws", sampler, "adapted", "normal", n)
        for sampler in config.adapted
        for n in config.adapted_steps
    ]
    lines += [("exchangeability", "MALA", "random", "target", n) for n in config.exact_steps]
    lines += [("SKCE", "none", "none", "none", 0), ("KCCSD", "none", "none", "none", 0)]
    columns = ("model", "test", "sampler", "step", "start", "steps", "n", "data_sets")
    cells = [
        dict(zip(columns, (model, *line, config.n, config.data_sets), strict=True))
        for model in config.models
        for line in lines
        if line[3] != "target" or model in config.from_targets
    ]

    @lru_cache(maxsize=1)  # the cells of one model see the same data
    def data(model):
        return Data.of(jax.random.fold_in(key_of(model), 0), model, config.data_sets, config.n)

    @lru_cache(maxsize=1)  # a chain of constant step passes every number of steps on its way
    def path(model, step, start):
        kept = max(config.steps) // unit
        sampler = MALA(float(step), adapt=False)
        chains = draw(fold(model, 1), data(model), sampler, start, kept=kept, n_warmup=0, thin=unit)
        wanted = jnp.asarray([n // unit - 1 for n in config.steps])
        return chains[:, :, wanted]

    def key_of(model):
        return study.key(next(cell for cell in cells if cell["model"] == model))

    def fold(model, number):
        return jax.random.fold_in(key_of(model), number)

    @lru_cache(maxsize=1)
    def p_without_draws(model):
        keys = jax.random.split(fold(model, 2), config.data_sets)
        return without_draws(keys, *data(model))

    def measure(cell, key):
        model, test, sampler, step, start, n_steps = list(cell.values())[:6]
        if test == "exchangeability":
            keys = jax.random.split(fold(model, 3), config.data_sets)
            return count(exact(n_steps)(keys, *data(model)), None)
        if test != "SKCE from draws":
            p = p_without_draws(model)[test == "SKCE"]
            return count(p, None)
        if step == "adapted":
            draws = draw(
                fold(model, 1),
                data(model),
                ADAPTED[sampler],
                start,
                kept=1,
                n_warmup=n_steps - 1,
                thin=1,
            )[:, :, 0]
        else:
            draws = path(model, step, start)[:, :, config.steps.index(n_steps)]
        keys = jax.random.split(fold(model, 2), config.data_sets)
        return count(*from_draws(keys, *data(model), draws))

    def count(p, checked):
        return {
            "rejected_05": int(jnp.sum(p <= 0.05)),
            "rejected_01": int(jnp.sum(p <= 0.01)),
            "check_05": float("nan") if checked is None else int(jnp.sum(checked <= 0.05)),
            "not_a_number": int(jnp.sum(jnp.isnan(p))),
        }

    study = runner.Study(
        cells,
        ("rejected_05", "rejected_01", "check_05", "not_a_number"),
        measure,
        config.seed,
        paired=("test", "sampler", "step", "start", "steps"),
    )
    return study


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
