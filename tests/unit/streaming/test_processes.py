"""Many processes of one JAX runtime over loopback: the same numbers as one, or an error."""

import json
from pathlib import Path

import many_devices
import numpy as np
import pytest

pytestmark = pytest.mark.slow

DATA = """
    import json, os, sys
    import jax
    import numpy as np
    from jax.sharding import Mesh
    from jaxcal import RandomFeatures, Scores, kccsd_test
    from jaxcal.divergences import Vectors
    from jaxcal.nulls import Eigenvalues, Wild
    from jaxcal.streaming import StreamedTest

    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 400)
    labels = (rng.random(400)[:, None] > np.cumsum(p, 1)).sum(1)
    ys, phi = rng.normal(size=(2, 101, 2))
"""
ENGINES = """
    def engines(mesh):
        numbers = []
        for null, features in [
            (Wild(19), None),
            (Eigenvalues(8), RandomFeatures(1, 10)),
        ]:
            result = kccsd_test(
                0, Scores(-ys), ys, divergence=Vectors(phi), null=null, features=features,
                mesh=mesh, tile=16)
            parts = result.estimate, result.p_value, result.standard_error, *result.contributions
            numbers += [float(part) for part in parts]
        return numbers
"""
STREAM = """
    test = StreamedTest.skce(0, p[:100], labels[:100], features=RandomFeatures(1, 10))

    def streamed(state):
        result = test.result(state)
        return [result.estimate, result.p_value, result.standard_error, result.n]
"""


def test_a_mesh_of_two_devices_has_the_numbers_of_one():
    program = f"""{DATA}{ENGINES}
    devices = np.array(jax.devices())
    json.dump([engines(None), engines(Mesh(devices, ("rows",)))], sys.stdout)
    """
    alone, shared = many_devices.run_on(2, program)
    np.testing.assert_allclose(shared, alone, rtol=1e-9, atol=1e-12)


def same_in_all_processes(count, program):
    """What one process found alone is what each of them found with the others."""
    ends = many_devices.run_processes(count, program)
    for done in ends:
        assert done.returncode == 0, done.stderr[-3000:]
    numbers = [json.loads(done.stdout.splitlines()[-1]) for done in ends]
    alone = numbers[0]["alone"]
    for of_process in numbers:
        np.testing.assert_allclose(of_process["shared"], alone, rtol=1e-9, atol=1e-12)
    return ends


def test_two_processes_that_share_a_mesh_have_the_numbers_of_one():
    program = f"""{DATA}{ENGINES}
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    shared = engines(mesh)  # first: JAX leaves the processes 30 seconds to connect
    print(json.dumps(dict(alone=engines(None) if RANK == 0 else None, shared=shared)))
    """
    same_in_all_processes(2, program)


@pytest.mark.parametrize(("count", "apart"), [(2, 35), (4, 0)])
def test_processes_that_share_a_stream_have_the_numbers_of_one(count, apart):
    """However long after the others one ends: JAX leaves 30 seconds to connect, at the fit."""
    program = f"""{DATA}{STREAM}
    import time
    from jaxcal.streaming import state as processes
    processes.LATE = 8.0
    alone = streamed(test.run([(p, labels)])) if RANK == 0 else None
    mine = test.run([(p[RANK::{count}], labels[RANK::{count}])])
    time.sleep({apart} * (RANK == 1))
    print(json.dumps(dict(alone=alone, shared=streamed(mine.over_processes()))))
    """
    first, *_ = same_in_all_processes(count, program)
    said = [line for line in first.stderr.splitlines() if line.startswith("jaxcal: ")]
    if apart:
        assert said[0] == "jaxcal: waiting for process 1 of 0 .. 1 since 8 s"
        assert len(said) >= 2


def test_a_process_that_ends_is_named_at_once_without_a_result():
    program = f"""{DATA}{STREAM}
    import time
    state = test.run([(p[RANK::2], labels[RANK::2])])
    if RANK == 1:
        time.sleep(1)
        os._exit(9)
    start = time.time()
    try:
        print(json.dumps(streamed(state.over_processes())))
    except RuntimeError as error:
        print(error, time.time() - start, sep="\\n", file=sys.stderr, flush=True)
        os._exit(1)
    """
    first, second = many_devices.run_processes(2, program)
    assert (first.returncode, second.returncode) == (1, 9), first.stderr
    said, waited = first.stderr.splitlines()
    assert "a process has ended" in said
    assert "not here: process 1 of 0 .. 1" in said
    assert float(waited) < 15
    assert all(line.startswith("[Gloo]") for line in first.stdout.splitlines())


def test_processes_with_different_tests_are_an_error():
    program = f"""{DATA}
    test = StreamedTest.skce(RANK, p[RANK:100], labels[RANK:100], features=RandomFeatures(1, 10))
    test.empty().over_processes()
    """
    for done in many_devices.run_processes(2, program):
        assert done.returncode != 0
        assert "the processes have fitted different tests" in done.stderr


def test_the_launcher_tests_a_folder_of_shards(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 600)
    for k in range(3):
        rows = slice(200 * k, 200 * k + 200)
        table = pa.table({"probabilities": list(p[rows]), "targets": np.zeros(200, int)})
        pq.write_table(table, tmp_path / f"{k}.parquet")
    launcher = Path(__file__).parents[3] / "experiments" / "processes" / "stream.py"
    program = f"""
    import runpy, sys
    jax.distributed.initialize = lambda *args, **options: None  # done above
    folder, states = {str(tmp_path)!r}, {str(tmp_path.parent)!r}
    sys.argv = ["stream.py", folder, "--batch", "200", "--states", states]
    runpy.run_path({str(launcher)!r}, run_name="__main__")
    from jaxcal.streaming import Shards, StreamedTest
    state = StreamedTest.table().run(Shards(folder, 200, share=(1, 1 + RANK)))
    try:
        state.over_processes()
    except ValueError as error:
        print(error)
    """
    first, second = many_devices.run_processes(2, program)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert "SKCE test, n = 600" in first.stdout
    assert "rejected" in first.stdout
    assert "SKCE" not in second.stdout
    for done in (first, second):  # the first has read all shards, the second one of them
        assert "is in both states and would count twice" in done.stdout
