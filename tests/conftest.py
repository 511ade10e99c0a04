"""Strict in tests: float64, no silent promotion of ranks, fixed keys, checked annotations."""

import os
import tempfile
from pathlib import Path

# LAPACK's threads wait for each other by spinning: on busy cores small decompositions, of which
# tests make many, take a hundred times longer. Read when jax is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "allow")
# programs that several tests share are compiled once a machine, not once a test
jax.config.update("jax_compilation_cache_dir", str(Path(tempfile.gettempdir()) / "jaxcal-tests"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)

hypothesis.settings.register_profile("jaxcal", derandomize=True, deadline=None, max_examples=30)
hypothesis.settings.load_profile("jaxcal")


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
