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
    "fit": ("jaxcal.checking.streamed._test", 1),
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
    from jaxcal.checking import streamed
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


@pytest.mark.slow
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
