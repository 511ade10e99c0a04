"""Does the interval of `leave_one_out` hold the canonical error? Populations of vectors."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.special import softmax

from jaxcal.squared_ce import leave_one_out
from jaxcal.squared_ce.reductions import Reduced

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent / "canonical"
NODES = 100_000
Rng = np.random.Generator
Population = Callable[[Rng, int], tuple[np.ndarray, np.ndarray]]  # predictions, class frequencies


def logs_of_dirichlet(rng: Rng, n: int, m: int, a: float) -> np.ndarray:
    """Logarithms of draws from Dir(a, .., a), which are often too small for a float."""
    gammas = np.log(rng.gamma(a + 1, size=(n, m))) + np.log(rng.random((n, m))) / a
    return gammas - np.logaddexp.reduce(gammas, axis=1)[:, None]


def calibrated(m: int, a: float) -> Population:
    def draw(rng, n):
        p = np.exp(logs_of_dirichlet(rng, n, m, a))
        return p, p

    return draw


def tempered(m: int, a: float, power: float) -> Population:
    """Predictions are the frequencies to a power, normalized."""

    def draw(rng, n):
        logs = logs_of_dirichlet(rng, n, m, a)
        return softmax(power * logs, axis=1), np.exp(logs)

    return draw


def logits(m: int, power: float, bias: float = 0.0) -> Population:
    """Normal logits, multiplied and with biases of classes."""

    def draw(rng, n):
        z = rng.normal(size=(n, m))
        return softmax(power * z + bias * np.linspace(-1, 1, m), axis=1), softmax(z, axis=1)

    return draw


def changed(m: int, a: float, change: Callable[[np.ndarray], np.ndarray]) -> Population:
    """Predictions from Dir(a, .., a), frequencies a function of them."""

    def draw(rng, n):
        p = np.exp(logs_of_dirichlet(rng, n, m, a))
        return p, change(p)

    return draw


def between_two(p: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Part of the probability goes from class 1 to class 0."""
    moved = size * np.minimum(p[:, 0], p[:, 1])
    return p + np.stack([moved, -moved, *np.zeros((p.shape[1] - 2, len(p)))], axis=1)


def flattened(p: np.ndarray) -> np.ndarray:
    return np.where(p.max(axis=1, keepdims=True) > 0.7, 0.6 * p + 0.4 / p.shape[1], p)


def of_logs(p: np.ndarray) -> np.ndarray:
    logs = np.log(p)
    return softmax(logs + 0.5 * np.roll(logs, 1, axis=1), axis=1)


def confused_and_tempered(p: np.ndarray) -> np.ndarray:
    sharper = p**1.5 / np.sum(p**1.5, axis=1, keepdims=True)
    return 0.8 * sharper + 0.2 * sharper[:, ::-1]


def swapped(p: np.ndarray) -> np.ndarray:
    """The two most probable classes change places in a quarter of all cases."""
    order, other = np.argsort(p, axis=1), p.copy()
    first, second = order[:, -1:], order[:, -2:-1]
    np.put_along_axis(other, first, np.take_along_axis(p, second, 1), 1)
    np.put_along_axis(other, second, np.take_along_axis(p, first, 1), 1)
    return 0.75 * p + 0.25 * other


def waves_of_a_ratio(p: np.ndarray) -> np.ndarray:
    return between_two(p, 0.7 * np.sin(4 * np.pi * p[:, 0] / (p[:, 0] + p[:, 1])))


def merged(p: np.ndarray) -> np.ndarray:
    """Two classes cannot be told apart."""
    mean = p[:, :2].mean(axis=1, keepdims=True)
    return np.hstack([mean, mean, p[:, 2:]])


SEEN = {
    "calibrated, 3": calibrated(3, 1.0),
    "calibrated, 5": calibrated(5, 0.3),
    "calibrated, 10": calibrated(10, 0.5),
    "of the paper, 5": tempered(5, 0.04, 0.3),
    "too sure, 3": logits(3, 2.0),
    "too unsure, 3": logits(3, 0.5),
    "too sure, 10": logits(10, 1.5),
    "biased, 5": logits(5, 1.0, 0.5),
    "confused, 5": changed(5, 1.0, lambda p: 0.7 * p + 0.3 * np.roll(p, 1, axis=1)),
    "by another class, 3": changed(
        3, 2.0, lambda p: between_two(p, 0.4 * np.tanh(8 * (p[:, 1] - p[:, 2])))
    ),
    "tempered, 8": tempered(8, 0.2, 0.6),
    "sure ones flattened, 4": changed(4, 0.5, flattened),
    "mixed logarithms, 3": changed(3, 1.0, of_logs),
    "squares, 2": changed(2, 1.0, lambda p: np.stack([p[:, 0] ** 2, 1 - p[:, 0] ** 2], axis=1)),
    "waves, 4": changed(4, 1.0, lambda p: between_two(p, 0.9 * np.sin(6 * np.pi * p[:, 2]))),
}
UNSEEN = {  # not looked at before the functions were chosen
    "confused and tempered, 6": changed(6, 0.4, confused_and_tempered),
    "largest two swapped, 4": changed(4, 0.7, swapped),
    "waves of a ratio, 3": changed(3, 1.0, waves_of_a_ratio),
    "classes merged, 5": changed(5, 0.5, merged),
}
POPULATIONS = {**SEEN, **UNSEEN}


@dataclass(frozen=True)
class Config:
    data_sets: int = 300
    sizes: tuple[int, ...] = (300,)
    populations: tuple[str, ...] = tuple(POPULATIONS)
    seed: int = 20261124


QUICK = Config(data_sets=2, sizes=(60,), populations=("confused, 5",))


def study(config: Config) -> runner.Study:
    """Shares of data sets in which the 95 % interval holds the canonical error."""

    def measure(cell: runner.Cell, key: jax.Array) -> dict[str, Any]:
        population, n = POPULATIONS[cell["population"]], cell["n"]
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        p, q = population(rng, NODES)
        truth, rows = float(np.sqrt(np.mean(np.sum((p - q) ** 2, axis=1)))), []
        for _ in range(config.data_sets):
            p, q = population(rng, n)
            y = np.minimum(np.sum(q.cumsum(axis=1) < rng.random((n, 1)), axis=1), p.shape[1] - 1)
            result = leave_one_out(Reduced(p, np.eye(p.shape[1])[y], "canonical"))
            rows.append((*map(float, result.interval[:2]), result.error))
        low, high, estimate = np.array(rows).T
        above, below = low > truth + 1e-9, high < truth - 1e-9
        return {
            "error": truth,
            "covered": np.mean(~above & ~below),
            "above": np.mean(above),
            "below": np.mean(below),
            "low": np.mean(low),
            "high": np.mean(high),
            "rmse": np.sqrt(np.mean((estimate - truth) ** 2)),
            "data_sets": config.data_sets,
        }

    cells = [{"population": name, "n": n} for n, name in product(config.sizes, config.populations)]
    measured = ("error", "covered", "above", "below", "low", "high", "rmse", "data_sets")
    return runner.Study(cells, measured, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(study, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
