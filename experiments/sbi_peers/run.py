"""The check beside sbi's own diagnostics, on the same trained posteriors and pairs, with times.

Posteriors of NLE and NRE have no sampler of their own: SBC, expected coverage, TARP and LC2ST wait
for the draws that sbi makes by MCMC, with its default settings. `sbi.check_posterior` needs none.
"""

import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxcal.sbi import check_posterior

sys.path.insert(0, str(Path(__file__).parents[1] / "sbi"))
sys.path.insert(0, str(Path(__file__).parents[1]))
import runner
import sbi_methods
from reference import problems as simulators
from reference.problems import VARIANCE
from reference.simulators import slcp

FOLDER = Path(__file__).parent
TASKS = {
    "two moons": simulators.two_moons,
    "Gaussian 10": lambda: simulators.gaussian_linear(10),
    "SLCP": slcp,
}


TRAINED = (  # task, algorithm, simulations
    ("two moons", "NRE", 500),
    ("SLCP", "NRE", 500),
    ("two moons", "NLE", 500),
    ("Gaussian 10", "NRE", 500),
    ("SLCP", "NLE", 500),
)


@dataclass(frozen=True)
class Config:
    trained: tuple[tuple[str, str, int], ...] = TRAINED
    n: int = 50  # pairs
    m: int = 99  # draws of each posterior by MCMC
    warmup: int = 200  # sbi's default
    chains: int = 20  # sbi's default
    epochs: int = 200
    seed: int = 20261123


QUICK = Config(trained=(("two moons", "NRE", 60),), n=12, m=4, warmup=2, chains=2, epochs=2)

MEASURED = (
    "p_check",
    "p_sbc",
    "p_coverage",
    "p_tarp",
    "p_tarp_ranks",
    "p_lc2st",
    "cpu_check",
    "cpu_check_first",
    "cpu_draws",
    "cpu_lc2st",
    "rows_check",
    "rows_draws",
)


class Counter:
    """Rows that networks of the class of this one evaluate, with or without their gradients."""

    def __init__(self, network: Any):
        self.rows, kind = 0, type(network)
        self.name = "log_prob" if hasattr(kind, "log_prob") else "unnormalized_log_ratio"
        self.kind, self.original = kind, getattr(kind, self.name)

    def __enter__(self) -> "Counter":
        def counted(*arguments: Any, **named: Any) -> Any:
            values = self.original(*arguments, **named)
            self.rows += values.numel()
            return values

        setattr(self.kind, self.name, counted)
        return self

    def __exit__(self, *_: Any) -> None:
        setattr(self.kind, self.name, self.original)


def trained(task: str, algorithm: str, budget: int, key: jax.Array, config: Config) -> Any:
    """Simulator, network and posterior of sbi, with its default network and MCMC."""
    import torch
    from sbi.inference import NLE, NRE
    from torch import distributions

    simulator = TASKS[task]()
    low = getattr(getattr(simulator.prior, "base_dist", None), "low", None)
    if low is None:
        d = len(simulator.names)
        prior = distributions.MultivariateNormal(torch.zeros(d), VARIANCE * torch.eye(d))
    else:
        from sbi.utils import BoxUniform

        high = simulator.prior.base_dist.high
        prior = BoxUniform(torch.as_tensor(np.array(low)), torch.as_tensor(np.array(high)))
    torch.manual_seed(sbi_methods.key_seed(key))
    torch.set_num_threads(1)
    theta, x = (torch.as_tensor(np.array(part)) for part in simulator.pairs(key, budget))
    trainer = {"NLE": NLE, "NRE": NRE}[algorithm](prior=prior, show_progress_bars=False)
    network = trainer.append_simulations(theta, x).train(max_num_epochs=config.epochs)
    posterior = trainer.build_posterior(
        network,
        mcmc_parameters={"warmup_steps": config.warmup, "num_chains": config.chains},
    )
    return simulator, network, posterior


