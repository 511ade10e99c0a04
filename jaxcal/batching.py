"""How a program that fills the machine behaves under ``vmap``, and pairs taken row by row."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, PyTree

from jaxcal.typing import Features


def one_at_a_time(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The same function, whose ``vmap`` on a CPU walks the batch instead of widening it.

    A walk over blocks of H is built to stay in cache; a thousand of them side by side would not.
    On other devices ``vmap`` is what it always is. Derivatives of every order and mode go through,
    and walk the batch too. What is not an array among the arguments is held fixed; arrays that the
    function closes over are arguments like any other.
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
        results = _walk(program, leaves)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return call


def _walk(program: ClosedJaxpr, args: Sequence[PyTree]) -> list[PyTree]:
    return walk_p.bind(*program.consts, *args, program=_open(program, args))


def _open(program: ClosedJaxpr, args: Sequence[PyTree]) -> ClosedJaxpr:
    """The program with its constants as its first arguments."""
    if not program.consts:
        return program

    def opened(consts: Sequence[PyTree], *args: PyTree) -> list[PyTree]:
        return jaxpr_as_fun(ClosedJaxpr(program.jaxpr, consts))(*args)

    return jax.make_jaxpr(opened)(program.consts, *args)


def _inexact(values: Sequence[PyTree]) -> list[int]:
    return [k for k, value in enumerate(values) if jnp.issubdtype(value.dtype, jnp.inexact)]


# The function itself, and its derivative along some arguments as a function that is linear in the
# directions, or its transpose. A derivative of a derivative is again a derivative of a program.
walk_p, linear_p = Primitive("walk"), Primitive("linear_walk")


def _run(*args: PyTree, program: ClosedJaxpr) -> list[PyTree]:
    return jaxpr_as_fun(program)(*args)


def _derivative(
    *args: PyTree, program: ClosedJaxpr, along: tuple[int, ...], transposed: bool
) -> list[PyTree]:
    """The tangents of the program's inexact results for tangents of the arguments ``along``, or,
    transposed, cotangents of these arguments for cotangents of those results."""
    count = len(program.in_avals)
    fixed, linear = args[:count], args[count:]
    which = _inexact(program.out_avals)

    def moving(*some: PyTree) -> list[PyTree]:
        every = list(fixed)
        for k, value in zip(along, some, strict=True):
            every[k] = value
        results = _run(*every, program=program)
        return [results[k] for k in which]

    at = [fixed[k] for k in along]
    if transposed:
        return list(jax.vjp(moving, *at)[1](list(linear)))
    return jax.jvp(moving, at, list(linear))[1]


def _along(tangents: Sequence[PyTree]) -> list[int]:
    return [
        k
        for k, tangent in enumerate(tangents)
        if type(tangent) is not ad.Zero and tangent.dtype != jax.dtypes.float0
    ]


def _walk_jvp(primals: PyTree, tangents: PyTree, *, program: ClosedJaxpr) -> PyTree:
    results = walk_p.bind(*primals, program=program)
    along = _along(tangents)
    moved = linear_p.bind(
        *primals,
        *(tangents[k] for k in along),
        program=program,
        along=tuple(along),
        transposed=False,
    )
    slopes = dict(zip(_inexact(results), moved, strict=True))
    return results, [
        slopes.get(k, ad.Zero(aval.to_tangent_aval())) for k, aval in enumerate(program.out_avals)
    ]


def _linear_jvp(primals: PyTree, tangents: PyTree, **params: PyTree) -> PyTree:
    count = len(params["program"].in_avals)
    results = linear_p.bind(*primals, **params)
    along = _along(tangents)
    if all(k >= count for k in along):  # linear in these
        linear = [ad.instantiate_zeros(tangent) for tangent in tangents[count:]]
        return results, linear_p.bind(*primals[:count], *linear, **params)
    program = jax.make_jaxpr(lambda *args: _derivative(*args, **params))(*primals)
    moved = linear_p.bind(
        *program.consts,
        *primals,
        *(tangents[k] for k in along),
        program=_open(program, primals),
        along=tuple(k + len(program.consts) for k in along),
        transposed=False,
    )
    return results, moved


def _linear_transpose(
    cotangents: PyTree,
    *args: PyTree,
    program: ClosedJaxpr,
    along: tuple[int, ...],
    transposed: bool,
) -> list[PyTree]:
    count = len(program.in_avals)
    instantiated = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    back = linear_p.bind(
        *args[:count], *instantiated, program=program, along=along, transposed=not transposed
    )
    return [None] * count + back


def _batch(primitive: Primitive) -> Callable[..., PyTree]:
    """The batch, one entry after the other."""

    def rule(args: PyTree, axes: PyTree, **params: PyTree) -> PyTree:
        batched = [axis is not None for axis in axes]
        moved = [
            jnp.moveaxis(arg, axis, 0)
            for arg, axis, is_batched in zip(args, axes, batched, strict=True)
            if is_batched
        ]

        def one(entries: list[PyTree]) -> list[PyTree]:
            rest = iter(entries)
            mixed = [
                next(rest) if is_batched else arg
                for arg, is_batched in zip(args, batched, strict=True)
            ]
            return primitive.bind(*mixed, **params)

        results = jax.lax.map(one, moved)
        return results, [0] * len(results)

    return rule


def _linear_shapes(
    *avals: PyTree, program: ClosedJaxpr, along: tuple[int, ...], transposed: bool
) -> PyTree:
    if transposed:
        return [program.in_avals[k].to_tangent_aval() for k in along]
    return [program.out_avals[k].to_tangent_aval() for k in _inexact(program.out_avals)]


for _primitive, _function in ((walk_p, _run), (linear_p, _derivative)):
    _primitive.multiple_results = True
    _primitive.def_impl(_function)
    _primitive.to_lojax = _function  # JAX 0.12 asks for it where the program calls custom_jvp
    batching.primitive_batchers[_primitive] = _batch(_primitive)
    mlir.register_lowering(_primitive, mlir.lower_fun(_function, multiple_results=True))
walk_p.def_abstract_eval(lambda *_, program: program.out_avals)
linear_p.def_abstract_eval(_linear_shapes)
ad.primitive_jvps[walk_p] = _walk_jvp
ad.primitive_jvps[linear_p] = _linear_jvp
ad.primitive_transposes[linear_p] = _linear_transpose


def by_rows(pair: Callable[..., Array], rows: Features, cols: Features) -> Float[Array, "r c"]:
    """``[pair(row, col)]``, a row at a time: the intermediates of c pairs are held, not of r c."""
    return jax.lax.map(lambda row: jax.vmap(lambda col: pair(row, col))(cols), rows)


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
