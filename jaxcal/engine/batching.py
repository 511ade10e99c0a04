"""How a program that fills the machine behaves under ``vmap``, and rows shared by devices."""

from collections.abc import Callable

import equinox as eqx
import jax
from jax.custom_batching import sequential_vmap
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import PyTree


def one_at_a_time(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The same function, whose ``vmap`` on a CPU walks the batch instead of widening it.

    A walk over blocks of H is built to stay in cache; a thousand of them side by side would not.
    On other devices, and of derivatives, ``vmap`` is what it always is; ``jax.lax.map`` of a
    derivative walks. Derivatives of every order and mode go through. What is not an array among the
    arguments is held fixed; arrays that the function closes over are arguments like any other.
    """
    if jax.default_backend() != "cpu":
        return function

    def call(*args: PyTree) -> PyTree:
        arrays, fixed = eqx.partition(args, eqx.is_array)
        leaves, tree = jax.tree.flatten(arrays)

        def flat(*leaves: PyTree) -> PyTree:
            return function(*eqx.combine(jax.tree.unflatten(tree, leaves), fixed))

        # tracing it once turns what it closes over into constants, which are passed as arguments
        program, shape = jax.make_jaxpr(flat, return_shape=True)(*leaves)
        count = len(program.consts)

        def plain(*args: PyTree) -> list[PyTree]:
            return jaxpr_as_fun(ClosedJaxpr(program.jaxpr, args[:count]))(*args[count:])

        walking = jax.custom_jvp(sequential_vmap(plain))
        walking.defjvp(lambda primals, tangents: jax.jvp(plain, primals, tangents))
        results = walking(*program.consts, *leaves)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return call


def over_rows(function: Callable[..., PyTree], *, mesh: Mesh | None, reduce: bool) -> PyTree:
    """``function(shared, rows)`` with the rows shared out among the devices of the mesh."""
    if mesh is None:
        return function
    axes = tuple(mesh.axis_names)

    def local(shared: PyTree, rows: PyTree) -> PyTree:
        parts = function(shared, rows)
        return jax.tree.map(lambda a: jax.lax.psum(a, axes), parts) if reduce else parts

    split, whole = PartitionSpec(axes), PartitionSpec()
    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(whole, split),
        out_specs=whole if reduce else split,
        check_vma=False,
    )
