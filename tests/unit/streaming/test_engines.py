"""Dask, Ray and Spark with four workers, one killed and one slow: the result of the whole."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

SHARES = """
import functools, json, os, pickle, signal, sys, time
from pathlib import Path

import numpy as np

from jaxcal import RandomFeatures
from jaxcal.streaming import StreamedTest, StreamState

MARK, ROWS, SIZE = Path(sys.argv[1]), 800, 100
FIRSTS = range(0, ROWS, SIZE)


def share(first):
    p = np.random.default_rng(first).dirichlet(np.ones(2), SIZE)
    return p, (np.random.default_rng(first + 1).random(SIZE) < p[:, 1]).astype(int)


def worker(test, first):
    if first == 300 and not MARK.exists():  # in the middle, once
        MARK.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if first == 500:
        time.sleep(1)
    return test.update(test.empty(), *share(first), first=first)


def by_dask(test):
    from dask.distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client:
        return client.gather([client.submit(worker, test, first) for first in FIRSTS])


def by_ray(test):
    import ray

    ray.init(num_cpus=4, include_dashboard=False)
    remote = ray.remote(max_retries=2)(worker)
    return ray.get([remote.remote(test, first) for first in FIRSTS])


def by_spark(test):
    import pandas as pd
    from pyspark.sql import SparkSession

    def states(frames):
        for frame in frames:
            done = [pickle.dumps(worker(test, int(first))) for first in frame["first"]]
            yield pd.DataFrame({"state": done})

    builder = SparkSession.builder.master("local[4, 3]")  # a task may fail twice
    options = {"spark.ui.enabled": "false", "spark.driver.host": "localhost"}
    spark = builder.config(map=options).getOrCreate()
    rows = spark.createDataFrame([(first,) for first in FIRSTS], "first long").repartition(4)
    return [pickle.loads(row.state) for row in rows.mapInPandas(states, "state binary").collect()]


def result(test, states):
    total = functools.reduce(StreamState.merge, states)
    result = test.result(total, rows=ROWS)
    return [result.p_value, result.estimate, result.n]


if __name__ == "__main__":
    test = StreamedTest.skce(0, *share(0), features=RandomFeatures(1, 6))
    killed = result(test, globals()[f"by_{sys.argv[2]}"](test))
    assert MARK.exists()
    print(json.dumps([killed, result(test, [worker(test, first) for first in FIRSTS])]))
"""


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("dask", marks=pytest.mark.optional("distributed")),
        pytest.param("ray", marks=pytest.mark.optional("ray")),
        pytest.param(
            "spark",
            marks=[
                pytest.mark.optional("pyspark"),
                pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
            ],
        ),
    ],
)
def test_a_worker_that_is_killed_in_the_middle_loses_nothing(engine, tmp_path):
    """The engine gives its share to another, waits for the slow one, and the sums are all there."""
    script = tmp_path / "shares.py"
    script.write_text(SHARES)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "mark"), engine],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    killed, whole = json.loads(done.stdout.splitlines()[-1])
    assert whole[2] == 800
    np.testing.assert_allclose(killed, whole, rtol=1e-5)
