"""Odd values for one argument after the other of every public name end in sentences that name it.

The programs are traced and not compiled: results have the shapes that they would have, of ones. In
the first run every argument gets a few of the values, and a call ends at its first program.
"""

import contextlib
import functools
import importlib
import inspect
import itertools
import re
import sys
import warnings

import equinox as eqx
import fuzz_calls
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.core import Tracer
from reference.mixtures import ensemble

import jaxcal
from jaxcal import squared_ce
from jaxcal.results import JudgedResult, Result

N = fuzz_calls.N
SUBPACKAGES = (
    "kernels nulls mcmc skce ucme coverage candidates measures ckce squared_ce "
    "dce divergences plots sbi read whitening streaming moments"
)
ODD = {
    "None": None,
    "text": "text",
    "a class": int,
    "an object": object(),
    "minus one": -1,
    "zero": 0,
    "2.5": 2.5,
    "NaN": float("nan"),
    "inf": float("inf"),
    "True": True,
    "no entries": [],
    "ragged": [[1, 2], [3]],
    "empty": np.zeros(0),
    "no columns": np.zeros((N, 0)),
    "one row": np.ones(1),
    "a row too many": np.ones(N + 1),
    "NaNs": np.full(N, np.nan),
    "complex": np.ones(N, complex),
    "objects": np.array([object()] * N),
    "strings": np.array(["a"] * N),
    "half": np.ones(N, np.float16),
    "big-endian": np.ones(N, ">f8"),
    "masked": np.ma.MaskedArray(np.ones(N), mask=np.arange(N) == 0),
    "a dict": {"a": 1.0},
    "a function": lambda *arguments: arguments,
    "huge": 10**30,
}
# parts of arguments that a message may name in their place
PARTS = [
    "at_targets",
    "at_nodes",
    "nodes",
    "params",
    "samples",
    "log_density",
    "batch_shape",
    "event_shape",
]
OF_TORCH = pytest.param("torch", marks=pytest.mark.optional("torch"))
TABLES = ["", *SUBPACKAGES.split(), "methods", OF_TORCH]
FEW = 3  # odd values an argument in the first run, in turn: every one meets many arguments
PYTHON = re.compile("unexpected keyword|required (positional|keyword)|positional argument")
PROGRAM = type(jax.jit(len)), type(eqx.filter_jit(len))


def public(subpackage):
    if subpackage in ("methods", "torch"):
        yield from (fuzz_calls.METHODS if subpackage == "methods" else fuzz_calls.OF_TORCH).items()
        return
    module = importlib.import_module(f"jaxcal.{subpackage}".rstrip("."))
    homes = {n: str(getattr(o, "__module__", "")) for n, o in vars(module).items()}
    here = [n for n, home in homes.items() if home.startswith(module.__name__)]
    for name in getattr(module, "__all__", here):  # protocols and base classes are not called
        value = getattr(module, name)
        bare = getattr(value, "_is_protocol", False) or inspect.isabstract(value)
        if callable(value) and not bare and name[0] != "_":
            yield name, value


def record(call):
    """Classes of what the library returns: they hold what they are told, and refuse nothing."""
    if not inspect.isclass(call) or issubclass(call, tuple):
        return inspect.isclass(call)
    fields = getattr(call, "__dataclass_fields__", {}).values()
    reads = hasattr(call, "__check_init__") or any("converter" in f.metadata for f in fields)
    written = inspect.unwrap(call.__init__).__code__.co_filename  # "<string>" where generated
    return not reads and written == "<string>"


class PastTheChecks(Exception):
    """A call that reached its first program."""


class Traced:
    """A program that is traced, and returns ones of the shapes that it would return.

    In the first run it is not even traced, and ends the call.
    """

    ends = False

    def __init__(self, program):
        self.program = program
        functools.update_wrapper(self, program)

    def __call__(self, *args, **kwargs):
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((args, kwargs))):
            return self.program(*args, **kwargs)
        if Traced.ends:
            raise PastTheChecks
        shapes = eqx.filter_eval_shape(self.program, *args, **kwargs)
        return jax.tree.map(_ones, shapes, is_leaf=lambda s: isinstance(s, jax.ShapeDtypeStruct))


