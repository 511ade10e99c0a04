"""Passes that are killed, disks that are full, workers that are lost: no row is lost or twice."""

import errno
import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from jaxcal.__main__ import main
from jaxcal.streaming import StreamState

pytest.importorskip("pyarrow")

RANDOM = np.random.default_rng(0)
N = 120
P = RANDOM.dirichlet(np.ones(3), N)
LABELS = (RANDOM.random(N)[:, None] > np.cumsum(P, 1)).sum(1)
SMALL = ["--batch", "10", "--first", "40", "--features", "6"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "shards").mkdir()
    for k, rows in enumerate((slice(0, 50), slice(50, N))):
        np.savez(tmp_path / "shards" / f"{k}.npz", targets=LABELS[rows], probabilities=P[rows])
    return tmp_path / "shards"


def checked(folder, tmp_path, *options):
    file = tmp_path / "numbers.json"
    assert main(["check", str(folder), *SMALL, *options, "--json", str(file)]) == 0
    return json.loads(file.read_text())


KILLED = {  # before which call of what: the state is saved every ten batches, and the pass has 12
    "fit": ("jaxcal.streaming.passes._test", 1),
    "update": ("jaxcal.streaming.streamed.StreamedTest._update", 12),
    "save": ("os.fsync", 2),
    "replace": ("os.replace", 2),
    "merge": ("jaxcal.streaming.state.StreamState.merge", 12),
}


@pytest.mark.slow
@pytest.mark.parametrize("stage", KILLED)
def test_a_killed_pass_goes_on_and_each_row_counts_once(folder, tmp_path, stage):
    place, call = KILLED[stage]
    state = tmp_path / "state.npz"
    arguments = ["check", str(folder), *SMALL, "--state", str(state)]
    program = f"""
    import os, pkgutil, signal
    from jaxcal.__main__ import main
    from jaxcal.streaming import passes
    place, _, name = {place!r}.rpartition(".")
    owner, calls = pkgutil.resolve_name(place), []
    usual = getattr(owner, name)
    def killed(*args, **options):
        calls.append(1)
        if len(calls) == {call}:
            os.kill(os.getpid(), signal.SIGKILL)
        return usual(*args, **options)
    setattr(owner, name, killed)
    main({arguments!r})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == -9, done.stderr
    if stage in ("save", "replace", "update", "merge"):
        assert StreamState.load(state).n == 100
    else:
        assert not state.exists()
    goes_on = checked(folder, tmp_path, "--state", str(state))
    whole = checked(folder, tmp_path)
    assert goes_on["n"] == whole["n"] == N
    np.testing.assert_allclose(goes_on["p_value"], whole["p_value"], rtol=1e-9)


def test_a_full_disk_leaves_the_last_state(folder, tmp_path, monkeypatch, capsys):
    whole, state = checked(folder, tmp_path), tmp_path / "state.npz"
    checked(folder, tmp_path, "--state", str(state))
    before = state.read_bytes()
    np.savez(folder / "2.npz", targets=LABELS[:9], probabilities=P[:9])

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert main(["check", str(folder), *SMALL, "--state", str(state)]) == 2
    assert f"{state}: No space left on device" in capsys.readouterr().err
    assert state.read_bytes() == before
    assert [path.name for path in tmp_path.glob("state*")] == ["state.npz"]
    more = checked(folder, tmp_path, "--state", str(state))
    assert (whole["n"], more["n"]) == (N, N + 9)


DASK = """
import functools, json, os, signal, sys
from pathlib import Path

import numpy as np

from jaxcal import RandomFeatures
from jaxcal.streaming import StreamedTest, StreamState

MARK, ROWS, SIZE = Path(sys.argv[1]), 800, 100


def share(first):
    p = np.random.default_rng(first).dirichlet(np.ones(2), SIZE)
    return p, (np.random.default_rng(first + 1).random(SIZE) < p[:, 1]).astype(int)


def worker(test, first, mark=None):
    if first == 300 and mark is not None and not mark.exists():  # in the middle, once
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return test.update(test.empty(), *share(first), first=first)


def result(test, states):
    total = functools.reduce(StreamState.merge, states)
    result = test.result(total, rows=ROWS)
    return [result.p_value, result.estimate, result.n]


if __name__ == "__main__":
    from dask.distributed import Client, LocalCluster

    test = StreamedTest.skce(0, *share(0), features=RandomFeatures(1, 6))
    firsts = range(0, ROWS, SIZE)
    cluster = LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client:
        killed = result(test, client.gather([client.submit(worker, test, k, MARK) for k in firsts]))
    whole = result(test, [worker(test, first) for first in firsts])
    print(json.dumps([killed, whole, MARK.exists()]))
"""


@pytest.mark.optional("distributed")
def test_a_dask_worker_that_is_killed_in_the_middle_loses_nothing(tmp_path):
    """One of 4: the scheduler gives its share to another, and the result is that of the whole."""
    script = tmp_path / "shares.py"
    script.write_text(DASK)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "mark")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    killed, whole, was_killed = json.loads(done.stdout.splitlines()[-1])
    assert was_killed
    assert whole[2] == 800
    np.testing.assert_allclose(killed, whole, rtol=1e-5)
