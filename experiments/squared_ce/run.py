"""Squared calibration errors with the estimator chosen by risk.

python experiments/squared_ce/run.py [--quick] [--data FOLDER] [--logits FOLDER]

results.csv: the simulation of the paper, its risk curve and the pipeline on it. results_digits.csv:
classifiers of scikit-learn's digits, where scikit-learn is installed. results_cifar10.csv: seven
CIFAR-10 networks, where ``--data`` names a folder that holds them. results_logits.csv: every
MODEL.npz (arrays ``logits`` [n, m] and ``labels`` [n]) of the folder ``--logits``, printed in the
layout of the paper's tables too.
"""

import argparse
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal import squared_ce
from jaxcal.squared_ce.functions import Residual
from jaxcal.squared_ce.pipeline import Report

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
import runner
import squared_ce_data
from reference.classifiers import temperature_residual, tempered_dirichlet
from reference.from_test_rows import plug_in

FOLDER = Path(__file__).parent
TRUTH = 0.063278**0.5  # of the simulation, from 3e7 draws
SCALAR = ("15 bins", "bins", "kde", "kkr", "ukkr")
VECTOR = ("kde", "kkr", "ukkr")
MEASURED = ("risk", "spread", "error", "low", "high", "at_least", "edge", "not_a_number")


@dataclass(frozen=True)
class Config:
    n: int = 500
    repetitions: int = 100
    thetas: int = 40
    seeds: int = 5
    cifar_rows: int | None = None
    networks: tuple[str, ...] = squared_ce_data.CIFAR_NETWORKS
    classifiers: tuple[str, ...] = squared_ce_data.DIGIT_CLASSIFIERS
    digit_notions: tuple[str, ...] = ("top-label", "class-wise", "canonical")
    cifar_notions: tuple[str, ...] = ("top-label", "canonical")
    rank: int = 300
    folds: int = 5
    seed: int = 20250101


QUICK = Config(
    n=60,
    repetitions=3,
    thetas=4,
    seeds=1,
    cifar_rows=300,
    networks=("resnet18",),
    classifiers=("naive Bayes",),
    digit_notions=("top-label",),
    cifar_notions=("top-label",),
    rank=20,
    folds=2,
)


@partial(jax.jit, static_argnames=("n", "repetitions"))
def curve(key: jax.Array, theta: jax.Array, *, n: int, repetitions: int) -> jax.Array:
    """The empirical risk at theta and the root of the mean diagonal, of each repetition."""

    def one(key):
        sample = tempered_dirichlet(key, n)
        problem = squared_ce.reduce(sample.probabilities, sample.labels, "canonical")
        h = Residual(partial(temperature_residual, theta))
        estimate = jnp.mean(jnp.sum(h.residual(problem.inputs) ** 2, axis=1)) ** 0.5
        return jnp.stack([squared_ce.empirical_risk(h, problem).value, estimate])

    return jax.lax.map(one, jax.random.split(key, repetitions))


def estimators(notion: str, rank: int | None, presets: str) -> list[Any]:
    """The paper's, with the ridges that were run or those that it prints."""
    scalar, printed = notion != "canonical", presets == "printed"
    ridges = [
        squared_ce.KernelRidge(rank=rank, power=2.5 if printed else 1.5, kronecker=True),
        squared_ce.KernelRidge(rank=rank, power=1.5 if printed else 0.75),
    ]
    bins = [squared_ce.Bins(15), squared_ce.Bins()] if scalar else []
    return [*bins, squared_ce.KernelDensity(), *ridges]


def row(report: Report, name: str) -> dict[str, Any]:
    """What one estimator gave; ``risk`` is 100 sqrt(risk), ``spread`` its standard error."""
    tuned = next(each for each in report.estimators.values() if each.name.split(" (")[0] == name)
    rmse, spread = tuned.rmse
    step_estimate = tuned.one_step
    bound = np.nan if step_estimate is None else max(float(step_estimate.lower_bound), 0) ** 0.5
    numbers = {
        "risk": rmse,
        "spread": spread,
        "error": tuned.error,
        "low": float(plug_in(tuned).low),
        "high": float(plug_in(tuned).high),
        "at_least": bound,
    }
    nan = sum(np.isnan(numbers[key]) for key in ("risk", "spread", "error", "low", "high"))
    selected = report.best.name == tuned.name
    print(f"{name:8s} {rmse:8.3f} {tuned.error:7.4f} {tuned.settings[:1]} selected={selected}")
    edge = sum(bool(names) for names in tuned.edges)
    return numbers | {"edge": edge, "not_a_number": int(nan)}


