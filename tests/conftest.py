"""Strict in tests: float64, fixed keys, checked annotations, no silent promotion."""

import ctypes
import functools
import gc
import importlib
import math
import os
import tempfile
import warnings
from pathlib import Path

from jaxlib.version import __version_info__

# LAPACK's threads wait for each other by spinning: on busy cores small decompositions, of which
# tests make many, take a hundred times longer. Read when jax is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tests run a program once, so that compiling it is what they cost: a fifth of the time without
# optimization and without the fusion emitters, on one thread as the other worker has work for the
# other core. Level and power studies on 400 data sets do not pay for more either. Whoever sets
# these names decides alone: XLA_FLAGS= JAX_DISABLE_MOST_OPTIMIZATIONS=0 compiles as users do
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if __version_info__ < (0, 11):  # XLA ends the process at a flag that it does not know
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
    )
# an operation need not know which lines of the library it comes from
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
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
import jaxtyping
import numpyro.distributions
import numpyro.infer
import optax
import pytest

jax.config.update("jax_enable_x64", True)

# tracing makes millions of small objects: looking through them seldom is enough
gc.set_threshold(100_000)

hypothesis.settings.register_profile("jaxcal", derandomize=True, deadline=None, max_examples=30)
hypothesis.settings.load_profile("jaxcal")


def pytest_addoption(parser):
    parser.addoption(
        "--no-missing-packages",
        action="store_true",
        help="a package that a test needs and that is not installed is an error, not a skip",
    )
    parser.addoption(
        "--part",
        metavar="K/N",
        help="of slow tests every N-th, from number K on; of notebooks and studies all",
    )


def pytest_configure(config):
    if config.getoption("--no-missing-packages"):
        pytest.importorskip = import_or_fail


SMOKE = "tests/docs/test_notebooks.py", "tests/docs/test_experiments.py"


@pytest.hookimpl(trylast=True)  # -m has chosen
def pytest_collection_modifyitems(config, items):
    if part := config.getoption("--part"):
        first, step = map(int, part.split("/"))
        slow = [item for item in items if item.get_closest_marker("slow")]
        slow = [item for item in slow if not item.nodeid.startswith(SMOKE)]
        left = set(slow).difference(slow[first::step])
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


def import_or_fail(name, **_):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def pytest_runtest_setup(item):
    for marker in item.iter_markers("optional"):
        for name in marker.args:
            pytest.importorskip(name)


@pytest.fixture(scope="module", autouse=True)
def programs_do_not_pile_up():
    """Programs of 10,000 memory maps take 2 GB; Linux grants a process 65,530."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 10_000:
        jax.clear_caches()
        ctypes.CDLL(None).malloc_trim(0)  # else their memory stays with the process


@pytest.fixture
def programs_stay(monkeypatch):
    """For tests that count programs or traces: none is dropped while they run."""
    jax.clear_caches()
    monkeypatch.setattr("jaxcal.numerics.most_maps", lambda: math.inf)


# a sum of [n, 1] and [n] is an error, not a matrix; and so is one of float32 and float64
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


def relaxed(function):
    """The same function of a third party, which promotes as jax does by default."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return function(*args, **kwargs)

    return call


ROOTS = [  # of classes, and their methods that are relaxed
    (
        numpyro.distributions.Distribution,
        ("__init__", "log_prob", "sample", "mean", "variance", "cdf", "icdf"),
    ),
    (numpyro.distributions.constraints.Constraint, ("__init__", "__call__")),
    (numpyro.infer.mcmc.MCMCKernel, ("__init__", "init", "sample")),
]


def relax_numpyro():
    """numpyro promotes ranks and types in its distributions, their supports and its samplers."""
    for root, names in ROOTS:
        todo = [root]
        while todo:
            kind = todo.pop()
            todo += kind.__subclasses__()
            for name in names:
                value = vars(kind).get(name)
                if isinstance(value, property):
                    setattr(kind, name, property(relaxed(value.fget)))
                elif callable(value):
                    setattr(kind, name, relaxed(value))


def relax_optax():
    """optax counts steps in integers of both sizes, and multiplies floats by them."""
    for name in ("adam", "lbfgs"):

        def optimizer(*args, make=getattr(optax, name), **options):
            parts = map(relaxed, make(*args, **options))
            return optax.GradientTransformationExtraArgs(*parts)

        setattr(optax, name, optimizer)


relax_numpyro()
relax_optax()


@pytest.fixture
def free_promotion():
    """For what third parties promote on the way: ott-jax, and numpyro's chains, which are of the
    widest type while the density is of float32."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def key():
    return jax.random.key(20230721)


@pytest.fixture
def as_users_run_it():
    """Annotations are checked in tests only; here the library's own sentences are wanted."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
