"""Sums over vectors and over tiles of pairs: the only loops over pairs in the package.

Here: how large programs behave under ``vmap``, and rows distributed over devices.
"""

from collections.abc import Callable

import equinox as eqx
import jax
from jax.custom_batching import sequential_vmap
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import PyTree


def one_at_a_time(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Return the function with a ``vmap`` that, on a CPU, loops over the batch.

    A walk over blocks of H fits the cache; a thousand of them side by side do not. On other
    devices, and for derivatives, ``vmap`` is unchanged; ``jax.lax.map`` of a derivative loops.
    Derivatives of every order and mode are supported. Arguments that are no arrays are static;
    arrays that the function closes over are treated as arguments.
    """
    if jax.default_backend() != "cpu":
        return function

    def call(*args: PyTree) -> PyTree:
        arrays, fixed = eqx.partition(args, eqx.is_array)
        leaves, tree = jax.tree.flatten(arrays)

        def flat(*leaves: PyTree) -> PyTree:
            return function(*eqx.combine(jax.tree.unflatten(tree, leaves), fixed))

        # tracing turns closed-over arrays into constants, which are then passed as arguments
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
    """Return ``function(shared, rows)`` with the rows distributed over the devices of the mesh."""
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
