"""What the check and sbi's MCMC cost a pair: processor seconds and rows that the network evaluates.

The check runs on all pairs, MCMC on a few of them; both are divided by their number of pairs.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import run
import runner
import sbi_methods

FEW = 5  # pairs with draws by MCMC
MEASURED = ("cpu_check", "cpu_check_first", "cpu_draws", "rows_check", "rows_draws")


def make(config: run.Config) -> runner.Study:
    """Per pair, of one trained posterior a cell."""
    cells = [
        {"task": task, "algorithm": algorithm, "simulations": budget, "n": config.n, "m": config.m}
        for budget in config.budgets
        for task in config.tasks
        for algorithm in config.algorithms
    ]

    def measure(cell: Any, key: jax.Array) -> dict[str, Any]:
        import torch

        train_key, pair_key, test_key = jax.random.split(key, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            simulator, network, posterior = run.trained(
                cell["task"], cell["algorithm"], cell["simulations"], train_key, config
            )
            pairs = simulator.pairs(pair_key, config.n)
            theta, x = (torch.as_tensor(np.array(part)) for part in pairs)
            _, ours = run.checked(network, posterior, theta, x, test_key)
            _, by_mcmc = run.sampled(network, posterior, x[:FEW], config)
        return {name: value / config.n for name, value in ours.items()} | {
            name: value / FEW for name, value in by_mcmc.items()
        }

    return runner.Study(cells, MEASURED, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    if not sbi_methods.sbi_is_here():
        raise sbi_methods.not_here("every cell of this study")
    full, path = replace(run.Config(), n=200), run.FOLDER / "cost.csv"
    runner.run(make(full), path)
    return path


if __name__ == "__main__":
    main()
