"""Seconds and memory of large tests of posteriors; writes scale.csv.

    python experiments/sbi/scale.py [--pairs 10000] [--posteriors 1000000]

The first row tests 10,000 pairs of a 10-parameter posterior whose scores are known: KCCSD with 500
wild bootstrap draws and the diagnosis, compilation included in the first call. The second takes
the scores of a million unnormalized posteriors (a network of 64 hidden units) at their own
parameter and at 4 base points, in chunks. Each runs in a fresh process; memory is the largest
resident set above that before the call, results included.
"""

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent


def peak() -> float:
    """Largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_of_pairs(n: int) -> dict:
    import jax

    from jaxcal import Scores, kccsd_test, sbi

    d, m = 10, 10
    keys = jax.random.split(jax.random.key(0), 3)
    thetas = jax.random.normal(keys[0], (n, d))
    xs = thetas + jax.random.normal(keys[1], (n, d))
    nodes = jax.random.normal(keys[2], (m, d))
    scores = Scores(xs - 2 * thetas, xs[:, None] - 2 * nodes, nodes)
    pairs = sbi.score_pairs(keys[0], scores, thetas, xs)
    jax.block_until_ready(jax.tree.leaves(pairs))
    before = peak()

    def run():
        result = kccsd_test(keys[1], pairs.scores, pairs.thetas, coordinates=True)
        return jax.block_until_ready(result.p_value)

    return measured(run, before) | {"what": f"test of {n} pairs, {d} parameters"}


def scores_of_posteriors(n: int) -> dict:
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from jaxcal.sbi.posteriors import chunked_scores

    class Energy(eqx.Module):
        net: eqx.nn.MLP

        def __call__(self, theta, x):
            return self.net(jnp.concatenate([theta, x]))[0] - jnp.sum(theta**2)

    keys = jax.random.split(jax.random.key(0), 4)
    energy = Energy(eqx.nn.MLP(5, 1, 64, 2, jnp.tanh, key=keys[3]))
    thetas, xs = jax.random.normal(keys[0], (n, 2)), jax.random.normal(keys[1], (n, 3))
    nodes = jax.random.normal(keys[2], (4, 2))
    jax.block_until_ready((thetas, xs, nodes))
    before = peak()

    def run():
        scores = chunked_scores(energy, thetas, xs, nodes)
        return jax.block_until_ready((scores.at_targets, scores.at_nodes))

    return measured(run, before) | {"what": f"scores of {n} posteriors at 5 points"}


def measured(run, before: float) -> dict:
    """A first call with its compilation, then another."""
    start, busy = time.perf_counter(), time.process_time()
    run()
    first, cpu = time.perf_counter() - start, time.process_time() - busy
    start = time.perf_counter()
    run()
    return {
        "seconds_first": round(first, 2),
        "cpu_seconds_first": round(cpu, 2),
        "seconds_again": round(time.perf_counter() - start, 2),
        "mib_above_idle": round(peak() - before),
    }


PARTS = {"pairs": test_of_pairs, "posteriors": scores_of_posteriors}
COLUMNS = ("what", "seconds_first", "cpu_seconds_first", "seconds_again", "mib_above_idle")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--posteriors", type=int, default=1_000_000)
    parser.add_argument("--part", choices=PARTS, help="used by the script itself")
    chosen = parser.parse_args()
    if chosen.part:
        print(json.dumps(PARTS[chosen.part](getattr(chosen, chosen.part))))
        return
    rows = []
    for part in PARTS:
        command = [sys.executable, __file__, "--part", part]
        command += ["--pairs", str(chosen.pairs), "--posteriors", str(chosen.posteriors)]
        done = subprocess.run(command, check=True, capture_output=True, env=dict(os.environ))
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
    with (FOLDER / "scale.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
