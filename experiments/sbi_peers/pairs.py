"""What more pairs give the check, which needs no draws: its power beside that of `power.py`.

The networks are those of `power.py`, the pairs are fresh.
"""

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import power
import run
import runner
import sbi_methods

from jaxcal.sbi import check_posterior

SIZES = (200,)
SETS = 20


def make(config: power.Config) -> runner.Study:
    """How often the check of a trained posterior rejects, and each of its p-values by itself."""
    same = power.make(config)
    cells = [
        {"task": task, "posterior": algorithm, "simulations": budget, "n": n, "data_sets": SETS}
        for task, algorithm, budget in config.trained
        for n in SIZES
    ]

    def measure(cell: Any, key: jax.Array) -> dict[str, Any]:
        import torch

        names = ("task", "posterior", "simulations")
        train_key = jax.random.split(same.key({name: cell[name] for name in names}))[0]
        train_key = jax.random.split(train_key)[0]
        counts, seconds = dict.fromkeys(("check", *PARTS), 0), []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            training = run.Config(epochs=config.epochs)
            simulator, _, posterior = run.trained(
                cell["task"], cell["posterior"], cell["simulations"], train_key, training
            )
            for k in range(cell["data_sets"]):
                pair_key, test_key = jax.random.split(jax.random.fold_in(key, k))
                pairs = simulator.pairs(pair_key, cell["n"])
                theta, x = (torch.as_tensor(np.array(part)) for part in pairs)
                start = time.process_time()
                report = check_posterior(test_key, posterior, theta, x)
                seconds.append(time.process_time() - start)
                p = report.p_values() | {"check": report.p_value}
                for name in counts:
                    counts[name] += float(p[name.replace("_", " ")]) <= 0.05
        return counts | {"cpu_check": np.median(seconds) / cell["n"]}

    return runner.Study(cells, ("check", *PARTS, "cpu_check"), measure, config.seed)


PARTS = ("moments", "candidates", "ranks", "given_x")


def main(arguments: Sequence[str] | None = None) -> Path:
    if not sbi_methods.sbi_is_here():
        raise sbi_methods.not_here("every cell of this study")
    path = Path(__file__).parent / "pairs.csv"
    runner.run(make(power.Config()), path)
    return path


if __name__ == "__main__":
    main()
