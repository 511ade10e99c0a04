"""Calls of LAPACK over a batch do not run side by side: two threads that each wait for the other's
help with one wait for ever (jaxlib 0.10: on two processors ``eigh`` beside ``eigh`` does)."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
import pytest
from jax.core import ShapedArray
from jax.extend import core

import jaxcal

LAPACK = {"eigh", "lu", "cholesky", "triangular_solve", "svd", "geqrf", "householder_product"}


def inner(equation: core.JaxprEqn) -> Iterator[core.Jaxpr]:
    for value in equation.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, core.ClosedJaxpr):
                yield part.jaxpr
            elif isinstance(part, core.Jaxpr):
                yield part


def calls(equation: core.JaxprEqn) -> list[str]:
    """Names of the calls of LAPACK over a batch in an equation."""
    name = equation.primitive.name
    if name in LAPACK:
        shapes = [variable.aval for variable in equation.invars]
        batched = any(isinstance(shape, ShapedArray) and shape.ndim > 2 for shape in shapes)
        return [name] if batched else []
    return [one for jaxpr in inner(equation) for each in jaxpr.eqns for one in calls(each)]


def side_by_side(jaxpr: core.Jaxpr) -> list[tuple[list[str], list[str]]]:
    """Pairs of equations with such calls neither of which needs the other."""
    needs, earlier, pairs = {}, {}, []
    for number, equation in enumerate(jaxpr.eqns):
        variables = [v for v in equation.invars if not isinstance(v, core.Literal)]
        needed = set().union(*(needs.get(variable, set()) for variable in variables))
        if called := calls(equation):
            pairs += [(names, called) for old, names in earlier.items() if old not in needed]
            earlier[number] = called
            needed = needed | {number}
        needs.update((variable, needed) for variable in equation.outvars)
        pairs += [pair for nested in inner(equation) for pair in side_by_side(nested)]
    return pairs


def program(function, *arguments) -> core.Jaxpr:
    return jax.make_jaxpr(function)(*arguments).jaxpr


def test_what_runs_side_by_side_is_seen():
    a = jnp.zeros((4, 3, 3))
    twice = program(lambda a: (jnp.linalg.eigh(a), jnp.linalg.eigh(a + 1)), a)
    assert side_by_side(twice) == [(["eigh"], ["eigh"])]
    in_turn = program(lambda a: jnp.linalg.eigh(jnp.linalg.eigh(a)[1]), a)
    assert side_by_side(in_turn) == []
    alone = program(lambda a: (jnp.linalg.eigh(a), jnp.linalg.eigh(a + 1)), a[0])
    assert side_by_side(alone) == []
    inside = program(lambda a: jax.lax.map(lambda b: (jnp.linalg.inv(a), jnp.sum(b)), a), a)
    assert side_by_side(inside) == []


def log_density(center, y):
    return -jnp.sum((y - center) ** 4)


@pytest.mark.slow
@pytest.mark.parametrize("test", [jaxcal.calibration_test, jaxcal.kccsd_test, jaxcal.repair])
@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize("normal", [False, True])
def test_tests_of_densities_call_lapack_in_turn(key, test, models, normal):
    def p_value(center, ys):
        predictions = jaxcal.Unnormalized(log_density, center)
        if normal:
            predictions = dist.MultivariateNormal(center, scale_tril=jnp.eye(3))
        return test(key, predictions, ys).p_value

    ys = jax.random.normal(key, (models, 20, 3))
    assert side_by_side(program(jax.vmap(p_value), 0 * ys, ys)) == []
