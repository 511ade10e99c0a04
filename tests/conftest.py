"""Strict in tests: float64, fixed keys, checked annotations; no silent promotion in `STRICT`."""

import functools
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

# on some machines XLA writes an error for each program it reads from there, and runs it well
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import hypothesis
import jax
import numpyro.distributions
import optax
import pytest

jax.config.update("jax_enable_x64", True)

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


# modules, and all of jaxcal that they reach, in which no rank and no type is promoted silently
STRICT = (
    "test_embeddings",
    "test_models",
    "test_results",
    "test_scores",
    "test_quadratic",
    "test_preconditioners",
    "test_stein",
)
# and modules whose tests that are not slow are such
QUICK_STRICT = (
    "test_measures",
    "test_coverage",
    "test_points",
    "test_quantiles",
    "test_candidates",
    "test_simplex",
    "test_ensembles",
    "test_classes",
)


@pytest.fixture(autouse=True)
def no_silent_promotion(request):
    """A sum of [n, 1] and [n] is an error, not a matrix; and so is one of float32 and float64."""
    slow = request.node.get_closest_marker("slow") is not None
    if request.path.stem not in (STRICT if slow else STRICT + QUICK_STRICT):
        yield
        return
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


def relaxed(function):
    """The same function of a third party, which promotes as jax does by default."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return function(*args, **kwargs)

    return call


def relax_numpyro():
    """numpyro promotes ranks in the densities, samplers and moments of its distributions."""
    todo = [numpyro.distributions.Distribution]
    while todo:
        distribution = todo.pop()
        todo += distribution.__subclasses__()
        for name in ("__init__", "log_prob", "sample", "mean", "variance", "cdf", "icdf"):
            value = vars(distribution).get(name)
            if isinstance(value, property):
                setattr(distribution, name, property(relaxed(value.fget)))
            elif callable(value):
                setattr(distribution, name, relaxed(value))


def relax_optax():
    """optax counts the steps of its search in integers of both sizes."""
    lbfgs = optax.lbfgs

    def relaxed_lbfgs(**options):
        return optax.GradientTransformationExtraArgs(*map(relaxed, lbfgs(**options)))

    optax.lbfgs = relaxed_lbfgs


relax_numpyro()
relax_optax()


@pytest.fixture
def key():
    return jax.random.key(20230721)
