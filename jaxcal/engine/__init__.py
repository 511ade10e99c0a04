"""The engine computes sums over pairs of observations, from tiles of pairs or from vectors.

This file compiles programs, makes ``vmap`` sequential on a CPU, and spreads rows over devices.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jax.core import eval_context
from jax.custom_batching import sequential_vmap
from jax.extend.core import ClosedJaxpr, get_opaque_trace_state, jaxpr_as_fun
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import PyTree

# XLA's fusion emitters take a third of the time in which JAX 0.10 compiles a program for CPUs. Only
# loops over pairs are faster with them. JAX 0.12 cannot leave them out
EMITTERS = "xla_cpu_use_fusion_emitters"
FEW = 1024  # most observations for which loops over pairs take less time than compilation
with eval_context():  # this module may be imported while a program is traced
    OUTSIDE = get_opaque_trace_state()  # the state outside of every jit, vmap and derivative


@functools.cache
def optional(option: str) -> bool:
    """Return whether the installed XLA has a compiler option of this name that can be False."""
    try:
        jax.jit(lambda: 0, compiler_options={option: False})()
    except jax.errors.JaxRuntimeError:  # it does not know the option
        return False
    return True


def few_targets(key: Any, predictions: Any, targets: Any, *_: Any, **__: Any) -> bool:
    """Return whether a test has at most `FEW` targets; takes the arguments of the test."""
    return len(targets) <= FEW


class LightJit:
    """Compile a function as `jax.jit` does, in two thirds of the time, without fusion emitters.

    ``light(*args, **kwargs)`` returns whether a call runs as fast without emitters: True for a
    sum over few pairs or none. Such calls run `alone`, except inside of jit, vmap or a
    derivative. All other calls run ``program``, compiled by `jax.jit`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        light: Callable[..., bool] = lambda *_, **__: True,
        **options: Any,
    ):
        self.program = jax.jit(function, **options)
        self._function, self._light, self._options = function, light, options
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        alone = get_opaque_trace_state() == OUTSIDE and self._light(*args, **kwargs)
        return (self.alone if alone else self.program)(*args, **kwargs)

    @functools.cached_property
    def alone(self) -> Any:
        """The function compiled without fusion emitters, or ``program`` if XLA needs them."""
        if not optional(EMITTERS):
            return self.program
        return jax.jit(self._function, compiler_options={EMITTERS: False}, **self._options)


def one_at_a_time(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Return a function whose ``vmap`` computes one batch element after another on a CPU.

    One batch element fits into the cache; a thousand in parallel do not. On other devices the
    function is called as it is. A ``vmap`` of its derivatives runs in parallel; use
    ``jax.lax.map`` to loop. Derivatives of every order and mode are supported. Keywords, and
    arguments that are not arrays, are static; arrays that the function closes over are treated as
    arguments.
    """

    @functools.wraps(function)
    def call(*args: PyTree, **static: Any) -> PyTree:
        if jax.default_backend() != "cpu":
            return function(*args, **static)
        arrays, fixed = eqx.partition(args, eqx.is_array)
        leaves, tree = jax.tree.flatten(arrays)

        def flat(*leaves: PyTree) -> PyTree:
            return function(*eqx.combine(jax.tree.unflatten(tree, leaves), fixed), **static)

        # tracing turns closed-over arrays into constants, which are then passed as arguments
        program, shape = jax.make_jaxpr(flat, return_shape=True)(*leaves)
        count = len(program.consts)

        def evaluate(*args: PyTree) -> list[PyTree]:
            return jaxpr_as_fun(ClosedJaxpr(program.jaxpr, args[:count]))(*args[count:])

        walking = jax.custom_jvp(sequential_vmap(evaluate))
        walking.defjvp(lambda primals, tangents: jax.jvp(evaluate, primals, tangents))
        results = walking(*program.consts, *leaves)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return call


def over_rows(function: Callable[..., PyTree], *, mesh: Mesh | None, reduce: bool) -> PyTree:
    """Return a function of (shared, rows) with rows distributed over ``mesh``; results are summed
    over devices if ``reduce``, else concatenated. Without a mesh, return ``function``."""
    if mesh is None:
        return function
    axes = tuple(mesh.axis_names)

    def local(shared: PyTree, rows: PyTree) -> PyTree:
        parts = function(shared, rows)
        return jax.tree.map(lambda a: jax.lax.psum(a, axes), parts) if reduce else parts

    split, replicated = PartitionSpec(axes), PartitionSpec()
    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(replicated, split),
        out_specs=replicated if reduce else split,
        check_vma=False,
    )
