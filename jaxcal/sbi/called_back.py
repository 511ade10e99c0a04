"""Call posteriors outside of JAX from JAX programs, by callbacks to Python.

A program receives an integer, by which the callback looks up the posterior in `POSTERIORS`. So
posteriors of equal shape share a compiled program, and no program keeps a posterior alive.
"""

import itertools
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, PyTree

from jaxcal.read import Unnormalized
from jaxcal.typing import Scalar

POSTERIORS: WeakValueDictionary[int, Any] = WeakValueDictionary()
NUMBERS = itertools.count()


@jax.tree_util.register_pytree_node_class
class Handles:
    """Integers [n] that are keys in `POSTERIORS`, one per row. An object with concrete (not traced)
    integers also holds references to the posteriors, which keep them alive."""

    def __init__(self, numbers: Any):
        self.numbers = numbers
        traced = isinstance(numbers, Tracer)
        concrete = () if traced or not isinstance(numbers, jax.Array | np.ndarray) else numbers
        self.kept = [POSTERIORS.get(int(number)) for number in np.unique(np.asarray(concrete))]

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.numbers,), None

    @classmethod
    def tree_unflatten(cls, aux: None, numbers: tuple[Any]) -> "Handles":
        return cls(*numbers)

    def __reduce__(self) -> tuple[type["Handles"], tuple[Any]]:
        return Handles, (self.numbers,)


def called_back(posterior: Any, xs: PyTree) -> Unnormalized:
    """Return the n posteriors given ``xs`` [n, ..]; callbacks to ``posterior`` compute them, by its
    methods ``log_densities``, ``logs_and_scores`` and ``curvature`` (see `TorchPosterior`)."""
    number = next(NUMBERS)
    POSTERIORS[number] = posterior
    n = len(jax.tree.leaves(xs)[0])
    return Unnormalized(_log_density, (Handles(np.full(n, number, np.int32)), xs))


def _log_density(params: tuple[Handles, PyTree], theta: Array) -> Scalar:
    """Return the log density of one theta [d] given one x; ``params``: `Handles` and x.

    Under ``jax.vmap`` one callback computes all rows. ``jax.grad`` calls ``logs_and_scores``, and
    ``jax.jvp`` of the gradient calls ``curvature``.
    """

    @jax.custom_jvp
    def log_density(theta: Array) -> Scalar:
        return _call("log_densities", (theta.dtype, ()), params, theta)

    @jax.custom_jvp
    def both(theta: Array) -> tuple[Scalar, Array]:
        value, slope = _call("logs_and_scores", (theta.dtype, (), theta.shape), params, theta)
        return value, slope

    @log_density.defjvp
    def first(primals: PyTree, tangents: PyTree) -> PyTree:
        value, slope = both(*primals)
        return value, jnp.sum(slope * tangents[0])

    @both.defjvp
    def second(primals: PyTree, tangents: PyTree) -> PyTree:
        value, slope = both(*primals)
        product = _call("curvature", (theta.dtype, theta.shape), params, primals[0], tangents[0])
        return (value, slope), (jnp.sum(slope * tangents[0]), product)

    return log_density(theta)


def _call(
    method: str, shapes: tuple[PyTree, ...], params: tuple[Handles, PyTree], *vectors: Array
) -> PyTree:
    """Return the outputs of the posterior's ``method(theta, x, ..)`` for one row, by a callback.
    ``shapes``: dtype, then the shape of each output. ``vectors``: theta and more arguments, [d]."""
    handles, x = params
    dtype, *wanted = shapes
    outputs = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in wanted)
    leaves, tree = jax.tree.flatten(x)
    events = tuple(jnp.ndim(leaf) for leaf in leaves)
    function = partial(_rows, method, tree, events, outputs)
    result = jax.pure_callback(
        function, outputs, handles.numbers, tuple(leaves), vectors, vmap_method="expand_dims"
    )
    return result if len(outputs) > 1 else result[0]


def _rows(
    method: str,
    tree: PyTree,
    events: tuple[int, ...],
    outputs: tuple[jax.ShapeDtypeStruct, ...],
    numbers: PyTree,
    leaves: PyTree,
    vectors: PyTree,
) -> tuple[np.ndarray, ...]:
    events = (0, *events, *(1 for _ in vectors))
    arrays = [np.asarray(array) for array in (numbers, *leaves, *vectors)]
    fronts = [array.shape[: array.ndim - k] for array, k in zip(arrays, events, strict=True)]
    batch = np.broadcast_shapes(*fronts)
    flat = [
        np.broadcast_to(array, batch + array.shape[array.ndim - k :]).reshape(
            -1, *array.shape[array.ndim - k :]
        )
        for array, k in zip(arrays, events, strict=True)
    ]
    owners, (thetas, *others) = flat[0], flat[1 + len(leaves) :]
    results = tuple(np.empty((len(owners), *out.shape), out.dtype) for out in outputs)
    for number in np.unique(owners):
        rows = owners == number
        xs = jax.tree.unflatten(tree, [leaf[rows] for leaf in flat[1 : 1 + len(leaves)]])
        posterior = POSTERIORS.get(int(number))
        if posterior is None:
            raise RuntimeError(
                "posterior: the object that computes these densities no longer exists: keep the "
                "object that sbi.predictions returned (predictions saved to a file do not hold it)"
            )
        further = (other[rows] for other in others)
        result = getattr(posterior, method)(thetas[rows], xs, *further)
        for into, part in zip(results, result if len(outputs) > 1 else (result,), strict=True):
            into[rows] = part
    return tuple(out.reshape(*batch, *out.shape[1:]) for out in results)
