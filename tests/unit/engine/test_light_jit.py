"""Programs compiled in less time: the same numbers alone and in every other program."""

import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcal import engine


@partial(engine.LightJit, light=lambda x, **_: x.size < 5, static_argnames="power")
def powers(x, power=2):
    """Powers."""
    return x**power


def test_calls_alone_and_inside_of_programs_agree():
    x = jnp.asarray([1.0, 2.0, 3.0])
    calls = [
        powers,
        jax.jit(powers),
        jax.vmap(powers),
        jax.jit(jax.vmap(powers)),
        lambda x: jax.lax.map(powers, x),
        lambda x: jax.vmap(jax.grad(powers))(x) ** 2 / 4,
        lambda x: jnp.asarray([jax.grad(lambda t, one=one: powers(one) * t)(1.0) for one in x]),
        lambda x: jnp.asarray([jax.grad(closed(one))(1.0) for one in x]),
    ]
    for call in calls:
        np.testing.assert_allclose(call(x), x**2)
    np.testing.assert_allclose(powers(x, power=3), x**3)
    assert powers.__doc__ == "Powers."


def closed(one):
    """A program that closes over what a derivative is taken of."""
    return lambda t: engine.LightJit(lambda y: t * y**2)(one)


@pytest.mark.slow
def test_a_program_may_be_the_first_to_import_the_library():
    code = """
import jax, jax.numpy as jnp

def one(x):
    from jaxcal.engine import LightJit
    return LightJit(jnp.cos)(x)

print(jax.jit(jax.vmap(one))(jnp.zeros(2))[0])
from jaxcal import engine
print(engine.OUTSIDE == jax.extend.core.get_opaque_trace_state())
"""
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said.split() == ["1.0", "True"]


def test_only_light_calls_alone_leave_the_emitters_out():
    before = powers.program._cache_size()
    powers(jnp.ones(4))
    assert powers.program._cache_size() == before + (powers.alone is powers.program)  # newer JAX
    before = powers.program._cache_size()
    powers(jnp.ones(6))
    assert powers.program._cache_size() == before + 1
    assert engine.optional(engine.EMITTERS) == (powers.alone is not powers.program)


def test_without_the_option_nothing_changes(monkeypatch):
    monkeypatch.setattr(engine, "EMITTERS", "xla_cpu_no_such_option")
    cosine = engine.LightJit(jnp.cos)
    assert cosine.alone is cosine.program
    np.testing.assert_allclose(cosine(0.0), 1.0)
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        jax.jit(jnp.cos, compiler_options={engine.EMITTERS: False})(0.0)
