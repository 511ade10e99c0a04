"""Speed and size of CKCE as ratios to the machine's own Cholesky, measured in the same process.

python experiments/ckce_benchmarks/run.py [--quick] prints a table and writes results.csv. Each part
runs in a fresh process, so that memory is its own; each pair of timings is taken by turns.
"""

import argparse
import csv
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))
CLASSES = 10


def once(function, *args):
    import jax

    start = time.perf_counter()
    jax.block_until_ready(function(*args))
    return time.perf_counter() - start


def by_turns(ours, theirs, repeats):
    """The fastest of a few calls of each, after one that compiles, by turns."""
    once(*ours), once(*theirs)
    pairs = [(once(*ours), once(*theirs)) for _ in range(repeats)]
    return tuple(min(column) for column in zip(*pairs, strict=True))


def peak():
    """Largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def data(n, batch=()):
    """Predictions [*batch, n, m] in float32 and labels [n]."""
    import jax

    logits = 2 * jax.random.normal(jax.random.key(0), (*batch, n, CLASSES))
    q = jax.nn.softmax(logits)
    values = q.reshape(-1, n, CLASSES)[0]
    return q, jax.random.categorical(jax.random.key(1), jax.numpy.log(values), axis=1)


def regularized(q):
    """K + n ridge I, as CKCE factors it."""
    import jax.numpy as jnp

    from jaxcal.ckce import simplex_kernel
    from jaxcal.ckce.kernels import median_bandwidth
    from jaxcal.kernels.grams import square_gram

    n = q.shape[0]
    gram = square_gram(simplex_kernel(median_bandwidth(q)), q)
    return gram + n * n**-0.25 * jnp.eye(n, dtype=q.dtype)


def value(q, y):
    from jaxcal.ckce import ckce

    return ckce(q, y).estimate


def part_exact(n):
    """Everything `ckce` does, the Gram matrix included, over one Cholesky of the same matrix."""
    import jax
    import jax.numpy as jnp

    q, y = data(n)
    a = jax.block_until_ready(jax.jit(regularized)(q))
    factor = jax.jit(jnp.linalg.cholesky)
    ours, theirs = by_turns((value, q, y), (factor, a), 5)
    return {"ckce over Cholesky": ours / theirs, "peak MiB": peak()}


def part_low_rank(n):
    """Peak memory above that of the data and of JAX itself; the error is against rank 512."""
    import jax

    from jaxcal.ckce import LowRank, ckce

    q, y = jax.block_until_ready(data(n))
    before = peak()
    estimate = ckce(q, y, solver=LowRank(128, tile=1024))
    jax.block_until_ready(estimate)
    above = peak() - before
    finer = ckce(q, y, solver=LowRank(512, tile=1024))
    return {
        "MiB above the data": above,
        "of which results [n]": 2 * n * 4 / 2**20,
        "relative error": abs(float(estimate.estimate / finer.estimate) - 1),
        "share left out": float(estimate.approximation.error),
    }


def part_conjugate(n):
    """Steps to the exact value without a Gram matrix."""
    from reference.ckce_solvers import ConjugateGradients

    from jaxcal.ckce import ckce

    q, y = data(n)
    before = peak()
    estimate = ckce(q, y, solver=ConjugateGradients(tolerance=1e-5))
    exact = float(estimate.estimate)
    return {"steps": int(estimate.approximation.size), "MiB above the data": peak() - before} | (
        {"relative error": abs(exact / float(value(q, y)) - 1)} if n <= 8192 else {}
    )


def part_batch(n, batch):
    """Many models by vmap, over as many Cholesky factors of matrices of this size."""
    import jax
    import jax.numpy as jnp

    q, y = data(n, (batch,))
    a = jax.block_until_ready(jax.jit(regularized)(q[0]))
    many = jax.jit(jax.vmap(value, in_axes=(0, None)))
    factor = jax.jit(lambda a: jax.lax.map(lambda s: jnp.linalg.cholesky(a * s)[0, 0], scales))
    scales = jnp.linspace(1, 2, batch)
    ours, theirs = by_turns((many, q, y), (factor, a), 2)
    return {"models over Cholesky factors": ours / theirs, "peak MiB": peak()}


def processor():
    """Processor seconds of this process so far, of all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def part_compare(n):
    """Three models by `compare`, over the time of its products of matrices alone at the rate of one
    product in the same process; the second model is too sure by a temperature of 1.2."""
    import jax
    import jax.numpy as jnp

    import jaxcal
    from jaxcal.ckce.class_comparison import default_rank

    logits = 2 * jax.random.normal(jax.random.key(0), (n, CLASSES))
    labels = jax.random.categorical(jax.random.key(1), logits)
    models = {f"{t}": jax.nn.softmax(t * logits) for t in (1.0, 1.2, 0.9)}
    jax.block_until_ready(models)
    start = processor()
    result = jax.block_until_ready(jaxcal.compare(0, models, labels, measure="ckce"))
    used = processor() - start
    side, times, rank = 2048, 5, default_rank(n, CLASSES)
    matrix = jnp.ones((side, side))
    many = jax.jit(lambda a: jax.lax.fori_loop(0, times, lambda _, b: (a @ b) / side, a))
    jax.block_until_ready(many(matrix))
    start = processor()
    jax.block_until_ready(many(matrix))
    rate = times * side**3 / (processor() - start)
    return {
        "processor seconds a model": used / 3,
        "over 3 n rank^2 multiplications": used / 3 / (3 * n * rank**2 / rate),
        "rank": rank,
        "peak MiB": peak(),
        "the one at 1.2 says": float(result.says.said[1, 0, 1]),
        "where comes true": float(result.says.true[1, 0, 1]),
        "models that may be the best": len(result.best()),
    }


PARTS = {
    "exact, n = 4096": (part_exact, {"n": 4096}),
    "low rank, n = 10000": (part_low_rank, {"n": 10_000}),
    "low rank, n = 100000": (part_low_rank, {"n": 100_000}),
    "conjugate gradients, n = 8192": (part_conjugate, {"n": 8192}),
    "200 models x 1000 by vmap": (part_batch, {"n": 1000, "batch": 200}),
    "compare, n = 100000": (part_compare, {"n": 100_000}),
    "compare, n = 1000000": (part_compare, {"n": 1_000_000}),
}
QUICK = {
    "exact, n = 4096": {"n": 200},
    "200 models x 1000 by vmap": {"n": 40, "batch": 3},
    "compare, n = 100000": {"n": 400},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing written")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        function, sizes = PARTS[options.part]
        print(json.dumps(function(**(QUICK[options.part] if options.quick else sizes))))
        return
    rows = []
    for name in QUICK if options.quick else PARTS:
        command = [sys.executable, __file__, "--part", name] + ["--quick"] * options.quick
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name} failed:\n{done.stderr}")
        for quantity, number in json.loads(done.stdout.splitlines()[-1]).items():
            rows.append({"part": name, "quantity": quantity, "value": f"{number:.4g}"})
            print(f"{name:32s} {quantity:30s} {number:10.3g}", flush=True)
    if not options.quick:
        with open(FOLDER / "results.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, ["part", "quantity", "value"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