def measure_cell(cell: Any, key: jax.Array, config: Config) -> dict[str, Any]:
    import torch

    train_key, pair_key, test_key = jax.random.split(key, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        simulator, network, posterior = trained(
            cell["task"], cell["posterior"], cell["simulations"], train_key, config
        )
        thetas, xs = (np.array(part) for part in simulator.pairs(pair_key, config.n))
        theta, x = torch.as_tensor(thetas), torch.as_tensor(xs)
        report, ours = checked(network, posterior, theta, x, test_key)
        drawn, by_mcmc = sampled(network, posterior, x, config)
        draws = np.moveaxis(drawn.detach().numpy(), 0, 1)  # [n, m, d]
        check, others = densities(posterior, theta, x, draws)
    ranks = sbi_methods.Ranks(thetas, draws, check, others)
    local, seed = (xs[-1], draws[-1]), sbi_methods.key_seed(test_key)
    p = {
        name: sbi_methods.from_draws(method, seed, xs, ranks)
        for name, method in (
            ("p_sbc", "SBC KS"),
            ("p_coverage", "coverage KS"),
            ("p_tarp", "TARP"),
            ("p_tarp_ranks", "TARP ranks"),
        )
    }
    start = time.process_time()
    rest = sbi_methods.Ranks(*(part[:-1] for part in ranks))
    lc2st = sbi_methods.from_draws("LC2ST", seed, xs[:-1], rest, local)
    of_lc2st = {"p_lc2st": lc2st, "cpu_lc2st": time.process_time() - start}
    return p | ours | by_mcmc | of_lc2st | {"p_check": float(report.p_value)}


def checked(network: Any, posterior: Any, theta: Any, x: Any, key: jax.Array) -> tuple[Any, dict]:
    """The report, its processor seconds with and without compilation, and rows evaluated."""
    start = time.process_time()
    check_posterior(jax.random.fold_in(key, 0), posterior, theta, x)
    first = time.process_time() - start
    with Counter(network) as counter:
        start = time.process_time()
        report = check_posterior(key, posterior, theta, x)
        ours = time.process_time() - start
    return report, {"cpu_check": ours, "cpu_check_first": first, "rows_check": counter.rows}


def sampled(network: Any, posterior: Any, x: Any, config: Config) -> tuple[Any, dict]:
    """Draws by sbi's MCMC [m, n, d], its processor seconds, and rows evaluated."""
    with Counter(network) as counter:
        start = time.process_time()
        draws = posterior.sample_batched((config.m,), x=x, show_progress_bars=False)
        cpu = time.process_time() - start
    return draws, {"cpu_draws": cpu, "rows_draws": counter.rows}


def densities(posterior: Any, theta: Any, x: Any, draws: np.ndarray) -> tuple[Any, Any]:
    """Log densities of the parameters [n] and of the draws [n, m], up to a constant a row."""
    import torch

    potential = posterior.potential_fn

    def at(points: Any) -> np.ndarray:
        potential.set_x(x, x_is_iid=False)
        with torch.no_grad():
            return potential(points).reshape(-1).numpy()

    each = [at(torch.as_tensor(draws[:, k])) for k in range(draws.shape[1])]
    return at(theta), np.stack(each, axis=1)


def make(config: Config) -> runner.Study:
    """p-values, processor seconds and rows that the network evaluated, of one trained posterior."""
    cells = [
        {"task": task, "posterior": algorithm, "simulations": budget, "n": config.n, "m": config.m}
        for task, algorithm, budget in config.trained
    ]

    def measure(cell: Any, key: jax.Array) -> dict[str, Any]:
        if not sbi_methods.sbi_is_here():
            raise sbi_methods.not_here("every cell of this study")
        return measure_cell(cell, key, config)

    return runner.Study(cells, MEASURED, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    chosen = sys.argv[1:] if arguments is None else arguments
    if "--quick" in chosen and not sbi_methods.sbi_is_here():
        print("sbi is not installed: nothing to compare with")
        return FOLDER / "quick"
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
