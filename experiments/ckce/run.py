"""CKCE next to JKCE and ECE: Figures 1, 2 and 4 and the toy model of the paper, rebuilt.

python experiments/ckce/run.py [--quick] [--output FILE] writes results.csv; with --data FOLDER also
the ranking of seven CIFAR-10 networks, cifar10.csv.
"""

import argparse
import functools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# LAPACK's threads wait for each other by spinning: with one, thousands of small Cholesky factors
# take a hundredth of the time where cores are busy. Read when jax is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal.ckce import Equal, ckce

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import cifar10
import images
import runner
from reference import synthetic
from reference.ckce_solvers import Fourier
from reference.classes import absolute, canonical_error
from reference.joint import jkce
from reference.ranking import Drawn, drawn_trials, shift_curves

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Config:
    n: int = 1000
    e1_trials: int = 40
    e2_trials: int = 100
    e2_sizes: tuple[int, ...] = (20, 50, 100, 200, 500, 1000)
    e4_trials: int = 20
    e4_places: tuple[float, ...] = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0)
    e5_levels: tuple[int, ...] = (-50, -40, -30, -20, -10, 0, 10, 20, 30, 40, 50)
    e5_trials: int = 20
    e6_trials: int = 50
    subsets: int = 1000
    seed: int = 20260101


QUICK = Config(60, 2, 3, (60,), 2, (-1.0, 0.0), (-50, 0), 2, 3, 4)


def ckce_value(q, y):
    return ckce(q, y).estimate


def fourier_value(q, y):
    return ckce(q, y, solver=Fourier(jax.random.key(1))).estimate


def fixed_value(q, y):
    return ckce(q, y, bandwidth=0.3).estimate


def jkce_value(q, y):
    return jkce(q, y).unbiased


def ece_value(q, y):
    return canonical_error(q, y, bins=3, distance=absolute).mean


def toy_ckce(q, y):
    return ckce(q, y, prediction_kernel=Equal()).estimate


def toy_small_ridge(q, y):
    return ckce(q, y, prediction_kernel=Equal(), ridge=1e-4).estimate


def toy_jkce(q, y):
    return jkce(q, y, prediction_kernel=Equal()).unbiased


THREE = {"CKCE": ckce_value, "JKCE": jkce_value, "ECE": ece_value}
E1 = {"CKCE": ckce_value, "CKCE, 100 features": fourier_value, "JKCE": jkce_value, "ECE": ece_value}
E4 = {"CKCE": ckce_value, "CKCE, bandwidth 0.3": fixed_value, "JKCE": jkce_value, "ECE": ece_value}
E6 = {"CKCE": toy_ckce, "CKCE, ridge 1e-4": toy_small_ridge, "JKCE": toy_jkce, "ECE": ece_value}
NAMES = ("true", "marginal", "under", "over")


def four_models(key, n, m, concentration):
    truth_key, label_key = jax.random.split(key)
    truth = synthetic.dirichlet(truth_key, n, m, concentration)
    under, over = (synthetic.temperature(truth, t) for t in (2.0, 0.5))
    models = jnp.stack([truth, synthetic.marginal(n, m), under, over])
    return Drawn(models, synthetic.labels(label_key, truth))


def shifted(n):
    def make(key, place):
        q, y, _ = synthetic.covariate_shift(key, n, place)
        return Drawn(q[None], y)

    return make


def toy(n):
    def make(key, p):
        input_key, label_key = jax.random.split(key)
        x = (jax.random.uniform(input_key, (n,)) > p).astype(int)
        q = jnp.asarray([[0.7, 0.3], [0.4, 0.6]])[x]
        return Drawn(q[None], jax.random.bernoulli(label_key, 0.5, (n,)).astype(int))

    return make


def make(config: Config) -> runner.Study:
    """Means and standard deviations over trials, or rates of right rankings."""
    cells = []

    def add(experiment, settings, models, measures):
        cells.extend(
            {"experiment": experiment, "setting": s, "model": m, "measure": f}
            for s in settings
            for m in models
            for f in measures
        )

    add("E1", [f"n={config.n}"], NAMES, E1)
    pairs = [f"{a}<{b}" for a in NAMES[:2] for b in NAMES[2:]]
    add("E2", config.e2_sizes, pairs, THREE)
    add("E4", config.e4_places, ["sigmoid(5x)"], E4)
    add("E5", config.e5_levels, images.MODELS, ("CKCE", "CKCE, shared", "JKCE", "accuracy"))
    add("E6", (0.2, 0.5, 0.8), ["toy"], E6)
    key = jax.random.key(config.seed)

    @functools.cache
    def e1():
        make = functools.partial(four_models, n=config.n, m=2, concentration=1.0)
        return np.asarray(drawn_trials(key, make, E1, trials=config.e1_trials).values)

    @functools.cache
    def e2(n):
        make = functools.partial(four_models, n=n, m=10, concentration=0.1)
        fold = jax.random.fold_in(key, n)
        return drawn_trials(fold, make, THREE, trials=config.e2_trials)

    @functools.cache
    def e4():
        places, trials = list(config.e4_places), config.e4_trials
        return np.asarray(shift_curves(key, shifted(config.n), places, E4, trials=trials))

    @functools.cache
    def e5():
        return images.curves(key, config.e5_levels, config.n, config.e5_trials)

    @functools.cache
    def e6():
        result = shift_curves(key, toy(config.n), [0.2, 0.5, 0.8], E6, trials=config.e6_trials)
        return np.asarray(result)

    def values(cell):
        setting, model, measure = cell["setting"], cell["model"], cell["measure"]
        match cell["experiment"]:
            case "E1":
                return e1()[:, list(E1).index(measure), NAMES.index(model)]
            case "E2":
                a, b = (NAMES.index(name) for name in model.split("<"))
                result = e2(setting).values[:, list(THREE).index(measure)]
                return np.asarray(result[:, a] < result[:, b], float)
            case "E4":
                where = config.e4_places.index(setting)
                return e4()[where, :, list(E4).index(measure), 0]
            case "E5":
                return e5()[setting, model, measure]
            case _:
                return e6()[[0.2, 0.5, 0.8].index(setting), :, list(E6).index(measure), 0]

    def measure(cell, _):
        result = np.asarray(values(cell), float)
        missing = int(np.sum(np.isnan(result)))
        return {"mean": result.mean(), "sd": result.std(), "not_a_number": missing}

    return runner.Study(cells, ("mean", "sd", "not_a_number"), measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke size, in seconds")
    parser.add_argument("--output", type=Path, help="the CSV file to continue or begin")
    parser.add_argument("--data", type=Path, help="folder with labels.csv and one CSV a network")
    chosen = parser.parse_args(arguments)
    if chosen.quick:  # a smoke size is nearly all compiling
        jax.config.update("jax_disable_most_optimizations", True)
    config = QUICK if chosen.quick else Config()
    folder = FOLDER / "quick" if chosen.quick else FOLDER
    path = chosen.output or folder / "results.csv"
    runner.run(make(config), path)
    if chosen.data is None or not (chosen.data / "labels.csv").exists():
        print(
            "E3 skipped: --data FOLDER wants softmax outputs of CIFAR-10 networks, one CSV file a "
            "network and labels.csv (public repository of Widmann et al., NeurIPS 2019)"
        )
    else:
        cifar10.run(chosen.data, path.with_name("cifar10.csv"), config.subsets, config.seed)
    return path


if __name__ == "__main__":
    main()
