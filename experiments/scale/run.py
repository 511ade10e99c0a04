"""Streams of 10^5 to 10^7 rows by one to four workers: seconds, memory, and the same sums.

Each worker is a process that takes its share of the rows in batches of 10,000 and saves its state;
the states are merged. One batch is made once and taken again, so that making data costs nothing.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
CLASSES, SIDE = 10, 2048
MEASURED = (
    "wall_seconds",
    "cpu_seconds",
    "cpu_of_product",
    "first_call_cpu_seconds",
    "mib_at_first",
    "mib_added",
)


@dataclass(frozen=True)
class Config:
    """``cells``: test, rows, workers."""

    cells: tuple[tuple[str, int, int], ...]
    batch: int = 10_000


FULL = Config(
    (
        *(("calibration", n, w) for n, w in ((10**5, 1), (10**6, 1), (10**6, 2), (10**6, 4))),
        ("calibration", 10**7, 1),
        *(("classes", n, w) for n, w in ((10**5, 1), (10**6, 1), (10**6, 2), (10**7, 1))),
        *(("table", n, w) for n, w in ((10**5, 1), (10**6, 1), (10**7, 1))),
        *(("comparison", n, w) for n, w in ((10**5, 1), (10**6, 1), (10**6, 2))),
    )
)
QUICK = Config((("classes", 400, 2), ("comparison", 400, 1), ("table", 400, 1)), batch=100)


def study(config: Config) -> runner.Study:
    """Rows, seconds, memory and workers of streams."""
    cells = [
        {"test": test, "rows": rows, "workers": workers, "batch": config.batch}
        for test, rows, workers in config.cells
    ]
    return runner.Study(cells, MEASURED, measured, seed=20261124)


def measured(cell: Mapping[str, Any], key: Any) -> dict[str, float]:
    """All workers at once; seconds are of the slowest, processor seconds of all together."""
    from jaxcal.dce import Table
    from jaxcal.streaming import StreamState

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--worker", json.dumps(dict(cell)), folder]
        running = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True)
            for rank in range(cell["workers"])
        ]
        outputs = [process.communicate()[0] for process in running]
        if any(process.returncode for process in running):
            raise RuntimeError(f"a worker of {cell} failed")
        numbers = [json.loads(output.splitlines()[-1]) for output in outputs]
        files = [Path(folder) / f"{rank}.npz" for rank in range(cell["workers"])]
        if cell["test"] == "table":
            import jaxcal

            states = [jaxcal.load(file) for file in files]
            total = reduce(Table.merge, states)
        else:
            total = reduce(StreamState.merge, map(StreamState.load, files))
        assert total.n == cell["rows"]
    add = {name: sum(each[name] for each in numbers) for name in numbers[0]}
    worst = {name: max(each[name] for each in numbers) for name in numbers[0]}
    mean = {"cpu_of_product": add["cpu_of_product"] / len(numbers)}
    return worst | {"cpu_seconds": add["cpu_seconds"]} | mean


def worker(cell: Mapping[str, Any], folder: Path, rank: int) -> None:
    """The share of one worker."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import jaxcal
    from jaxcal.dce import Table
    from jaxcal.streaming import StreamedTest

    random, size = np.random.default_rng(0), cell["batch"]
    rows = cell["rows"] // cell["workers"]
    if cell["test"] == "calibration":
        centers, noise = random.normal(size=(2, size, 2)).astype(np.float32)
        batch = jaxcal.Unnormalized(gaussian, centers), centers + noise
        test = StreamedTest.calibration(0, *batch)
    elif cell["test"] in ("classes", "comparison"):
        p = random.dirichlet(np.ones(CLASSES), size).astype(np.float32)
        labels = (random.random(size)[:, None] > np.cumsum(p, 1)).sum(1).clip(max=CLASSES - 1)
        batch = p, labels
        if cell["test"] == "comparison":
            models = {"right": p, "hedging": 0.8 * p + 0.2 / CLASSES, "flat": 0 * p + 1 / CLASSES}
            batch = models, labels
            test = StreamedTest.comparison(0, *batch)
        else:
            test = StreamedTest.skce(0, *batch, features=jaxcal.RandomFeatures(1, 20))
    else:
        p = random.random(size)
        batch, test = (p, random.random(size) < p), None

    def passed(count: int) -> Any:
        if test is None:
            return reduce(Table.merge, (Table.of(*batch) for _ in range(count)))
        return test.run((batch for _ in range(count)), first=rank * rows)

    square = jnp.ones((SIDE, SIDE), jnp.float32)
    jax.block_until_ready(square @ square)
    start = time.process_time()
    passed(2)
    first = time.process_time() - start
    before = peak()
    start, wall = time.process_time(), time.time()
    state = passed(rows // size)
    cpu, seconds = time.process_time() - start, time.time() - wall
    added = peak() - before
    start = time.process_time()
    jax.block_until_ready(square @ square)
    product = time.process_time() - start
    state.save(folder / f"{rank}.npz")
    numbers = (seconds, cpu, product, first, before, added)
    print(json.dumps(dict(zip(MEASURED, numbers, strict=True))))


def gaussian(center: Any, y: Any) -> Any:
    """Log density of a forecast in two dimensions, without its constant."""
    return -((y - center) ** 2).sum() / 2


def peak() -> float:
    """Most memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: Sequence[str] | None = None) -> None:
    """The study, or one worker of it."""
    runner.command_line(study, FULL, QUICK, FOLDER, arguments)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(json.loads(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
