"""The simulators' posteriors against the reference draws that the benchmark sbibm carries.

    pip install --no-deps sbibm    # files only; torch is needed to read the GLM's stimulus
    python experiments/sbi/reference_draws.py

Ten observations a task, 10,000 draws each. If a draw's posterior is ours, the means of
f(u) s(u) + f'(u) are 0 for the score s of the free parameters u: f = 1, u, and tanh u, for every
parameter and observation. Writes reference_draws.csv, a row a task; the p-value is Bonferroni's.
Two moons is left out: its exact posterior has edges.
"""

import argparse
import bz2
import csv
import sys
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from jaxcal.sbi.space import space_of

sys.path.insert(0, str(Path(__file__).parents[1]))
from reference import problems as simulators
from reference import simulators as more

FOLDER = Path(__file__).parent
TASKS = (
    "gaussian_linear",
    "gaussian_linear_uniform",
    "gaussian_mixture",
    "slcp",
    "bernoulli_glm",
    "sir",
    "lotka_volterra",
)
COLUMNS = ("task", "z_scores", "largest", "of", "share_above_1.96", "p_bonferroni", "least_ess")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sbibm", type=Path, help="folder of the package, if not installed")
    sbibm = parser.parse_args().sbibm
    if sbibm is None:
        result = find_spec("sbibm")
        if result is None or result.origin is None:
            raise SystemExit("sbibm is not installed: pip install --no-deps sbibm, or --sbibm")
        sbibm = Path(result.origin).parent
    jax.config.update("jax_enable_x64", True)
    with (FOLDER / "reference_draws.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name in TASKS:
            row = compare(sbibm / "tasks" / name, name)
            writer.writerow(row)
            print(dict(zip(COLUMNS, row, strict=True)), flush=True)


def compare(folder: Path, name: str) -> tuple:
    """One row: how far the witnesses of all parameters and observations are from 0."""
    task = simulator(folder, name)
    values = [one(task, *read(folder / "files" / f"num_observation_{i}")) for i in range(1, 11)]
    z, ess = (np.stack(part) for part in zip(*values, strict=True))  # [10, 3, d]
    i, f, k = np.unravel_index(np.argmax(np.abs(z)), z.shape)
    where = f"{task.names[k]}, f = {('1', 'u', 'tanh u')[f]}, observation {i + 1}"
    p = min(1.0, z.size * 2 * scipy.stats.norm.sf(np.max(np.abs(z))))
    share = float(np.mean(np.abs(z) > 1.96))
    return name, z.size, f"{z[i, f, k]:.2f}", where, f"{share:.3f}", f"{p:.3f}", int(ess.min())


def simulator(folder: Path, name: str) -> simulators.Simulator:
    if name != "bernoulli_glm":
        return getattr(simulators if hasattr(simulators, name) else more, name)()
    import torch

    stimulus = torch.load(folder / "files" / "stimulus_I.pt", weights_only=True)
    return more.bernoulli_glm(jnp.asarray(stimulus.numpy(), float))


def read(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """An observation [q], and draws [m, d]."""
    x = np.loadtxt(folder / "observation.csv", delimiter=",", skiprows=1)
    with bz2.open(folder / "reference_posterior_samples.csv.bz2", "rt") as file:
        return x, np.loadtxt(file, delimiter=",", skiprows=1)


def one(result: simulators.Simulator, x: np.ndarray, draws: np.ndarray):
    """z-scores [3, d] of the witnesses for one observation, and their effective sample sizes."""
    d = draws.shape[1]
    space = space_of(result.prior, None, d, jnp.float64)
    inside = np.all((draws > np.asarray(space.low)) & (draws < np.asarray(space.high)), axis=1)
    thetas = jnp.asarray(draws[inside])  # single precision puts a few draws on a bound
    raw = jax.jit(jax.vmap(jax.grad(result.log_posterior), (0, None)))(thetas, jnp.asarray(x))
    u = space.free(thetas)
    s = np.asarray(space.scores(u, raw))
    u = np.asarray(u)
    tests = [(np.ones_like(u), 0 * u), (u, np.ones_like(u)), (np.tanh(u), 1 - np.tanh(u) ** 2)]
    values = np.stack([f * s + slope for f, slope in tests])  # [3, m, d]
    ess = np.asarray([[effective(v) for v in witness.T] for witness in values])
    return values.mean(axis=1) / (values.std(axis=1) / np.sqrt(ess)), ess


def effective(v: np.ndarray) -> float:
    """Effective sample size, by Geyer's initial positive sequence; m at most."""
    m, gaps = len(v), v - v.mean()
    f = np.fft.rfft(gaps, 2 * m)
    a = np.fft.irfft(f * f.conj())[:m]
    pairs = (a[: m // 2 * 2 : 2] + a[1 : m // 2 * 2 : 2]) / a[0]
    stop = int(np.argmax(pairs < 0)) if np.any(pairs < 0) else len(pairs)
    return m / max(1.0, 2 * float(pairs[:stop].sum()) - 1)


if __name__ == "__main__":
    main()
