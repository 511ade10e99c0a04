"""Speed and size as ratios to the machine's own matrix product, measured in the same process.

python experiments/benchmarks/run.py [--quick] [--parts NAME ..] prints a table and writes
results.csv: medians of several runs, with their range. Each part runs in a fresh process, so that
memory and first calls are its own; a smoke run shares one.
"""

import argparse
import csv
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
D, NODES, DRAWS = 5, 10, 500


def best(function, *args, repeats=3):
    """Seconds of the fastest of a few calls, after one that compiles."""
    import jax

    jax.block_until_ready(function(*args))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - start)
    return min(times)


def product_rate(quick):
    """Flops a second of a 4096 x 4096 x 4096 float32 matrix product, or of a small one."""
    import jax
    import jax.numpy as jnp

    side = 256 if quick else 4096
    a = jax.random.normal(jax.random.key(0), (side, side), jnp.float32)
    return 2 * side**3 / best(jax.jit(lambda a: a @ a), a)


def peak():
    """Largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def gaussian(mean, y):
    """The log density of a unit Gaussian, without its constant."""
    return -((y - mean) ** 2).sum() / 2


def data(n, batch=()):
    """Inputs and calibrated targets, [*batch, n, d], from NumPy: no compiled generator counts."""
    import jax.numpy as jnp
    import numpy as np

    x, noise = np.random.default_rng(1).standard_normal((2, *batch, n, D), np.float32)
    return jnp.asarray(x), jnp.asarray(x + noise)


def jaxcal_test(key, x, y):
    """The test as users call it."""
    import jaxcal

    return jaxcal.kccsd_test(key, jaxcal.Unnormalized(gaussian, x), y).p_value


def obvious_test(key, x, y):
    """The equations written down: autodiff for each pair, a dense H, a quadratic form a draw."""
    import jax
    import jax.numpy as jnp

    from jaxcal.kernels.points import gram
    from jaxcal.pairwise.stein import stein

    node_key, sign_key = jax.random.split(key)
    n = y.shape[0]
    z = jax.random.normal(node_key, (NODES, D))
    score = jax.grad(gaussian, argnums=1)
    scores = jax.vmap(score)(x, y)
    at_nodes = jax.vmap(lambda m: jax.vmap(lambda node: score(m, node))(z))(x)

    def fisher(a, b):
        return jnp.mean(jnp.sum((a - b) ** 2, -1))

    def bandwidth(squared):
        distances = jnp.sqrt(squared[jnp.triu_indices(n, 1)])
        some = distances[:: max(1, distances.size // 5000)]
        return jnp.median(some)

    gfd = gram(fisher, at_nodes, at_nodes)
    sigma = jnp.maximum(bandwidth(gfd), 1e-6)
    ell = bandwidth(gram(lambda a, b: jnp.sum((a - b) ** 2), y, y))

    def target(a, b):
        return jnp.exp(-jnp.sum((a - b) ** 2) / (2 * ell**2))

    h = gram(lambda a, b: stein(target, a[0], b[0], a[1], b[1]), (y, scores), (y, scores))
    h = h * jnp.exp(-gfd / (2 * sigma**2))
    h = h - jnp.diag(jnp.diag(h))
    w = jax.random.rademacher(sign_key, (DRAWS, n), jnp.float32)
    draws = jax.vmap(lambda w: w @ h @ w)(w)
    return (1 + jnp.sum(draws >= jnp.sum(h))) / (1 + DRAWS)


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


def part_batch(quick, n, batch):
    """Many models at once by vmap: the whole test, and the engine's pass alone."""
    import jax
    import jax.numpy as jnp

    from jaxcal import nulls, testing
    from jaxcal.divergences import Fisher
    from jaxcal.kernels import Gaussian
    from jaxcal.pairwise.stein import Stein, SteinFeatures
    from jaxcal.pairwise.weighted import Weighted, WeightedFeatures

    x, y = data(n, (batch,))
    keys = jax.random.split(jax.random.key(0), batch)
    whole = best(jax.jit(jax.vmap(jaxcal_test)), keys, x, y)
    stein = Stein(Gaussian(jnp.float32(3)), dimension=D)
    pairwise = Weighted(Gaussian(jnp.float32(2)), Fisher(), (stein,))
    described = jnp.tile(x - y, (1, 1, NODES)) / NODES**0.5
    features = WeightedFeatures(described, (SteinFeatures(y, x - y),))
    null = nulls.Wild(DRAWS)
    one = jax.vmap(lambda key, each: testing.apply(null, key, pairwise, each).p_value)
    engine = best(jax.jit(one), keys, features)
    flops, rate = batch * n**2 * DRAWS, product_rate(quick)
    return {
        "share of product rate": flops / whole / rate,
        "engine's share": flops / engine / rate,
    }