def make(config: Config) -> runner.Study:
    """The simulation: the risk over theta, and the pipeline with both presets of ridges."""
    thetas = [f"{theta:.4f}" for theta in 2 ** np.linspace(-5, 4.95, config.thetas)]
    cells = [{"part": "curve", "seed": 0, "what": theta} for theta in thetas]
    cells += [
        {"part": presets, "seed": seed, "what": name}
        for presets in ("as run", "printed")
        for seed in range(config.seeds)
        for name in VECTOR
    ]

    @cache
    def report(presets: str, seed: int) -> Report:
        data_key, key = jax.random.split(jax.random.fold_in(jax.random.key(config.seed), seed))
        with jax.enable_x64(True):
            sample = tempered_dirichlet(data_key, config.n)
        p, y = np.asarray(sample.probabilities), np.asarray(sample.labels)
        chosen = estimators("canonical", None, presets)
        return squared_ce.calibration_error(
            key, p, y, notion="canonical", estimators=chosen, folds=config.folds
        )

    def measure(cell: Mapping[str, Any], key: jax.Array) -> dict[str, Any]:
        if cell["part"] != "curve":
            return row(report(cell["part"], cell["seed"]), cell["what"])
        with jax.enable_x64(True):
            theta = jnp.asarray(float(cell["what"]))
            same = jax.random.key(config.seed)  # the same data at every theta
            values = np.asarray(curve(same, theta, n=config.n, repetitions=config.repetitions))
        risks, errors = values.T
        return {
            "risk": risks.mean(),
            "spread": risks.std(ddof=1),
            "error": errors.mean(),
            "low": np.quantile(errors, 0.025),
            "high": np.quantile(errors, 0.975),
            "at_least": np.nan,
            "edge": 0,
            "not_a_number": int(np.isnan(values).sum()),
        }

    return runner.Study(cells, MEASURED, measure, config.seed, paired=("what",))


def make_real(config: Config, folder: Path | None, *, logits: bool = False) -> runner.Study:
    """Classifiers on real data: the digits, or the networks (their ``logits``) of ``folder``."""
    names = config.classifiers if folder is None else config.networks
    if logits:
        names = sorted(path.stem for path in folder.glob("*.npz"))
    notions = config.digit_notions if folder is None else config.cifar_notions
    cells = [
        {"classifier": name, "notion": notion, "what": estimator}
        for name in names
        for notion in notions
        for estimator in (VECTOR if notion == "canonical" else SCALAR)
    ]

    @cache
    def report(name: str, notion: str) -> Report:
        rank = config.rank if notion == "canonical" else min(config.rank, 64)
        if folder is None:
            p, y = squared_ce_data.digits(name)
            rank = rank if notion == "class-wise" else None
        elif logits:
            p, y = squared_ce_data.logits(folder, name)
        else:
            p, y = squared_ce_data.cifar10(folder, name, config.cifar_rows)
        print(f"\n{name}, {notion}: accuracy {np.mean(p.argmax(1) == y):.4f}")
        return squared_ce.calibration_error(
            jax.random.key(config.seed),
            p,
            y,
            notion=notion,
            estimators=estimators(notion, rank, "as run"),
            folds=config.folds,
        )

    def measure(cell: Mapping[str, Any], key: jax.Array) -> dict[str, Any]:
        return row(report(cell["classifier"], cell["notion"]), cell["what"])

    return runner.Study(cells, MEASURED, measure, config.seed, paired=("what",))


def tables(path: Path) -> str:
    """100 sqrt(risk) with its standard error, a table a notion, as the paper prints them."""
    rows = runner.read(path)
    models = sorted({row["classifier"] for row in rows})
    lines = []
    for notion in dict.fromkeys(row["notion"] for row in rows):
        lines += [f"\n{notion}\n| | " + " | ".join(models) + " |", "|---" * (len(models) + 1) + "|"]
        by_name = {(r["what"], r["classifier"]): r for r in rows if r["notion"] == notion}
        for name in dict.fromkeys(what for what, _ in by_name):
            of = [by_name[name, model] for model in models]
            cells = [f"{float(r['risk']):.2f} ± {float(r['spread']):.2f}" for r in of]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> Path:
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("--data", type=Path, help="a folder with the CIFAR-10 networks' outputs")
    parser.add_argument("--logits", type=Path, help="a folder with MODEL.npz of logits and labels")
    mine, rest = parser.parse_known_args(arguments)
    path = runner.command_line(make, Config(), QUICK, FOLDER, rest)
    config = QUICK if "--quick" in rest else Config()
    if importlib.util.find_spec("sklearn") is None:
        print("digits skipped: scikit-learn is not installed (pip install 'jaxcal[notebooks]')")
    else:
        runner.run(make_real(config, None), path.with_name("results_digits.csv"))
    if mine.data is None or not squared_ce_data.has_cifar10(mine.data):
        where = "no --data FOLDER was given" if mine.data is None else f"{mine.data} lacks files"
        print(f"CIFAR-10 skipped: {where}. Wanted: {squared_ce_data.CIFAR_SOURCE}.")
    else:
        runner.run(make_real(config, mine.data), path.with_name("results_cifar10.csv"))
    if mine.logits is not None:
        result = path.with_name("results_logits.csv")
        runner.run(make_real(config, mine.logits, logits=True), result)
        print(tables(result))
    return path


if __name__ == "__main__":
    main()
