"""Speed of the distances as ratios to NumPy's sort of the same predictions, in the same process.

python experiments/distance_benchmarks/run.py [--quick] prints a table and writes results.csv. Also
how far the exact values are from linear programs and from the package relplot, whose values for
the same samples are in relplot.csv (made by `relplot_values.py`, where relplot is installed);
`switches.py` says what makes the difference.
"""

import argparse
import csv
import os
import sys
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal import dce
from jaxcal.dce.predictions import atoms, binary, ordered
from jaxcal.dce.resampling import kernel_statistic
from jaxcal.dce.smooth import smooth_of_residuals

sys.path.insert(0, str(Path(__file__).parents[1]))
import switches
from reference import distances
from reference.lower_distance import lower_distance
from reference.smece import smece

FOLDER = Path(__file__).parent
STEP_NAMES = (  # `switches.STEPS`, each with those before it
    "on its mesh of 200 points",
    "and the ends in full in the integral",
    "and no mirror image of the grid's ends",
    "and divided by the sum of the density",
    "and the Gaussian cut half a unit off",
)


def sample(seed, n, power=1.3):
    """Overconfident predictions and labels, the same in NumPy wherever they are drawn."""
    rng = np.random.default_rng(seed)
    truth = rng.random(n)
    odds = (truth / (1 - truth)) ** power
    return odds / (1 + odds), (rng.random(n) < truth).astype(float)


def once(function, *args):
    start = time.perf_counter()
    jax.block_until_ready(function(*args))
    return time.perf_counter() - start


def by_turns(ours, reference, repeats=5):
    """Best times of two programs that run by turns, compiled before."""
    once(*ours), once(*reference)
    pairs = [(once(*ours), once(*reference)) for _ in range(repeats)]
    return [min(column) for column in zip(*pairs, strict=True)]


def processor_time(function, *args):
    start = time.process_time()
    jax.block_until_ready(function(*args))
    return time.process_time() - start


def ratios(n, repeats):
    """Each measure on n observations, called and compiled, against np.sort of the predictions.

    Least processor time of all threads by turns, which other users of the machine hardly move.
    """
    v, y = sample(0, n)
    on_device = jnp.asarray(v), jnp.asarray(y)
    measures = {
        "ECE": dce.unbinned_ece,
        "binned ECE, 15 bins": dce.binned_ece,
        "smECE": smece,
        "Laplace kernel, with witness": dce.kernel_ce,
        "surrogate, 9 widths": dce.surrogate_interval_ce,
        "bounds of the lower distance": partial(dce.lower_distance, cells=64),
        "smooth, with witness": dce.smooth_ce,
    }
    programs = {"np.argsort": (np.argsort, v), "jnp.sort": (jax.jit(jnp.sort), on_device[0])}
    for name, measure in measures.items():
        programs[name] = (measure, *on_device)
        programs[f"{name}, compiled"] = (jax.jit(measure), *on_device)
    for name, program in programs.items():
        processor_time(*program)
        pairs = [(processor_time(*program), processor_time(np.sort, v)) for _ in range(repeats)]
        mine, reference = (min(column) for column in zip(*pairs, strict=True))
        yield f"n={n}: {name}", "times np.sort", mine / max(reference, 1e-9)


def program(n, limit=600.0):
    """The exact dynamic program against its linear program, which may take ``limit`` s."""
    v, y = sample(1, n)
    run = jax.jit(lambda v, y: dce.smooth_ce(v, y).value)
    once(run, v, y)
    mine = min(once(run, v, y) for _ in range(3))
    yield f"smooth, n={n}", "seconds", mine
    jax.block_until_ready(atoms(binary(v, y)))  # what is compiled and imported is not its time
    distances.smooth_ce_linear_program(v[:9], y[:9])
    start = time.perf_counter()
    try:
        wanted = distances.smooth_ce_linear_program(v, y, seconds=limit)
    except TimeoutError:
        yield f"smooth, n={n}", "seconds in which HiGHS did not finish", limit
        yield f"smooth, n={n}", "times faster than HiGHS, at least", limit / mine
        return
    theirs = time.perf_counter() - start
    yield f"smooth, n={n}", "seconds of HiGHS", theirs
    yield f"smooth, n={n}", "times faster than HiGHS", theirs / mine
    yield f"smooth, n={n}", "difference from HiGHS", abs(float(run(v, y)) - wanted)


