"""Speed and size as ratios to the machine's own matrix product, measured in the same process.

python experiments/benchmarks/run.py [--quick] [--parts NAME ..] prints a table and writes
results.csv: medians of several runs, with their range. Each part runs in a fresh process, so that
memory and first calls are its own; a smoke run shares one.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from bench_scale import part_hadamard, part_linear, part_model, part_processes, part_streamed
from bench_small import part_batch, part_first, part_ingredients, part_light, part_shared_batch
from bench_tools import DRAWS, best, data, gaussian, jaxcal_test, obvious_test, peak, product_rate

FOLDER = Path(__file__).parent
LENGTH = 0.7  # about the median total variation between two rows of `classes`


def part_idle(quick):
    """Memory of a process that has started JAX and multiplied two small matrices."""
    import jax.numpy as jnp

    import jaxcal  # noqa: F401

    (jnp.ones((8, 8)) @ jnp.ones((8, 8))).block_until_ready()
    return {"peak MiB": peak()}


def part_single(quick, n):
    """One data set of n observations; n^2 b useful flops, symmetry used."""
    import jax

    x, y = data(n)
    seconds = best(jaxcal_test, jax.random.key(0), x, y, repeats=3 if n < 20000 else 1)
    memory = peak()
    rate = product_rate(quick)
    return {"share of product rate": n**2 * DRAWS / seconds / rate, "peak MiB": memory}


def part_single_obvious(quick, n):
    import jax

    x, y = data(n)
    function = jax.jit(obvious_test)
    seconds = best(function, jax.random.key(0), x, y)
    memory = peak()
    return {"seconds x rate": seconds * product_rate(quick), "peak MiB": memory}


def part_single_same(quick, n):
    """The same quantity for jaxcal, so that the two can be divided."""
    import jax

    x, y = data(n)
    seconds = best(jaxcal_test, jax.random.key(0), x, y)
    memory = peak()
    return {"seconds x rate": seconds * product_rate(quick), "peak MiB": memory}


def part_speedup(quick, n, batch):
    """jaxcal and the obvious way in one process, by turns."""
    import jax

    x, y = data(n, (batch,) if batch else ())
    keys = jax.random.split(jax.random.key(0), batch) if batch else jax.random.key(0)
    ours, theirs = jaxcal_test, jax.jit(obvious_test)
    if batch:
        ours = jax.jit(jax.vmap(jaxcal_test))
        theirs = jax.jit(lambda *args: jax.lax.map(lambda a: obvious_test(*a), args))
    pairs = [(best(ours, keys, x, y), best(theirs, keys, x, y, repeats=1)) for _ in range(2)]
    mine, other = (min(column) for column in zip(*pairs, strict=True))
    flops = max(batch, 1) * n**2 * DRAWS
    return {
        "times faster": other / mine,
        "share of product rate": flops / mine / product_rate(quick),
    }


def part_skce(quick, n):
    """SKCE of diagonal normals with its bootstrap; and its pass alone, without bandwidths."""
    import jax
    import jax.numpy as jnp
    import numpyro.distributions as dist

    from jaxcal import skce_test

    mean, y = data(n)
    scale = jnp.exp(0.3 * jax.random.normal(jax.random.key(3), mean.shape))
    predictions = dist.Normal(mean, scale).to_event(1)
    targets = mean + scale * (y - mean)

    def test(key):
        return skce_test(key, predictions, targets).p_value

    seconds = best(test, jax.random.key(0))
    memory = peak()
    return {
        "share of product rate": n**2 * DRAWS / seconds / product_rate(quick),
        "peak MiB": memory,
    }


def classes(n, m=10):
    """Probabilities [n, m] and classes drawn from them, in float64."""
    import numpy as np

    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(m, 0.3), n)
    return p, (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)


def classes_scipy(p, y, median):
    """SKCE by scipy's pairwise distances: unbiased."""
    import numpy as np
    from scipy.spatial.distance import pdist, squareform

    n, m = p.shape
    distances = pdist(p, "cityblock") / 2
    kernel = squareform(np.exp(-distances / median))
    residuals = np.eye(m)[y] - p
    return np.sum(kernel * (residuals @ residuals.T)) / (n * (n - 1))


