"""Speed of the ridge paths as ratios, and agreement with other libraries on binned errors.

python experiments/squared_ce_benchmarks/run.py [--quick] prints a table and writes results.csv.
Times are processor seconds of all threads, as ratios to a reference measured in the same process.
Agreement is checked with those of uncertainty-calibration, torchmetrics and netcal that are
installed.
"""

import argparse
import csv
import importlib.util
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# a second LAPACK thread waits by spinning where cores are busy, which would count as work
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal import squared_ce
from jaxcal.kernels.grams import gram
from jaxcal.squared_ce.functions import at_data
from jaxcal.squared_ce.reductions import Reduced

sys.path.insert(0, str(Path(__file__).parents[1]))
from reference.calibration_functions import diagonal, fit_one
from reference.classifiers import squared_confidence, tempered_dirichlet

FOLDER = Path(__file__).parent
RBF = squared_ce.KernelRidge().kernels[0]


def best(function: Callable[[], Any], repeats: int) -> float:
    """Processor seconds of the fastest of a few calls, after one that compiles."""
    jax.block_until_ready(function())
    times = []
    for _ in range(repeats):
        start = time.process_time()
        jax.block_until_ready(function())
        times.append(time.process_time() - start)
    return min(times)


def simulated(n: int, n_valid: int) -> tuple[Reduced, Reduced]:
    """The canonical problem of the paper's simulation: training and validation observations."""
    sample = tempered_dirichlet(jax.random.key(0), n + n_valid)
    whole = squared_ce.reduce(sample.probabilities, sample.labels, "canonical")
    return whole.take(slice(0, n)), whole.take(slice(n, None))