def _ones(leaf):
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), leaf.shape)
    return jnp.asarray(np.ones(leaf.shape, leaf.dtype))


@pytest.fixture
def traced(monkeypatch):
    for name in SUBPACKAGES.split():
        importlib.import_module(f"jaxcal.{name}")
    stubs = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "jaxcal":
            for attribute, value in list(vars(module).items()):
                if isinstance(value, PROGRAM) and attribute not in fuzz_calls.RUN:
                    stub = stubs.setdefault(id(value), Traced(value))
                    monkeypatch.setattr(module, attribute, stub)
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    Traced.ends = False
    jaxtyping.config.update("jaxtyping_disable", False)


def values(recipe, tables):
    return {name: _made(value, tables) for name, value in recipe.items()}


@functools.cache
def _result(name, subpackage, options):
    tables = fuzz_calls.recipes()
    call = dict(public(subpackage))[name]
    return call(**{**values(tables[subpackage][name], tables), **dict(options)})


def _made(value, tables):
    if not isinstance(value, fuzz_calls.Lazy):
        return value
    result = _result(value.name, value.subpackage, tuple(value.options.items()))
    return result


def explained(error, names):
    said = str(error)
    return isinstance(error, TypeError | ValueError | FileNotFoundError) and bool(
        re.search(rf"(?<!\w)({'|'.join(map(re.escape, [*names, *PARTS]))})(?!\w)", said)
        or PYTHON.search(said)
    )


def test_every_public_name_is_called_or_says_why_not():
    """A name is called below, a record of what the library returns, a protocol, or in `WITHOUT`."""
    listed = set(SUBPACKAGES.split())
    assert {n for n in jaxcal.__all__ if inspect.ismodule(getattr(jaxcal, n))} <= listed
    left_out = set(fuzz_calls.WITHOUT)
    for subpackage in ["", *listed]:
        module = importlib.import_module(f"jaxcal.{subpackage}".rstrip("."))
        called = dict(public(subpackage))
        left_out -= set(called)
        for name in getattr(module, "__all__", []):
            value = getattr(module, name)
            protocol = getattr(value, "_is_protocol", False) or inspect.isabstract(value)
            assert name in called or inspect.ismodule(value) or protocol, f"{subpackage}.{name}"
    assert not left_out, f"no public names: {left_out}"


@pytest.mark.parametrize("odd", [FEW, pytest.param(len(ODD), marks=pytest.mark.slow)])
@pytest.mark.parametrize("subpackage", TABLES)
def test_no_odd_value_ends_in_anothers_error(subpackage, odd, traced):
    tables, in_turn = fuzz_calls.recipes(), itertools.cycle(ODD)
    recipes, unexplained, silent, calls = tables[subpackage], [], [], 0
    for name, call in public(subpackage):
        if record(call) or (name in fuzz_calls.WITHOUT and subpackage != "torch"):
            continue
        parameters = inspect.signature(call).parameters.values()
        plain = {p.name: p.default for p in parameters}
        options = [p.name for p in parameters if p.kind in (1, 3)]
        needs = [p.name for p in parameters if p.kind in (1, 3) and p.default is p.empty]
        assert name in recipes or not needs, f"{name}: no valid call in fuzz_calls.py"
        Traced.ends = False
        valid = values(recipes.get(name, {}), tables)
        plain |= valid
        with warnings.catch_warnings(), contextlib.suppress(PastTheChecks):
            warnings.simplefilter("ignore")
            Traced.ends = odd < len(ODD)
            call(**valid)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for argument in dict.fromkeys([*options, *valid]):
                if argument == "self":
                    continue
                for words in itertools.islice(in_turn, odd):
                    if ODD[words] is plain[argument]:
                        continue  # the valid call once more
                    calls += 1
                    try:
                        if says_nothing(call(**{**valid, argument: ODD[words]})):
                            silent.append(f"{name}({argument}={words})")
                    except PastTheChecks:
                        pass
                    except Exception as error:
                        if not explained(error, [*options, *valid]):
                            unexplained.append(f"{name}({argument}={words}): {error!r:.150}")
    assert not unexplained, f"{len(unexplained)} of {calls}:\n" + "\n".join(unexplained)
    assert not silent, f"NaN without a word in {len(silent)} of {calls}:\n" + "\n".join(silent)


