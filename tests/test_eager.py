"""Operations outside of programs have the bits, types and shapes that their programs have."""

import eager
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import pjit

SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e308, 1.5, -2.25, 1 / 3, 1e-160]
SMALL = [1e-310, -1e-310, 5e-324, 1e-40, -1e-45]  # no normal numbers of one type or both
UNARY = {
    "abs": jnp.abs,
    "negative": jnp.negative,
    "sqrt": jnp.sqrt,
    "square": lambda x: x**2,
    "isfinite": jnp.isfinite,
    "isnan": jnp.isnan,
    "single": lambda x: x.astype(jnp.float32),
    "double": lambda x: x.astype(jnp.float64),
    "bool": lambda x: x.astype(bool),
    "a third": lambda x: x / 3,
    "inverse": lambda x: 1 / x,
    "twice": lambda x: 2 * x,
    "from one": lambda x: 1 - x,
    "where": lambda x: jnp.where(x > 1, x, 0),
    "one": lambda x: x[3],
    "last": lambda x: x[-1],
    "slice": lambda x: x[2:5, ::2],
    "columns": lambda x: x[:, 1:2],
    "beyond": lambda x: jax.lax.dynamic_slice(x, (7, 7), (2, 3)),
    "flip": lambda x: x[::-1],
    "transpose": jnp.transpose,
    "ravel": jnp.ravel,
    "new axis": lambda x: x[:, None],
    "stack": lambda x: jnp.stack([x, x]),
    "concatenate": lambda x: jnp.concatenate([x, x], axis=1),
    "repeat": lambda x: jnp.broadcast_to(x, (2, *x.shape)),
    "arange": lambda x: jnp.arange(7) + x.ndim,
}
BINARY = {
    "add": jnp.add,
    "subtract": jnp.subtract,
    "multiply": jnp.multiply,
    "divide": jnp.true_divide,
    "less": jnp.less,
    "less or equal": jnp.less_equal,
    "greater": jnp.greater,
    "greater or equal": jnp.greater_equal,
    "equal": jnp.equal,
    "not equal": jnp.not_equal,
    "both": lambda x, y: (x > 0) & (y > 0),
}


def check(function, *xs):
    program = jax.jit(function).lower(*xs).compile()
    one, other = function(*xs), program(*xs)
    assert (one.shape, one.dtype, one.weak_type) == (other.shape, other.dtype, other.weak_type)
    one, other = np.asarray(one), np.asarray(other)
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(np.signbit(one) & (one == one), np.signbit(other) & (one == one))


def square(dtype):
    """Every pair of numbers as an entry of a matrix, and of its transpose."""
    numbers = np.array(SPECIAL + SMALL)
    if np.dtype(dtype).kind != "f":
        numbers = np.arange(-7, 8) * 2**28
    return jnp.asarray(np.broadcast_to(numbers.astype(dtype), (15, 15)).copy())


@pytest.fixture(autouse=True)
def numpy_without_warnings():
    with np.errstate(all="ignore"):
        yield


@pytest.mark.skipif(
    getattr(pjit, "_pjit_call_impl_python", check).__module__ != "eager",
    reason="operations are compiled",
)
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int32"])
def test_operations_have_the_bits_of_their_programs(dtype):
    x = square(dtype)
    for name, function in UNARY.items():
        if name in ("sqrt", "a third", "inverse") and np.dtype(dtype).kind != "f":
            continue  # which are two operations
        check(function, x)
    for function in BINARY.values():
        check(function, x, x.T)
    if np.dtype(dtype).kind == "f":
        x = jnp.asarray(np.random.default_rng(0).normal(size=(40, 3)).astype(dtype))
        for y in (x[:1], x[:, :1], x[3, 2], x):
            check(jnp.true_divide, x, y)


def test_what_is_rounded_twice_and_what_numpy_rounds_otherwise_is_compiled():
    x = jnp.ones(3)
    yes = [lambda x: x + x, lambda x: x[::-1], lambda x: x * 2.0]
    no = [lambda x: x * x + x, jnp.exp, jnp.sum, lambda x: x**3, lambda x: x @ x]
    for functions, expected in ((yes, True), (no, False)):
        for function in functions:
            jaxpr = jax.make_jaxpr(function)(x).jaxpr
            assert eager.moves_or_rounds_once(jaxpr) is expected


def test_a_program_with_a_place_or_a_donated_argument_is_compiled():
    told = {"in_shardings": (eager.UNSPECIFIED,), "out_shardings": (eager.UNSPECIFIED,)}
    told |= {"donated_invars": (False,), "compiler_options_kvs": ()}
    assert not eager.special(**told)
    there = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    for name, value in {
        "in_shardings": (there,),
        "out_shardings": (there,),
        "donated_invars": (True,),
        "compiler_options_kvs": (("xla_backend_optimization_level", 1),),
    }.items():
        assert eager.special(**told | {name: value})