def part_shared_batch(quick, n, batch):
    """The same models on as many devices as cores, each walking its share."""
    import jax

    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    mesh = jax.sharding.Mesh(jax.devices(), ("models",))
    batch = -(-batch // mesh.size) * mesh.size
    models = jax.sharding.PartitionSpec("models")
    x, y = data(n, (batch,))
    keys = jax.random.split(jax.random.key(0), batch)
    placed = jax.device_put((keys, x, y), jax.sharding.NamedSharding(mesh, models))
    shared = jax.shard_map(
        jax.vmap(jaxcal_test), mesh=mesh, in_specs=models, out_specs=models, check_vma=False
    )
    seconds = best(jax.jit(shared), *placed)
    return {"share of product rate": batch * n**2 * DRAWS / seconds / product_rate(quick)}


def part_first(quick, obvious):
    """The first p-value of a fresh process at n = 256, and where its processor time goes."""
    start = time.process_time()
    import jax

    jax_there = time.process_time()
    if not obvious:
        import jaxcal
        from jaxcal import testing
        from jaxcal.preparation import stein_specification

    ready = time.process_time()
    x, y = jax.block_until_ready(data(256))
    key = jax.random.key(0)
    begin = time.process_time()
    jax.block_until_ready((jax.jit(obvious_test) if obvious else jaxcal_test)(key, x, y))
    calls = {"first call, processor s": time.process_time() - begin}
    if obvious:
        return calls
    jax.clear_caches()
    setup = stein_specification(y)
    null = jaxcal.nulls.Wild(DRAWS)
    predictions = jaxcal.Unnormalized(gaussian, x)
    t0 = time.process_time()
    traced = testing.unjudged.trace(
        key, predictions, y, setup, null, test="KCCSD test", tile=512, mesh=None
    )
    t1 = time.process_time()
    lowered = traced.lower()
    t2 = time.process_time()
    compiled = lowered.compile()
    t3 = time.process_time()
    jax.block_until_ready(compiled(key, predictions, y, setup, null))
    t4 = time.process_time()
    return {
        "import jax, processor s": jax_there - start,
        "import jaxcal, processor s": ready - jax_there,
        **calls,
        "trace, processor s": t1 - t0,
        "lower, processor s": t2 - t1,
        "compile, processor s": t3 - t2,
        "run, processor s": t4 - t3,
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


def classes_scipy(p, y, median=None):
    """SKCE by scipy's pairwise distances: unbiased, and the median distance."""
    import numpy as np
    from scipy.spatial.distance import pdist, squareform

    n, m = p.shape
    distances = pdist(p, "cityblock") / 2
    median = np.median(distances) if median is None else median
    kernel = squareform(np.exp(-distances / median))
    residuals = np.eye(m)[y] - p
    return np.sum(kernel * (residuals @ residuals.T)) / (n * (n - 1)), median


def classes_jaxcal(p, y, median=None):
    """The same numbers."""
    import jax

    from jaxcal.divergences import TotalVariation
    from jaxcal.kernels import Laplace
    from jaxcal.kernels.medians import exact_median
    from jaxcal.skce import skce

    median = exact_median(TotalVariation(), p) if median is None else median
    options = {"divergence": TotalVariation(), "prediction_kernel": Laplace(median)}
    return skce(jax.random.key(0), p, y, **options).unbiased, median


def part_classes(quick, n):
    """SKCE of class probabilities, float64, beside NumPy and SciPy in the same process."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    p, y = classes(n)
    ours = jnp.asarray(p), jnp.asarray(y)
    result, wanted = classes_jaxcal(*ours), classes_scipy(p, y)
    times = {
        "exact median": (best(classes_jaxcal, *ours), best(classes_scipy, p, y)),
        "given median": (
            best(classes_jaxcal, *ours, result[1]),
            best(classes_scipy, p, y, wanted[1]),
        ),
    }
    report = {f"times faster, {name}": b / a for name, (a, b) in times.items()}
    report["relative difference"] = float(np.abs(result[0] - wanted[0]) / np.abs(wanted[0]))
    return report


def part_classes_memory(quick, n, ours):
    """What SKCE of class probabilities needs above its process before."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    import scipy.spatial.distance  # noqa: F401

    jnp.ones((8, 8)) @ jnp.ones((8, 8))
    p, y = classes(n)
    classes_jaxcal(*(jnp.asarray(a[:64]) for a in (p, y)))
    before = peak()
    jax.block_until_ready(classes_jaxcal(jnp.asarray(p), jnp.asarray(y)) if ours else [])
    if not ours:
        classes_scipy(p, y)
    return {"MiB above idle": peak() - before}


def part_linear(quick, n):
    """A linear-time test with 100 features; n p^2 useful flops of their covariance, p = 100 d."""
    import jax

    from jaxcal import RandomFeatures, Unnormalized, kccsd_test, nulls

    def test(key, x, y):
        features = RandomFeatures(1, 100)
        model, null = Unnormalized(gaussian, x), nulls.Eigenvalues()
        return kccsd_test(key, model, y, features=features, null=null).p_value

    key = jax.random.key(0)
    tenth = best(test, key, *data(n // 10))
    before = peak()
    whole = best(test, key, *data(n), repeats=2)
    memory = peak()
    return {
        "share of product rate": n * (100 * D) ** 2 / whole / product_rate(quick),
        "times a tenth of n": whole / tenth,
        "peak MiB at a tenth": before,
        "peak MiB": memory,
    }


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
ALONE = {DEVICES}  # devices are chosen before JAX starts
PARTS = {
    "idle process": (part_idle, {}),
    "n = 8192": (part_single, {"n": 8192}),
    "n = 65536": (part_single, {"n": 65536}),
    "1000 models x 256": (part_batch, {"n": 256, "batch": 1000}),
    DEVICES: (part_shared_batch, {"n": 256, "batch": 1000}),
    "n = 4096 against the obvious way": (part_speedup, {"n": 4096, "batch": 0}),
    "100 sets x 256 against the obvious way": (part_speedup, {"n": 256, "batch": 100}),
    "n = 4096, memory": (part_single_same, {"n": 4096}),
    "n = 4096, memory, the obvious way": (part_single_obvious, {"n": 4096}),
    "SKCE, n = 8192": (part_skce, {"n": 8192}),
    "SKCE, 10 classes": (part_classes, {"n": 10000}),
    "SKCE, 10 classes, memory": (part_classes_memory, {"n": 10000, "ours": True}),
    "SKCE, 10 classes, memory, scipy": (part_classes_memory, {"n": 10000, "ours": False}),
    "linear time, n = 10^6": (part_linear, {"n": 10**6}),
    "eigenvalues, n = 8192": (part_eigenvalues, {"n": 8192}),
    "n = 4096, second call": (part_second_call, {"n": 4096}),
    "first p-value": (part_first, {"obvious": False}),
    "first p-value, the obvious way": (part_first, {"obvious": True}),
}
QUICK = {
    "idle process": {},
    "n = 8192": {"n": 700},
    "1000 models x 256": {"n": 64, "batch": 4},
    DEVICES: {"n": 64, "batch": 4},
    "100 sets x 256 against the obvious way": {"n": 64, "batch": 3},
    "SKCE, n = 8192": {"n": 600},
    "SKCE, 10 classes": {"n": 600},
    "SKCE, 10 classes, memory": {"n": 600, "ours": True},
    "linear time, n = 10^6": {"n": 3000},
    "eigenvalues, n = 8192": {"n": 600},
    "n = 4096, second call": {"n": 600},
    "first p-value": {"obvious": False},
}


def in_its_own_process(name, quick):
    command = [sys.executable, __file__, "--part", name] + ["--quick"] * quick
    done = subprocess.run(command, capture_output=True, text=True)
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
        writer = csv.DictWriter(file, ["part", "quantity", "value", "low", "high", "runs"])
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