def numpy_path(train: Reduced, valid: Reduced, ridges: list[float], kron: bool) -> np.ndarray:
    """The risks as one would write them: a solve, or an eigendecomposition and n^3, each ridge."""
    x, d, q, e = (
        np.asarray(a) for a in (train.inputs, train.residuals, valid.inputs, valid.residuals)
    )

    def rbf(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
        return np.exp(-np.maximum(squares, 0) / 2)

    gram, cross, n = rbf(x, x), rbf(x, q), len(q)
    targets, risks = e @ e.T, []
    for ridge in ridges:
        if kron:
            values, vectors = np.linalg.eigh(gram)
            values = np.maximum(values, 0)
            middle = (vectors.T @ d @ d.T @ vectors) / (np.outer(values, values) + ridge)
            h = cross.T @ vectors @ middle @ vectors.T @ cross
        else:
            r = cross.T @ np.linalg.solve(gram + ridge * np.eye(len(x)), d)
            h = r @ r.T
        gaps = (targets - h) ** 2
        risks.append((gaps.sum() - np.trace(gaps)) / (n * (n - 1)))
    return np.array(risks)


def paths(n: int, repeats: int) -> dict[str, float]:
    """A whole path of ridges at n training and n / 4 validation observations, in units of the one
    eigendecomposition it needs; and against NumPy, which starts again at each ridge."""
    train, valid = simulated(n, n // 4)
    matrix = jax.block_until_ready(gram(RBF, train.inputs, train.inputs))
    decompose = jax.jit(jnp.linalg.eigh)
    unit = best(lambda: decompose(matrix), repeats)
    kkr, ukkr = squared_ce.KernelRidge(kronecker=True), squared_ce.KernelRidge()

    def path(*estimators: Any) -> Any:
        shared: list[Any] = []
        return [at_data(each.fit(train, shared), valid).rows for each in estimators]

    by_name = {}
    for name, chosen in {"kkr": [kkr], "ukkr": [ukkr], "both": [kkr, ukkr]}.items():
        by_name[f"{name} path / eigendecomposition"] = (
            best(lambda c=chosen: path(*c), repeats) / unit
        )
    shared: list[Any] = []
    for name, estimator in {"kkr": kkr, "ukkr": ukkr}.items():
        fitted = estimator.fit(train, shared)
        ridge = float(np.asarray(fitted.settings.ridge)[5])
        start = time.process_time()
        plain = numpy_path(train, valid, [ridge], name == "kkr")
        seconds = 18 * (time.process_time() - start)
        by_name[f"{name}: NumPy's 18 ridges / path"] = (
            seconds / unit / by_name[f"{name} path / eigendecomposition"]
        )
        mine = float(jnp.mean(at_data(fitted, valid).rows[5]))
        by_name[f"{name}: relative difference to NumPy"] = abs(mine / plain[0] - 1)
    return by_name


def many(n: int, rank: int) -> dict[str, float]:
    """n training observations through landmarks: time in units of an n x rank x rank product."""
    by_name = {}
    wide, product = jnp.ones((n, rank)), jax.jit(lambda a: a.T @ a)
    unit = best(lambda: product(wide), 3)
    for notion, (train, valid) in {
        "canonical": simulated(n, 2000 if n > 2000 else n),
        "scalar": [squared_confidence(jax.random.key(s), n) for s in (1, 2)],
    }.items():
        valid = valid.take(slice(0, 2000))

        def path(train=train, valid=valid) -> Any:
            shared: list[Any] = []
            chosen = [squared_ce.KernelRidge(rank=rank, kronecker=k) for k in (True, False)]
            fits = [each.fit(train, shared) for each in chosen]
            return [at_data(fit, valid).rows for fit in fits], shared[0][2].unexplained

        by_name[f"{notion}: kkr and ukkr / product"] = best(path, 1) / unit
        rows, unexplained = path()
        by_name[f"{notion}: part of the trace left out"] = float(unexplained[0])
        by_name[f"{notion}: lowest risk of ukkr"] = float(jnp.min(jnp.mean(rows[1], axis=1)))
    by_name["peak MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return by_name


def against_exact(n: int, rank: int) -> dict[str, float]:
    """Landmarks against the exact factorisation at a size where both are possible."""
    by_name = {}
    train, valid = simulated(n, n // 4)
    for make in (partial(squared_ce.KernelRidge, kronecker=True), squared_ce.KernelRidge):
        risks = [
            np.asarray(jnp.mean(at_data(make(rank=r).fit(train, []), valid).rows, axis=1))
            for r in (None, rank)
        ]
        name = make().name
        by_name[f"{name}: relative change of the lowest risk"] = abs(
            risks[1].min() / risks[0].min() - 1
        )
        by_name[f"{name}: same ridge chosen"] = float(risks[0].argmin() == risks[1].argmin())
    return by_name


def estimators(n: int) -> dict[str, float]:
    """Tuning and risk of each estimator on one scalar fold (the paper's Fig. 3), in units of the
    cheapest."""
    train, valid = (
        squared_confidence(jax.random.key(1), n),
        squared_confidence(jax.random.key(2), n // 4),
    )
    chosen = [
        squared_ce.Bins(15),
        squared_ce.Bins(),
        squared_ce.KernelDensity(),
        squared_ce.KernelRidge(kronecker=True),
        squared_ce.KernelRidge(),
        squared_ce.KernelRidge(rank=64, kronecker=True),
        squared_ce.KernelRidge(rank=64),
    ]
    times = {e.name: best(lambda e=e: at_data(e.fit(train, []), valid).rows, 3) for e in chosen}
    return {f"{name} / 15 bins": seconds / times["15 bins"] for name, seconds in times.items()}


def agreement(n: int) -> dict[str, float]:
    """Absolute differences of binned errors to other libraries on the same inputs."""
    problem = squared_confidence(jax.random.key(3), n)
    c, z = (np.asarray(a)[:, 0] for a in (problem.inputs, problem.outcomes))
    bins = squared_ce.Bins(15)
    plain = float(jnp.mean(diagonal(fit_one(bins, problem), problem.inputs))) ** 0.5
    residual = fit_one(bins, problem).factors(problem.inputs).left[:, 0]
    by_name = {}
    if importlib.util.find_spec("calibration"):
        import calibration

        edges = list(np.linspace(0, 1, 16)[1:])
        data = list(zip(c, z.astype(int), strict=True))
        binned = calibration.bin(data, edges)
        by_name["uncertainty-calibration, plug-in"] = abs(
            plain - calibration.plugin_ce(binned, power=2)
        )
        debiased = squared_ce.Bins(15, debiased=True)
        squared = float(jnp.mean(diagonal(fit_one(debiased, problem), problem.inputs)))
        theirs = calibration.unbiased_square_ce(binned)
        by_name["uncertainty-calibration, debiased square"] = abs(squared - theirs)
    if importlib.util.find_spec("torchmetrics"):
        import torch
        from torchmetrics.functional.classification import binary_calibration_error

        p, y = torch.tensor(c), torch.tensor(z.astype(int))
        theirs = binary_calibration_error(p, y, n_bins=15, norm="l2")
        by_name["torchmetrics, l2"] = abs(plain - float(theirs))
        theirs = binary_calibration_error(p, y, n_bins=15, norm="l1")
        by_name["torchmetrics, l1"] = abs(float(jnp.mean(jnp.abs(residual))) - float(theirs))
    if importlib.util.find_spec("netcal"):
        from netcal.metrics import ECE

        by_name["netcal, l1"] = abs(float(jnp.mean(jnp.abs(residual))) - ECE(15).measure(c, z))
    if not by_name:
        print("agreement skipped: none of uncertainty-calibration, torchmetrics, netcal is there")
    return by_name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing written")
    parser.add_argument("--parts", nargs="*", help="only these; rows of the others stay")
    chosen = parser.parse_args()
    quick = chosen.quick
    parts = {
        "paths": lambda: paths(100 if quick else 4000, 1),
        "agreement": lambda: agreement(200 if quick else 2000),
        "n = 50000": lambda: many(300 if quick else 50_000, 20 if quick else 300),
        "rank 300": lambda: against_exact(*((100, 20) if quick else (2000, 300))),
        "one fold": lambda: estimators(100 if quick else 2000),
    }
    for part in chosen.parts or list(parts)[: 2 if quick else None]:
        with jax.enable_x64(True):
            result = parts[part]()
        for quantity, value in result.items():
            print(f"{part:10s} {quantity:46s} {value:10.4g}", flush=True)
        if result and not quick:
            save(list(parts), part, result)


def save(order: list[str], part: str, values: dict[str, float]) -> None:
    """This part's rows of results.csv, in place of those it had."""
    path = FOLDER / "results.csv"
    rows = list(csv.DictReader(path.open(newline=""))) if path.exists() else []
    rows = [row for row in rows if row["part"] != part]
    rows += [{"part": part, "quantity": q, "value": f"{v:.4g}"} for q, v in values.items()]
    rows.sort(key=lambda row: order.index(row["part"]))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["part", "quantity", "value"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