def classes_jaxcal(p, y, median):
    """The same number."""
    import jax

    from jaxcal.divergences import TotalVariation
    from jaxcal.kernels import Laplace
    from jaxcal.skce import skce

    options = {"divergence": TotalVariation(), "prediction_kernel": Laplace(median)}
    return skce(jax.random.key(0), p, y, **options).unbiased


def part_classes(quick, n):
    """SKCE of class probabilities, float64, beside NumPy and SciPy in the same process."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    p, y = classes(n)
    ours = jnp.asarray(p), jnp.asarray(y)
    result, wanted = classes_jaxcal(*ours, LENGTH), classes_scipy(p, y, LENGTH)
    seconds = best(classes_jaxcal, *ours, LENGTH)
    return {
        "times faster, given median": best(classes_scipy, p, y, LENGTH) / seconds,
        "relative difference": float(np.abs(result - wanted) / np.abs(wanted)),
    }


def part_classes_memory(quick, n, ours):
    """What SKCE of class probabilities needs above its process before."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    import scipy.spatial.distance  # noqa: F401

    jnp.ones((8, 8)) @ jnp.ones((8, 8))
    p, y = classes(n)
    classes_jaxcal(*(jnp.asarray(a[:64]) for a in (p, y)), LENGTH)
    before = peak()
    if ours:
        jax.block_until_ready(classes_jaxcal(jnp.asarray(p), jnp.asarray(y), LENGTH))
    else:
        classes_scipy(p, y, LENGTH)
    return {"MiB above idle": peak() - before}


def part_eigenvalues(quick, n):
    """p-values by eigenvalues and by 500 draws, by turns."""
    import jax

    from jaxcal import Unnormalized, kccsd_test, nulls

    x, y = data(n)
    key, model = jax.random.key(0), Unnormalized(gaussian, x)

    def seconds(null):
        return best(lambda: kccsd_test(key, model, y, null=null).p_value, repeats=2)

    pairs = [(seconds(nulls.Wild(DRAWS)), seconds(nulls.Eigenvalues())) for _ in range(2)]
    draws, eigenvalues = (min(column) for column in zip(*pairs, strict=True))
    return {"times faster than 500 draws": draws / eigenvalues}


def part_second_call(quick, n):
    """Memory that the second call of a test needs above what the process holds before it."""
    import jax

    x, y = data(n)
    jax.block_until_ready(jaxcal_test(jax.random.key(0), x, y))

    def status(name):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

    Path("/proc/self/clear_refs").write_text("5")  # forgets the largest resident memory
    before = status("VmRSS")
    jax.block_until_ready(jaxcal_test(jax.random.key(1), x, y))
    return {"MiB held before": before, "MiB of a second call": status("VmHWM") - before}