def agreement(cases):
    """Largest differences from the programs over small samples."""
    smooth = jax.jit(lambda v, y: dce.smooth_ce(v, y))
    worst = gap = width = 0.0
    for seed in range(cases):
        v, y = sample(seed, 200, power=2.0)
        outcome = smooth(v, y)
        worst = max(worst, abs(float(outcome.value) - distances.smooth_ce_linear_program(v, y)))
        gap = max(gap, abs(float(outcome.upper - outcome.value)))
        low = lower_distance(v, y, tol=1e-9)
        width = max(width, low.coupling.cost - (low.high - low.moved), low.high - low.low)
    yield "200 observations", "smooth: largest difference from HiGHS", worst
    yield "200 observations", "smooth: largest duality gap", gap
    yield "200 observations", "lower distance: widest certificate", width


def smooth_statistic(v, rho):
    return smooth_of_residuals(v, rho)[0]


def bootstrap(n, resamples):
    """Resamples by vmap against as many sorts of n predictions."""
    v, y = (jnp.asarray(a) for a in sample(2, n))
    data = ordered(binary(v, y))
    keys = jax.random.split(jax.random.key(0), resamples)
    for name, statistic in (
        ("Laplace kernel", kernel_statistic),
        ("smooth", smooth_statistic),
    ):

        def one(key, statistic=statistic):
            counts = jnp.bincount(jax.random.randint(key, (n,), 0, n), length=n)
            return statistic(data.v, counts * data.rho)

        many = jax.jit(jax.vmap(one))
        sorts = jax.jit(jax.vmap(lambda key: jnp.sort(jax.random.uniform(key, (n,)))))
        mine, reference = by_turns((many, keys), (sorts, keys), repeats=2)
        yield f"{resamples} resamples of {n}: {name}", "times as many sorts", mine / reference
        yield f"{resamples} resamples of {n}: {name}", "seconds", mine


def relplot(largest):
    """smECE against relplot's, at its own width and at its own solution, up to ``largest`` of n.

    ``power`` says how near the ends predictions come: below 1 they keep away, at 3 many are in the
    first and last cell. At relplot's width, on its mesh, its four choices are taken one by one.
    """
    path = FOLDER / "relplot.csv"
    if not path.exists():
        print("relplot.csv is not here: run relplot_values.py where relplot is installed")
        return
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if int(row["n"]) <= largest]
    run = jax.jit(lambda v, y, width: smece(v, y, width=width).value)
    alone = jax.jit(lambda v, y: smece(v, y).value)
    for power in (0.5, 1.3, 3.0):
        columns = {"same width": [], "each its own width": []}
        columns |= {name: [] for name in STEP_NAMES}
        for row in rows:
            if float(row["power"]) != power:
                continue
            v, y = sample(int(row["seed"]), int(row["n"]), power)
            theirs, width = float(row["smece"]), float(row["width"])
            columns["same width"].append(float(run(v, y, width)) - theirs)
            columns["each its own width"].append(float(alone(v, y)) - theirs)
            for name, step in zip(STEP_NAMES, switches.STEPS, strict=True):
                value = switches.smece(v, y, width, step, mesh=max(round(10 / width), 200))
                columns[name].append(value - theirs)
        for name, differences in columns.items():
            label = f"smECE, power {power:g}, {len(differences)} samples"
            yield label, f"largest difference from relplot: {name}", np.max(np.abs(differences))


def main():
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing written")
    quick = parser.parse_args().quick
    parts = [agreement(1 if quick else 20), relplot(200 if quick else 2000)]
    parts += [ratios(*((200, 1) if quick else (1_000_000, 5)))]
    parts += [bootstrap(*((50, 20) if quick else (1000, 1000)))]
    parts += [program(n) for n in ([200] if quick else [1000, 10_000, 100_000])]
    with open(os.devnull if quick else FOLDER / "results.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["part", "quantity", "value"])
        for part in parts:
            for name, quantity, value in part:
                writer.writerow([name, quantity, f"{value:.4g}"])
                file.flush()
                print(f"{name:48s} {quantity:44s} {value:10.3g}", flush=True)


if __name__ == "__main__":
    main()
