"""Parts about large n: linear time, streams, processes, and draws that share additions."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench_tools import DRAWS, D, best, data, gaussian, jaxcal_test, peak, product_rate

FEATURES = 100
LENGTH = FEATURES * D  # of the vector of an observation
Numbers = dict[str, float]


def _shares(n: int, seconds: float, rate: float) -> Numbers:
    """Of the covariance, n p^2 / 2 multiplications with additions in one triangle, n p^2 in all."""
    share = n * LENGTH**2 / seconds / rate
    return {"share of product rate, one triangle": share, "both triangles": 2 * share}


def linear_test(key: Any, x: Any, y: Any) -> Any:
    """The linear-time test of KCCSD with 100 features."""
    from jaxcal import RandomFeatures, Unnormalized, kccsd_test, nulls

    features, null = RandomFeatures(1, FEATURES), nulls.Eigenvalues()
    return kccsd_test(key, Unnormalized(gaussian, x), y, features=features, null=null).p_value


def part_linear(quick: bool, n: int) -> Numbers:
    """A linear-time test of arrays in memory: the arrays and 50 numbers an observation besides."""
    import jax

    key = jax.random.key(0)
    return _by_size(quick, n, lambda size: best(linear_test, key, *data(size), repeats=2))


def part_streamed(quick: bool, n: int) -> Numbers:
    """The same in one pass over batches that are made on the way, as a file would give them."""
    import jax

    from jaxcal import RandomFeatures, Unnormalized
    from jaxcal.streaming import StreamedTest

    size = max(n // 50, 100)
    x, y = data(size)
    batch = Unnormalized(gaussian, x), y
    test = StreamedTest.kccsd(jax.random.key(0), *batch, features=RandomFeatures(1, FEATURES))

    def seconds(observations: int) -> float:
        def batches() -> Iterator[Any]:
            yield from (batch for _ in range(observations // size))

        return best(lambda: test.result(test.run(batches())).p_value, repeats=2)

    return _by_size(quick, n, seconds)


def _by_size(quick: bool, n: int, seconds: Callable[[int], float]) -> Numbers:
    """Time and memory of a tenth of n observations and of all."""
    tenth = seconds(n // 10)
    before = peak()
    whole = seconds(n)
    memory = peak()
    return {
        **_shares(n, whole, product_rate(quick)),
        "times a tenth of n": whole / tenth,
        "peak MiB at a tenth": before,
        "peak MiB": memory,
    }


def part_hadamard(quick: bool, n: int) -> Numbers:
    """Draws that share additions beside independent ones, by turns."""
    import jax

    from jaxcal import Unnormalized, kccsd_test, nulls

    x, y = data(n)
    key, model = jax.random.key(0), Unnormalized(gaussian, x)

    def seconds(null: Any) -> float:
        return best(lambda: kccsd_test(key, model, y, null=null).p_value, repeats=2)

    pairs = [(seconds(nulls.Wild(DRAWS)), seconds(nulls.HadamardWild(DRAWS))) for _ in range(2)]
    independent, shared = (min(column) for column in zip(*pairs, strict=True))
    return {
        "times faster than Wild": independent / shared,
        "share of product rate Wild would need": n**2 * DRAWS / shared / product_rate(quick),
    }


def part_model(quick: bool, sizes: tuple[int, ...], rows: int) -> Numbers:
    """What the cost model takes from the machine, and the times that it should foretell, all in
    processor time: that of one core."""
    import jax
    import jax.numpy as jnp

    from jaxcal import Unnormalized, kccsd

    def seconds(function: Any, *args: Any) -> float:
        return best(function, *args, processor=True)

    key, array = jax.random.key(0), jnp.ones(2**12 if quick else 2**26, jnp.float32)
    added = jax.jit(lambda a: jax.lax.fori_loop(0, 8, lambda _, a: a + 1, a))
    numbers = {
        "multiplications a second, product": product_rate(quick, processor=True) / 2,
        "bytes a second, memory": 16 * array.nbytes / seconds(added, array),
    }
    for n in sizes:
        numbers[f"seconds, n = {n}"] = seconds(jaxcal_test, key, *data(n))
    x, y = data(sizes[-1])
    alone = seconds(lambda: kccsd(key, Unnormalized(gaussian, x), y).unbiased)
    draws = numbers[f"seconds, n = {sizes[-1]}"] - alone
    return numbers | {
        f"seconds, linear time, n = {rows}": seconds(linear_test, key, *data(rows)),
        "multiplications an entry": DRAWS * alone / draws,
    }


def part_processes(quick: bool, pairs: int, rows: int) -> Numbers:
    """Two processes with a core each beside one process with one core; alone at the smoke size."""
    two = _in_processes(2, pairs, rows)
    one = two if quick else _in_processes(1, pairs, rows)
    return {f"times faster, {name}": one[name] / two[name] for name in one}


def _in_processes(count: int, pairs: int, rows: int) -> Numbers:
    """Seconds of both engines in ``count`` processes that share a mesh, as process 0 saw them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, str(Path(__file__)), address, str(count)]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(pairs), str(rows)], stdout=subprocess.PIPE, text=True
        )
        for rank in range(count)
    ]
    outputs = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        sys.exit("a process of the benchmark failed")
    return json.loads(outputs[0].splitlines()[-1])


def one_process(address: str, count: int, rank: int, pairs: int, rows: int) -> None:
    """One of the processes, on a core of its own; prints its times."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})  # before JAX counts the cores
    import jax
    import numpy as np
    from jax.sharding import Mesh

    jax.distributed.initialize(address, count, rank)
    import jaxcal

    mesh, key = Mesh(np.array(jax.devices()), ("rows",)), jax.random.key(0)

    def quadratic(x: Any, y: Any) -> Any:
        model, null = jaxcal.Unnormalized(gaussian, x), jaxcal.nulls.Wild(DRAWS)
        return jaxcal.kccsd_test(key, model, y, null=null, mesh=mesh).p_value

    def linear(x: Any, y: Any) -> Any:
        model, null = jaxcal.Unnormalized(gaussian, x), jaxcal.nulls.Eigenvalues()
        features = jaxcal.RandomFeatures(1, FEATURES)
        return jaxcal.kccsd_test(key, model, y, features=features, null=null, mesh=mesh).p_value

    times = {
        f"all pairs, n = {pairs}": best(quadratic, *data(pairs)),
        f"linear time, n = {rows}": best(linear, *data(rows)),
    }
    print(json.dumps(times))


if __name__ == "__main__":
    one_process(sys.argv[1], *map(int, sys.argv[2:]))