DEVICES = "1000 models x 256, a device a core"
INGREDIENTS = "ingredients of n = 256 on one core"
ALONE = {DEVICES, INGREDIENTS}  # devices and cores are chosen before JAX starts
PARTS = {
    "idle process": (part_idle, {}),
    "n = 8192": (part_single, {"n": 8192}),
    "n = 65536": (part_single, {"n": 65536}),
    "1000 models x 256": (part_batch, {"n": 256, "batch": 1000}),
    DEVICES: (part_shared_batch, {"n": 256, "batch": 1000}),
    INGREDIENTS: (part_ingredients, {"n": 256, "batch": 100}),
    "n = 4096 against the obvious way": (part_speedup, {"n": 4096, "batch": 0}),
    "100 sets x 256 against the obvious way": (part_speedup, {"n": 256, "batch": 100}),
    "n = 4096, memory": (part_single_same, {"n": 4096}),
    "n = 4096, memory, the obvious way": (part_single_obvious, {"n": 4096}),
    "SKCE, n = 8192": (part_skce, {"n": 8192}),
    "SKCE, 10 classes": (part_classes, {"n": 10000}),
    "SKCE, 10 classes, memory": (part_classes_memory, {"n": 10000, "ours": True}),
    "SKCE, 10 classes, memory, scipy": (part_classes_memory, {"n": 10000, "ours": False}),
    "linear time, n = 10^6": (part_linear, {"n": 10**6}),
    "linear time in batches, n = 10^6": (part_streamed, {"n": 10**6}),
    "2 processes on 2 cores": (part_processes, {"pairs": 4096, "rows": 10**5}),
    "draws that share additions, n = 8192": (part_hadamard, {"n": 8192}),
    "cost model": (part_model, {"sizes": (1024, 4096, 8192), "rows": 10**5}),
    "eigenvalues, n = 8192": (part_eigenvalues, {"n": 8192}),
    "n = 4096, second call": (part_second_call, {"n": 4096}),
    "first p-value": (part_first, {"obvious": False}),
    "first p-value, the obvious way": (part_first, {"obvious": True}),
    "light programs, n = 256": (part_light, {"n": 256}),
}
QUICK = {  # as few shapes as there are, as each is a program
    "idle process": {},
    "n = 8192": {"n": 600},
    "1000 models x 256": {"n": 64, "batch": 4},
    DEVICES: {"n": 64, "batch": 4},
    INGREDIENTS: {"n": 64, "batch": 4},
    "100 sets x 256 against the obvious way": {"n": 64, "batch": 4},
    "SKCE, n = 8192": {"n": 600},
    "SKCE, 10 classes": {"n": 600},
    "SKCE, 10 classes, memory": {"n": 600, "ours": True},
    "linear time, n = 10^6": {"n": 6000},
    "linear time in batches, n = 10^6": {"n": 3000},
    "2 processes on 2 cores": {"pairs": 600, "rows": 600},
    "draws that share additions, n = 8192": {"n": 600},
    "cost model": {"sizes": (600,), "rows": 600},
    "eigenvalues, n = 8192": {"n": 600},
    "n = 4096, second call": {"n": 600},
    "first p-value": {"obvious": False},
    "light programs, n = 256": {"n": 64},
}


def in_its_own_process(name, quick):
    command = [sys.executable, __file__, "--part", name] + ["--quick"] * quick
    compiled = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # as pip installs packages
    done = subprocess.run(command, capture_output=True, text=True, env=compiled)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def measured(name, quick):
    """The numbers of one part: smoke runs share a process."""
    if quick and name not in ALONE:
        return PARTS[name][0](True, **QUICK[name])
    return in_its_own_process(name, quick)


def committed():
    """Rows of results.csv, by part and quantity."""
    path = FOLDER / "results.csv"
    with path.open(newline="") as file:
        return {(row["part"], row["quantity"]): row for row in csv.DictReader(file)}


def write(rows):
    """All rows in the order of the parts."""
    order = list(PARTS)
    with (FOLDER / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(
            file, ["part", "quantity", "value", "low", "high", "runs"], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(sorted(rows.values(), key=lambda row: order.index(row["part"])))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing written")
    parser.add_argument("--parts", nargs="*", help="these parts alone; the others keep their rows")
    parser.add_argument("--runs", type=int, default=3, help="each part so often; medians and range")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        function, sizes = PARTS[options.part]
        sizes = QUICK[options.part] if options.quick else sizes
        print(json.dumps(function(options.quick, **sizes)))
        return
    names = options.parts or (QUICK if options.quick else PARTS)
    for name in names:
        runs = [measured(name, options.quick) for _ in range(1 if options.quick else options.runs)]
        rows = {} if options.quick else committed()
        rows = {key: row for key, row in rows.items() if key[0] != name}
        for quantity in runs[0]:
            values = [one[quantity] for one in runs]
            numbers = statistics.median(values), min(values), max(values)
            value, low, high = (f"{number:.4g}" for number in numbers)
            row = {"part": name, "quantity": quantity, "value": value, "low": low, "high": high}
            rows[name, quantity] = row | {"runs": len(runs)}
            print(f"{name:42s} {quantity:24s} {value} ({low} to {high})", flush=True)
        if not options.quick:
            write(rows)


if __name__ == "__main__":
    main()