def says_nothing(result):
    """Whether the number of a result is NaN, and neither a reason nor a warning says why."""
    if not isinstance(result, Result):
        return False
    unknown = np.isnan(np.asarray(getattr(result, result._scalar)))
    if isinstance(result, JudgedResult):
        return bool(np.any(unknown & (np.asarray(result.reason) == "")))
    return bool(np.any(unknown)) and not result.warnings()


def masked(*shape):
    return np.ma.MaskedArray(np.ones(shape), mask=np.arange(np.prod(shape)).reshape(shape) == 0)


NAN = np.where(np.arange(N) == 3, np.nan, fuzz_calls.P)
OF_NORMALS = {"key": 0, "predictions": fuzz_calls.UNIVARIATE, "targets": fuzz_calls.P}
MASKED_NORMAL = OF_NORMALS | {"predictions": dist.Normal(masked(N), 1.0)}
PAIRS = {"key": 0, "posterior": fuzz_calls.log_prob, "thetas": fuzz_calls.YS, "xs": fuzz_calls.YS}
BAD = {
    "masked parameters": (
        lambda: jaxcal.skce_test(**MASKED_NORMAL),
        "predictions: the parameters of Normal: 1 of 12 entries are masked",
    ),
    "masked parameters of members": (
        lambda: ensemble([MASKED_NORMAL["predictions"]] * 2),
        r"members\[0\]: the parameters of Normal: 1 of 12",
    ),
    "masked parameters inside": (
        lambda: jaxcal.kccsd_test(0, dist.Normal(masked(N, 2), 1.0).to_event(1), fuzz_calls.YS),
        "predictions: the parameters of Independent: 1 of 24",
    ),
    "no depth": (lambda: jaxcal.mcmc.NUTS(depth=0), "depth: wanted a whole number"),
    "half a step": (lambda: jaxcal.mcmc.HMC(leapfrogs=2.5), "leapfrogs: wanted a whole number"),
    "a share of 2": (lambda: jaxcal.mcmc.MALA(target=2.0), "target: wanted a number in"),
    "a word for a flag": (lambda: jaxcal.mcmc.MALA(adapt="no"), "adapt: wanted True or False"),
    "no draws of a prior": (
        lambda: jaxcal.sbi.score_pairs(**PAIRS, prior=np.zeros((0, 2))),
        "prior: wanted .* got none",
    ),
    "a bandwidth of no length": (lambda: jaxcal.kernels.Gaussian(np.ones(0)), "bandwidth: "),
    "a fraction of a fold": (
        lambda: squared_ce.splits.folds(jnp.asarray(2.5), fuzz_calls.YS, fuzz_calls.Y),
        "folds: wanted a whole number",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_value_is_named(as_users_run_it, case):
    call, words = BAD[case]
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_numbers_and_tables_of_other_libraries_are_read(as_users_run_it):
    rows = np.arange(40.0)
    few, many = (squared_ce.splits.folds(k, rows, rows) for k in (20, jnp.asarray(20)))
    assert [part.tolist() for pair in few for part in pair] == [
        part.tolist() for pair in many for part in pair
    ]
    draws = fuzz_calls.RNG.normal(size=(30, 2))
    frame = pytest.importorskip("pandas").DataFrame(draws)
    by_array, by_frame = (jaxcal.sbi.score_pairs(**PAIRS, prior=prior) for prior in (draws, frame))
    np.testing.assert_array_equal(by_array.scores.nodes, by_frame.scores.nodes)


@pytest.mark.slow
def test_ranks_of_draws_that_are_nan_say_so(as_users_run_it):
    draws = np.where(np.arange(9)[:, None] == 0, np.nan, fuzz_calls.RNG.normal(size=(N, 9, 2)))
    ranks = jaxcal.sbi.check_draws(0, draws, fuzz_calls.YS)
    assert np.isnan(ranks.p_value)
    assert "draws or thetas are NaN" in " ".join(ranks.warnings())
