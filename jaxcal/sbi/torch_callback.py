"""Log densities of torch inside JAX programs, with first and second derivatives."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from jaxcal.typing import DTypeLike, Scalar


@runtime_checkable
class Outside(Protocol):
    """Densities computed outside of JAX, on arrays, row by row."""

    def log_densities(self, thetas: np.ndarray, xs: PyTree) -> np.ndarray: ...

    def logs_and_scores(self, thetas: np.ndarray, xs: PyTree) -> tuple[np.ndarray, np.ndarray]: ...

    def curvature(self, thetas: np.ndarray, xs: PyTree, directions: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class CalledBack:
    """``log_density(x, theta)`` of one observation and one parameter vector.

    ``jax.vmap`` makes one call of many rows; ``jax.grad`` asks torch for the score, and a second
    derivative in forward mode for a product with its Hessian. Equal for equal posteriors, so that
    nothing compiles twice.
    """

    posterior: Outside

    def __call__(self, x: PyTree, theta: Array) -> Scalar:
        @jax.custom_jvp
        def log_density(theta: Array) -> Scalar:
            return _call(self.posterior.log_densities, (theta.dtype, ()), x, theta)

        @jax.custom_jvp
        def both(theta: Array) -> tuple[Scalar, Array]:
            shapes = (theta.dtype, (), theta.shape)
            value, slope = _call(self.posterior.logs_and_scores, shapes, x, theta)
            return value, slope

        @log_density.defjvp
        def first(primals: PyTree, tangents: PyTree) -> PyTree:
            value, slope = both(*primals)
            return value, jnp.sum(slope * tangents[0])

        @both.defjvp
        def second(primals: PyTree, tangents: PyTree) -> PyTree:
            value, slope = both(*primals)
            shapes = (theta.dtype, theta.shape)
            product = _call(self.posterior.curvature, shapes, x, primals[0], tangents[0])
            return (value, slope), (jnp.sum(slope * tangents[0]), product)

        return log_density(theta)


def _call(
    function: Callable[..., PyTree], shapes: tuple[PyTree, ...], x: PyTree, *vectors: Array
) -> PyTree:
    """``function(thetas, xs, ..)`` on all rows that ``vmap`` has gathered."""
    dtype, *wanted = shapes
    outputs = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in wanted)
    events = [jnp.ndim(leaf) for leaf in jax.tree.leaves(x)]
    function = partial(_rows, function, jax.tree.structure(x), tuple(events), dtype)
    result = jax.pure_callback(
        function, outputs, tuple(jax.tree.leaves(x)), vectors, vmap_method="expand_dims"
    )
    return result if len(outputs) > 1 else result[0]


def _rows(
    function: Callable[..., PyTree],
    tree: PyTree,
    events: tuple[int, ...],
    dtype: DTypeLike,
    leaves: PyTree,
    vectors: PyTree,
) -> tuple[np.ndarray, ...]:
    arrays = [np.asarray(vector) for vector in vectors]
    observed = [np.asarray(leaf) for leaf in leaves]
    fronts = [leaf.shape[: leaf.ndim - k] for leaf, k in zip(observed, events, strict=True)]
    batch = np.broadcast_shapes(*(array.shape[:-1] for array in arrays), *fronts)

    def flat(array: np.ndarray, event: tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(array, (*batch, *event)).reshape(-1, *event)

    thetas, *others = (flat(array, array.shape[-1:]) for array in arrays)
    xs = [flat(leaf, leaf.shape[leaf.ndim - k :]) for leaf, k in zip(observed, events, strict=True)]
    result = function(thetas, jax.tree.unflatten(tree, xs), *others)
    outputs = result if isinstance(result, tuple) else (result,)
    return tuple(out.reshape(*batch, *out.shape[1:]).astype(dtype) for out in outputs)
