"""Right predictions, and what data hide: order of draws, chains, dependent rows, rounding, ties."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
import scipy.stats

import jaxcal
from jaxcal import Draws, measures, sbi
from jaxcal.coverage import coverage

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent / "hidden"
Rng = np.random.Generator
NOISE: dict[str, Callable[[Rng, tuple[int, ...]], np.ndarray]] = {  # of deviation 1
    "normal": lambda rng, shape: rng.normal(size=shape),
    "skewed": lambda rng, shape: rng.gamma(2.0, size=shape) / 2**0.5 - 2**0.5,
    "student": lambda rng, shape: rng.standard_t(5, size=shape) * 0.6**0.5,
}


@dataclass(frozen=True)
class Config:
    data_sets: int = 100
    n: int = 200
    m: int = 60  # draws of each prediction
    of_draws: tuple[str, ...] = ("independent", "sorted", "chain 0.6", "chain 0.9")
    of_rows: tuple[str, ...] = ("rows 0.0", "rows 0.5", "rows 0.8", "rows sorted")
    widths: tuple[str, ...] = ("width 0.01", "width 0.003", "width 0.001", "width 0.0003")
    noises: tuple[str, ...] = ("normal", "skewed", "student")
    ties: tuple[str, ...] = ("counts", "draws of counts", "plateau")
    seed: int = 20261126


QUICK = Config(2, 40, 8, ("sorted",), ("rows 0.8",), ("width 0.001",), ("normal",), ("plateau",))


def series(rng: Rng, memory: float, shape: tuple[int, int]) -> np.ndarray:
    """Normal numbers of correlation ``memory`` along the second axis."""
    steps = rng.normal(size=shape)
    for t in range(1, shape[1]):
        steps[:, t] = memory * steps[:, t - 1] + (1 - memory**2) ** 0.5 * steps[:, t]
    return steps


def among_draws(test: str, rng: Rng, key: int, data: str, noise: str, config: Config) -> Any:
    centers = rng.normal(size=(config.n, 1))
    shape = (config.n, config.m)
    if data.startswith("chain"):
        draws = series(rng, float(data.split()[1]), shape)
    else:
        draws = NOISE[noise](rng, shape)
    draws = centers + (np.sort(draws, axis=1) if data == "sorted" else draws)
    targets = centers[:, 0] + NOISE[noise](rng, (config.n,))
    if test == "check_draws":
        return sbi.check_draws(key, draws, targets)
    return getattr(jaxcal, test)(key, Draws(draws), targets)


def among_rows(test: str, rng: Rng, key: int, data: str, config: Config) -> Any:
    centers = rng.normal(size=config.n)
    memory = 0.0 if data == "rows sorted" else float(data.split()[1])
    targets = centers + series(rng, memory, (1, config.n))[0]
    if data == "rows sorted":
        order = np.argsort(targets)
        centers, targets = centers[order], targets[order]
    predictions = dist.Normal(centers, np.ones(config.n))
    match test:
        case "quantile_calibration":
            return measures.quantile_calibration(predictions, targets)
        case "distance_from_calibration":
            chances = scipy.stats.norm.cdf(centers)
            below = scipy.stats.norm.cdf(targets - centers) < chances
            return jaxcal.distance_from_calibration(key, chances, below.astype(int))
        case "compare":
            wider = dist.Normal(centers, np.full(config.n, 1.5))
            return jaxcal.compare(key, {"right": predictions, "wider": wider}, targets)
    return getattr(jaxcal, test)(key, predictions, targets)


def among_ties(test: str, rng: Rng, data: str, config: Config) -> Any:
    rate, shape = rng.gamma(2.0, 0.5, config.n), (1 + config.m, config.n)
    law, (targets, *draws) = {
        "plateau": lambda: (dist.Uniform(rate, rate + 1), rng.uniform(rate, rate + 1, shape)),
        "counts": lambda: (dist.Poisson(rate), 1.0 * rng.poisson(rate, shape)),
        "draws of counts": lambda: (dist.Poisson(rate), 1.0 * rng.poisson(rate, shape)),
    }[data]()
    among = np.stack(draws, axis=1)
    if test == "coverage":
        return coverage(law, targets, among)
    predictions = Draws(among) if data == "draws of counts" else law
    return measures.quantile_calibration(predictions, targets)


def beside_rounding(rng: Rng, key: int, data: str, noise: str, config: Config) -> Any:
    width = float(data.split()[1])
    centers = rng.normal(size=config.n).astype(np.float32)
    targets = centers + width * NOISE[noise](rng, (config.n,))
    if noise == "normal":
        predictions: Any = dist.Normal(centers, np.full(config.n, width))
    else:
        predictions = Draws(centers[:, None] + width * NOISE[noise](rng, (config.n, config.m)))
    return jaxcal.skce_test(key, predictions, targets)


def study(config: Config) -> runner.Study:
    """Data sets that are rejected, in which something is said, and that have no verdict."""

    def measure(cell: runner.Cell, key: jax.Array) -> dict[str, Any]:
        test, data, noise = cell["test"], cell["data"], cell["noise"]
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        counts = dict.fromkeys(("rejected", "said", "no_verdict"), 0)
        for i in range(config.data_sets):
            if data in config.of_rows:
                result = among_rows(test, rng, i, data, config)
            elif data in config.ties:
                result = among_ties(test, rng, data, config)
            elif data in config.widths:
                result = beside_rounding(rng, i, data, noise, config)
            else:
                result = among_draws(test, rng, i, data, noise, config)
            silent = getattr(result, "verdict", "") == "cannot tell"
            p_value = {"coverage": "p_uniform", "compare": "p_calibrated"}.get(test, "p_value")
            rejected = np.ravel(getattr(result, p_value))[0] <= 0.05 and not silent
            codes = ("correlated-draws", "dependent-rows", "small-residuals")
            said = any(code in str(result.warnings()) for code in codes)
            counts["rejected"] += int(rejected)
            counts["said"] += said and (rejected or data not in config.of_rows)
            counts["no_verdict"] += silent
        return counts | {"data_sets": config.data_sets}

    def cells(tests: Sequence[str], kinds: Sequence[str], noises: Sequence[str]) -> list[Any]:
        return [
            {"test": test, "data": data, "noise": noise}
            for test in tests
            for data in kinds
            for noise in noises
            if noise == "normal" or not data.startswith("chain")
        ]

    listed = cells(("skce_test", "ucme_test", "check_draws"), config.of_draws, config.noises)
    listed += cells(("kccsd_test", "calibration_test", "skce_test"), config.of_rows, ("normal",))
    listed += cells(("skce_test",), config.widths, config.noises)
    others = ("quantile_calibration", "distance_from_calibration", "compare")
    listed += cells(others, config.of_rows, ("normal",))
    listed += cells(("quantile_calibration", "coverage"), config.ties, ("normal",))
    measured = ("rejected", "said", "no_verdict", "data_sets")
    return runner.Study(listed, measured, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(study, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
