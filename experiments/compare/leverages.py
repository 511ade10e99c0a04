"""How far is a comparison in one pass from that in memory? It replaces leverages by their mean."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

import jaxcal
from jaxcal.streaming import StreamedTest

FOLDER = Path(__file__).parent / "leverages"
POWERS = (1, 2, 0.6)  # of the probabilities: calibrated, too sure, not sure enough
FAR = 6  # predictions far from all others


@dataclass(frozen=True)
class Config:
    n: tuple[int, ...] = (1024, 4096, 16384, 65536)
    classes: tuple[int, ...] = (2, 10, 30)
    data_sets: int = 5
    seed: int = 20261125


QUICK = Config((1024,), (2,), 1)


def predicted(random: np.random.Generator, law: str, classes: int, n: int) -> np.ndarray:
    """[n, m] Probabilities: even or sparse Dirichlet, or nearly equal but for a few sure ones."""
    if law == "few far":
        q = random.dirichlet(np.full(classes, 200.0), n)
        q[:FAR] = 0.98 * np.eye(classes)[np.arange(FAR) % classes] + 0.02 / classes
        return q
    q = random.dirichlet(np.full(classes, 1.0 if law == "even" else 0.05), n) + 1e-12
    return q / q.sum(axis=1, keepdims=True)


def gap(random: np.random.Generator, key: int, law: str, classes: int, n: int) -> float:
    """Largest difference of three models' values, in standard errors of those in memory."""
    q = predicted(random, law, classes, n)
    labels = (random.random(n)[:, None] > np.cumsum(q, axis=1)[:, :-1]).sum(axis=1)
    models = {str(p): q**p / np.sum(q**p, axis=1, keepdims=True) for p in POWERS}
    in_memory = jaxcal.compare(key, models, labels, n_draws=199)
    test = StreamedTest.comparison(key, models, labels, n_draws=199)
    streamed = test.result(test.update(test.empty(), models, labels))
    error = (np.asarray(in_memory.high) - np.asarray(in_memory.low)) / 4
    return float(np.max(np.abs(streamed.corrected - in_memory.corrected) / error))


def make(config: Config) -> runner.Study:
    """The largest gap of all data sets of a cell."""
    cells = [
        {"law": law, "classes": classes, "n": n, "data_sets": config.data_sets}
        for law in ("even", "sparse", "few far")
        for classes in config.classes
        for n in config.n
    ]

    def measure(cell: runner.Cell, key: jax.Array) -> dict[str, str]:
        random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        of = cell["law"], cell["classes"], cell["n"]
        largest = max(gap(random, k, *of) for k in range(cell["data_sets"]))
        return {"standard_errors": f"{largest:.3g}"}

    return runner.Study(cells, ("standard_errors",), measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
