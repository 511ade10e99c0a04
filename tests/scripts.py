"""Scripts as users run them, each in a process of its own that begins with the libraries imported.

Importing them is what much of a smoke run costs. A server imports them once and forks, before JAX
has made a thread.
"""

import functools
import gc
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
from pathlib import Path

LIBRARIES = ["equinox", "jax", "matplotlib.figure", "numpyro.infer", "optax", "scipy.stats", "tqdm"]


@functools.cache
def server():
    os.environ.setdefault("MPLBACKEND", "Agg")  # read when matplotlib is imported
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    return context


@functools.cache
def fresh_path():
    """Where a process that begins looks for modules, but for the script's own folder."""
    code = "import json, sys; print(json.dumps(sys.path[1:]))"
    return json.loads(subprocess.check_output([sys.executable, "-c", code]))


def child(script, arguments, variables, path, output):
    os.environ.update(variables)
    sys.argv, sys.path[:] = [script, *arguments], [str(Path(script).parent), *path]
    with open(output, "wb", buffering=0) as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    gc.freeze()  # what the libraries made stays
    gc.set_threshold(100_000)  # as conftest.py has it
    runpy.run_path(script, run_name="__main__")


def smoke(script, *arguments, output, **variables):
    """Run a script without a display; what it said where it failed. ``output``: a file for that."""
    listed = [str(one) for one in arguments]
    what = str(script), listed, variables, fresh_path(), str(output)
    process = server().Process(target=child, args=what)
    process.start()
    process.join()
    assert process.exitcode == 0, Path(output).read_text()
