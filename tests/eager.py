"""Operations outside of programs, in NumPy where it has the same bits, instead of a program each.

A test that writes an equation down calls an operation once for a shape, and compiling that takes a
thousand times longer than NumPy needs: a tenth of the time of all tests. Taken over are programs of
one exactly rounded operation beside those that move numbers; what JAX traces, promotes and refuses
is left to it. Whole programs, and what is called again and again, are compiled.
"""

import weakref

import jax
import numpy as np
from jax._src import array, pjit
from jax._src.sharding_impls import UNSPECIFIED
from jax.extend.core import Literal
from jax.sharding import SingleDeviceSharding

OFTEN = 20  # calls after which compiling is cheaper
PLAIN = {np.dtype(name) for name in ("bool", "int32", "int64", "uint32", "float32", "float64")}


def _broadcast_in_dim(x, *, shape, broadcast_dimensions, sharding):
    sizes = np.ones(len(shape), int)
    sizes[list(broadcast_dimensions)] = x.shape
    return np.broadcast_to(np.reshape(x, sizes), shape)


def _convert(x, *, new_dtype, weak_type, sharding):
    if x.dtype.kind == "f" and np.dtype(new_dtype).kind in "iu":
        raise NotImplementedError  # of numbers that the type does not have
    return _flushed(_flushed(x).astype(new_dtype))


def _dynamic_slice(x, *starts, slice_sizes):
    corner = [
        min(max(int(s), 0), n - k) for s, n, k in zip(starts, x.shape, slice_sizes, strict=True)
    ]
    return x[tuple(slice(s, s + k) for s, k in zip(corner, slice_sizes, strict=True))]


def _slice(x, *, start_indices, limit_indices, strides):
    return x[tuple(map(slice, start_indices, limit_indices, strides or (1,) * x.ndim))]


def _select_n(which, *cases):
    if len(cases) != 2 or which.dtype != bool:
        raise NotImplementedError
    return np.where(which, cases[1], cases[0])


def _iota(*, dtype, shape, dimension, sharding):
    sizes = np.ones(len(shape), int)
    sizes[dimension] = shape[dimension]
    return np.broadcast_to(np.arange(shape[dimension], dtype=dtype).reshape(sizes), shape)


def _reshape(x, *, new_sizes, dimensions, sharding):
    if dimensions is not None:
        raise NotImplementedError
    return np.reshape(x, new_sizes)


MOVED = {
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": lambda *xs, dimension: np.concatenate(xs, dimension),
    "convert_element_type": _convert,
    "copy": lambda x: x,
    "dynamic_slice": _dynamic_slice,
    "iota": _iota,
    "reshape": _reshape,
    "rev": lambda x, *, dimensions: np.flip(x, dimensions),
    "select_n": _select_n,
    "slice": _slice,
    "squeeze": lambda x, *, dimensions: np.squeeze(x, dimensions),
    "stage": lambda x: x,
    "transpose": lambda x, *, permutation: np.transpose(x, permutation),
}


def _flushed(x):
    """XLA takes numbers that are smaller than normal ones for zeros, and returns none."""
    if x.dtype.kind != "f":
        return x
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)


def _arithmetic(function):
    return lambda *xs: _flushed(np.asarray(function(*map(_flushed, xs))))


def _divide(x, y):
    """XLA truncates whole numbers, and inverts once what divides many."""
    if x.dtype.kind != "f" or (x.shape, x.strides) != (y.shape, y.strides):
        raise NotImplementedError
    return _arithmetic(np.divide)(x, y)


def _sqrt(x):
    if x.dtype.kind != "f":
        raise NotImplementedError
    return np.sqrt(x)


ROUNDED = {"abs": np.abs, "div": _divide, "is_finite": np.isfinite, "neg": np.negative}
ROUNDED |= {"and": np.bitwise_and, "not": np.bitwise_not, "or": np.bitwise_or}
ROUNDED |= {
    name: _arithmetic(function)
    for name, function in {
        "add": np.add,
        "eq": np.equal,
        "ge": np.greater_equal,
        "gt": np.greater,
        "le": np.less_equal,
        "lt": np.less,
        "mul": np.multiply,
        "ne": np.not_equal,
        "sqrt": _sqrt,
        "square": np.square,
        "sub": np.subtract,
    }.items()
}


def moves_or_rounds_once(jaxpr):
    """Whether NumPy has the same bits: XLA may make one operation of two, rounded once."""
    names = list(_names(jaxpr))
    return (
        not jaxpr.effects
        and all(name in MOVED or name in ROUNDED for name in names)
        and sum(name in ROUNDED for name in names) <= 1
        and all(v.aval.dtype in PLAIN for v in (*jaxpr.invars, *jaxpr.outvars))
    )


def _name(equation):
    """Of the operation; with options that NumPy does not have, no operation's."""
    name, params = equation.primitive.name, equation.params
    if name == "integer_pow" and params == {"y": 2}:
        return "square"
    told = name in ROUNDED and any(option is not None for option in params.values())
    return f"{name} of {params}" if told else name


def _names(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "jit":
            yield from _names(equation.params["jaxpr"].jaxpr)
        else:
            yield _name(equation)


def _evaluated(jaxpr, consts, args):
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def read(atom):
        value = atom.val if isinstance(atom, Literal) else values[atom]
        return np.asarray(value, atom.aval.dtype)

    for equation in jaxpr.eqns:
        name, params = _name(equation), equation.params
        xs = list(map(read, equation.invars))
        if name == "jit":
            inner = params["jaxpr"]
            outs = _evaluated(inner.jaxpr, inner.consts, xs)
        elif name in MOVED:
            outs = [MOVED[name](*xs, **params)]
        else:
            outs = [ROUNDED[name](*xs)]
        values.update(zip(equation.outvars, outs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _here(x):
    return not isinstance(x, jax.Array) or (
        type(x.sharding) is SingleDeviceSharding and not x.committed
    )


def special(*, in_shardings, out_shardings, donated_invars, compiler_options_kvs, **_):
    placed = any(one is not UNSPECIFIED for one in (*in_shardings, *out_shardings))
    return placed or any(donated_invars) or bool(compiler_options_kvs)


def _array(value, aval):
    """Of the type that the program would return, weak where that is."""
    made = jax.device_put(np.array(value))
    return array.ArrayImpl(aval, made.sharding, made._arrays, committed=False)


def interpret():
    """From now on in this process; where JAX has no such function any more, nothing changes."""
    compiled = getattr(pjit, "_pjit_call_impl_python", None)
    calls, possible = weakref.WeakKeyDictionary(), weakref.WeakKeyDictionary()

    def run(*args, jaxpr, **options):
        inner = jaxpr.jaxpr
        if inner not in possible:
            possible[inner] = len(inner.eqns) < 8 and moves_or_rounds_once(inner)
        if possible[inner] and not special(**options) and all(map(_here, args)):
            calls[inner] = calls.get(inner, 0) + 1
            if calls[inner] < OFTEN:
                try:
                    with np.errstate(all="ignore"):
                        values = _evaluated(inner, jaxpr.consts, args)
                except (NotImplementedError, TypeError):
                    possible[inner] = False
                else:
                    return [*map(_array, values, jaxpr.out_avals)], None, None, []
        return compiled(*args, jaxpr=jaxpr, **options)

    if compiled is not None and compiled.__module__ != __name__:
        pjit._pjit_call_impl_python = run
