"""Level and power of the p-values that libraries offer for posteriors, on the same data sets."""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxcal
from jaxcal import sbi
from jaxcal.coverage import coverage

sys.path.insert(0, str(Path(__file__).parents[1] / "power"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import families
import field_statistics as statistics
import flow
import network
import runner
import varying

FOLDER = Path(__file__).parent
M = 99  # draws of each posterior
BATCH, CHUNK = 10, 20  # data sets at once, and of one call: any number of them is one program
FAULTS = ("shift of one", "too narrow", "too wide", "widths that cancel")  # in every law
TRENDS = ("shrinkage of all", "spread trend in mean")
LAWS = {  # the family of `experiments/power`, and its faults
    "Gaussian": ("normal 2", (*FAULTS, "correlation left out", "tails", *TRENDS)),
    "two modes": ("modes", (*FAULTS, "mode weights", "shifts that cancel", *TRENDS)),
    "skewed": ("skewed 2", (*FAULTS, "correlation left out", "one too wide", *TRENDS)),
    "network": ("few simulations", ("trained",)),
    "flow": ("few simulations", ("trained",)),  # the same simulator
}
LOCAL = ("shift of one", "too narrow", "correlation left out", "shrinkage of all")  # for LC2ST
DENSITIES = {  # from log densities up to their constants
    "calibration_test": lambda key, data: jaxcal.calibration_test(
        key, data.predictions, data.targets
    ),
    "calibration_test, inputs": lambda key, data: jaxcal.calibration_test(
        key, data.predictions, data.targets, inputs=data.inputs
    ),
    "kccsd_test": lambda key, data: jaxcal.kccsd_test(key, data.predictions, data.targets),
}
DRAWS = (  # from 99 exact draws of each posterior
    "check_draws",
    "coverage",
    "sbi check_sbc",
    "sbi check_sbc of log_prob",
    "sbi check_tarp",
    "BayesFlow log-gamma",
    "BayesFlow TARP",
    "ArviZ POT-C",
    "ArviZ PRIT-C",
    "ArviZ PRIT-C of counts",
    "numpyro vsbc",
)
COUNTED = DRAWS[1:]  # from counts of draws
TRAINED = ("BayesFlow conformal", "sbi LC2ST_NF", "sbi LC2ST")  # classifiers


@dataclass(frozen=True)
class Config:
    """``blocks``, in the order in which they are measured: law, n, data sets of right posteriors
    and of each fault, tests, and faults if not all of the law."""

    blocks: tuple[tuple[Any, ...], ...] = (
        ("Gaussian", 200, 1000, 200, (*DENSITIES, *DRAWS)),
        ("two modes", 200, 1000, 200, (*DENSITIES, *DRAWS)),
        ("skewed", 200, 300, 60, (*DENSITIES, *DRAWS)),
        ("Gaussian", 200, 40, 10, ("sbi LC2ST",), LOCAL),
        ("Gaussian", 200, 100, 20, ("BayesFlow conformal", "sbi LC2ST_NF")),
        ("network", 200, 200, 100, DRAWS),
        *(("network", 200, 200, 100, (test,)) for test in DENSITIES),
        ("flow", 200, 1000, 200, (*DENSITIES, *DRAWS)),
        ("network", 200, 100, 100, ("sbi LC2ST",)),
        ("flow", 200, 100, 100, TRAINED),
        *((law, 50, 1000, 200, (*DENSITIES, *DRAWS)) for law in LAWS),
        *((law, 1000, 200, 60, (*DENSITIES, *DRAWS)) for law in LAWS),
    )
    seed: int = 20261125


QUICK = Config((("Gaussian", 20, 2, 2, ("kccsd_test", *DRAWS), ("too wide",)),))


def data_of(law: str, dimension: int, n: int) -> Any:
    """The function (key, numbers of the family, fault) -> data set."""
    family = LAWS[law][0]
    special = family if family in network.STUDIED else ""

    def make(key: jax.Array, numbers: Any, fault: varying.Fault) -> varying.DataSet:
        if law == "flow":
            return families.posteriors(flow.posterior(), key, fault, n, M)
        return varying.data_set(special, varying.Family(*numbers, dimension, ()), key, fault, n, M)

    return make


def shared(law: str) -> str:
    """A law whose program serves for it too."""
    return law if law in ("network", "flow") else "Gaussian"


@lru_cache
def program(test: str, law: str, n: int) -> Any:
    """One program for all faults and laws that are not trained; p-values, or counts of draws."""
    make = data_of(law, 2, n)

    def one(key: jax.Array, numbers: Any, fault: varying.Fault) -> Any:
        data_key, test_key = jax.random.split(key)
        data = make(data_key, numbers, fault)
        if test in DENSITIES:
            return DENSITIES[test](test_key, data).p_value
        if test in ("draws", "check_draws"):
            counts = counted(test_key, data)
            of_ours = counts.pop("check_draws")
            return of_ours if test == "check_draws" else counts  # the other is not computed
        return data.targets, data.inputs, data.draws, noise(law, data)

    def every(keys: jax.Array, numbers: Any, fault: varying.Fault) -> Any:
        return jax.lax.map(lambda key: one(key, numbers, fault), keys, batch_size=BATCH)

    return jax.jit(every, compiler_options=runner.FASTER_COMPILATION)


def noise(law: str, data: varying.DataSet) -> jax.Array:
    """Parameters and first draws [2, n, d] where the posterior is standard normal; a mixture
    density network has no such map, and its are zeros."""
    members = jnp.stack([data.targets, data.draws[:, 0]])
    if law == "network":
        return jnp.zeros_like(members)
    if law == "flow":
        over_pairs = jax.vmap(lambda x, theta: flow.trained().noise(x, theta)[0])
        return jax.vmap(over_pairs, in_axes=(None, 0))(data.inputs, members)
    center, inverse = data.predictions.params[:2]
    return jnp.einsum("nij,knj->kni", inverse, members - center)


def counted(key: jax.Array, data: varying.DataSet) -> dict[str, jax.Array]:
    """p-values of jaxcal from draws, and what the other libraries count."""
    check_key, reference_key, shift_key = jax.random.split(key, 3)
    thetas, draws = data.targets, data.draws
    at_targets, at_draws = data.logs(thetas[:, None])[:, 0], data.logs(draws)
    low, high = jnp.min(thetas, axis=0), jnp.max(thetas, axis=0)
    uniform = low + (high - low) * jax.random.uniform(reference_key, thetas.shape)
    shift = jax.random.randint(shift_key, (), 1, len(thetas))

    def nearer(references: jax.Array, scale: jax.Array) -> jax.Array:
        away = jnp.linalg.norm((thetas - references) / scale, axis=-1)
        of_draws = jnp.linalg.norm((draws - references[:, None]) / scale, axis=-1)
        return jnp.sum(of_draws < away[:, None], axis=1)

    return {
        "check_draws": sbi.check_draws(check_key, draws, thetas, data.inputs).p_value,
        "coverage": coverage(data.predictions, thetas, draws).p_uniform,
        "parameters": jnp.sum(draws < thetas[:, None], axis=1),
        "density": jnp.sum(at_draws < at_targets[:, None], axis=1),
        "uniform": nearer(uniform, high - low),
        "rolled": nearer(jnp.roll(thetas, shift, axis=0), jnp.std(thetas, axis=0)),
    }


def of_draws(test: str, counts: dict[str, np.ndarray], keys: jax.Array) -> list[float]:
    """p-values of the tests by draws, from what `counted` returns for each data set."""
    if test == "coverage":
        return list(counts[test])
    rng = np.random.default_rng(int(jax.random.key_data(keys[0])[-1]))
    p_values = []
    for k in range(len(keys)):
        ranks = counts["parameters"][k]
        if test == "sbi check_sbc":
            p = statistics.sbi_ks(ranks, M)
        elif test == "sbi check_sbc of log_prob":
            p = statistics.sbi_ks(counts["density"][k][:, None], M)
        elif test == "sbi check_tarp":
            p = statistics.tarp_curves(counts["uniform"][k] / M, max(len(ranks) // 10, 1))
        elif test == "BayesFlow TARP":
            p = statistics.tarp_curves(counts["rolled"][k] / M, 20)
        elif test == "BayesFlow log-gamma":
            p = statistics.log_gamma(ranks, M)
        elif test == "ArviZ POT-C":  # for continuous values: the place between two draws is drawn
            p = statistics.pot_c((ranks + rng.random(ranks.shape)) / (M + 1))
        elif test == "ArviZ PRIT-C":
            p = statistics.prit_c((ranks + rng.random(ranks.shape)) / (M + 1))
        elif test == "ArviZ PRIT-C of counts":  # shares 0 and 1 among them
            p = statistics.prit_c(ranks / M)
        else:
            p = statistics.vsbc(ranks, M)
        p_values.append(p)
    return p_values


def p_values(cell: runner.Cell, key: jax.Array) -> np.ndarray:
    """p-values of one test on all data sets of a cell."""
    test, law = cell["test"], cell["law"]
    keys = jax.random.split(key, cell["data_sets"])
    kind = "data" if test in TRAINED else "draws" if test in COUNTED else test
    family = varying.FAMILIES[LAWS[law][0]]
    numbers = [jnp.asarray(float(number)) for number in family[:6]]
    fault = jax.tree.map(jnp.asarray, varying.FAULTS[cell["fault"]])
    result = measured(kind, shared(law), cell["n"], keys, numbers, fault)
    if test in (*DENSITIES, "check_draws"):
        return np.asarray(result)
    if test in DRAWS:
        return np.asarray(of_draws(test, result, keys))
    return np.asarray(
        [trained(test, k, *parts) for k, parts in enumerate(zip(*result, strict=True))]
    )


last: dict[Any, Any] = {}  # tests by draws share their counts


def measured(kind: str, law: str, n: int, keys: jax.Array, numbers: Any, fault: Any) -> Any:
    name = kind, law, n, str(jax.random.key_data(keys)), str(numbers), str(fault)
    if name not in last:
        last.clear()
        walk = program(kind, law, n)
        parts = [walk(keys[i : i + CHUNK], numbers, fault) for i in range(0, len(keys), CHUNK)]
        last[name] = jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
    return last[name]


def trained(
    test: str, seed: int, thetas: np.ndarray, xs: np.ndarray, draws: np.ndarray, noise: np.ndarray
) -> float:
    """``noise``: of the parameters and the first draws."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few samples, and of networks that stop early
        if test == "sbi LC2ST_NF":
            return statistics.lc2st_nf(seed, noise, xs)
        if test == "sbi LC2ST":
            return statistics.lc2st(seed, thetas, xs, draws)
        pairs, of_draws = (np.concatenate([xs, part], axis=1) for part in (thetas, draws[:, 0]))
        return statistics.conformal(seed, pairs, of_draws)


def cells_of(config: Config) -> list[dict[str, Any]]:
    """Level and power of each block and law after each other."""
    return [
        {"law": law, "fault": fault, "n": n, "data_sets": sets, "test": test}
        for law, n, level, power, tests, *chosen in config.blocks
        for fault in ("correct", *(chosen[0] if chosen else LAWS[law][1]))
        for sets in [level if fault == "correct" else power]
        for test in tests
    ]


def make(config: Config) -> runner.Study:
    """Rejections at .05 and .01 of each test, on the same data sets."""

    def measure(cell: runner.Cell, key: jax.Array) -> dict[str, int]:
        return runner.rejections(jnp.asarray(p_values(cell, key)))

    paired = ("test", "data_sets")
    return runner.Study(cells_of(config), runner.REJECTIONS, measure, config.seed, paired)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
