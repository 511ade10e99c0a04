"""Strict in tests: float64, no silent promotion of ranks, fixed keys, checked annotations."""

import os
import tempfile
from pathlib import Path

# LAPACK's threads wait for each other by spinning: on busy cores small decompositions, of which
# tests make many, take a hundred times longer. Read when jax is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# every program, however small, is compiled once a machine: reading it takes a quarter of the time.
# Whoever runs the tests may name the folder
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "jaxcal-tests")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import hypothesis
import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "allow")

hypothesis.settings.register_profile("jaxcal", derandomize=True, deadline=None, max_examples=30)
hypothesis.settings.load_profile("jaxcal")


def pytest_configure(config):
    # most tests run a program once, so that compiling it is what they cost: a quarter less without
    # optimization. Slow tests run theirs on many data sets, and as users do
    jax.config.update("jax_disable_most_optimizations", config.option.markexpr == "not slow")


@pytest.fixture(scope="module", autouse=True)
def programs_do_not_pile_up():
    """Linux grants a process 65,530 memory maps, and every compiled program keeps several."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 30_000:
        jax.clear_caches()


@pytest.fixture
def key():
    return jax.random.key(20230721)
