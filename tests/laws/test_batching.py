"""What walks its batch: the same numbers as one by one, under every transformation."""

import jax
import jax.numpy as jnp
import many_devices
import numpy as np
import pytest

from jaxcal.engine import one_at_a_time


def f(key, x, k):
    return {"a": jnp.sum(jnp.sin(x)) * k + jax.random.normal(key), "b": jnp.argmax(x)}


WALKING = one_at_a_time(f)
XS = jnp.linspace(0, 1, 12).reshape(3, 4)


def test_vmap_equals_the_function_on_each_entry(key):
    batched = jax.jit(jax.vmap(WALKING, in_axes=(None, 0, None)))(key, XS, 2.0)
    alone = [f(key, x, 2.0) for x in XS]
    np.testing.assert_allclose(batched["a"], [one["a"] for one in alone])
    np.testing.assert_array_equal(batched["b"], [one["b"] for one in alone])
    nested = jax.vmap(jax.vmap(WALKING, in_axes=(None, 0, None)), in_axes=(None, 0, None))
    np.testing.assert_allclose(nested(key, XS[None], 2.0)["a"][0], batched["a"])


def test_vmap_walks_the_batch_on_a_cpu(key):
    jaxpr = str(jax.make_jaxpr(jax.vmap(WALKING, in_axes=(None, 0, None)))(key, XS, 2.0))
    walks = "scan" in jaxpr or "while" in jaxpr
    assert walks == (jax.default_backend() == "cpu")


def test_reverse_mode_goes_through_alone_and_in_batches(key):
    def loss(x):
        return WALKING(key, x, 2.0)["a"]

    expected = 2 * jnp.cos(XS)
    np.testing.assert_allclose(jax.grad(loss)(XS[0]), expected[0])
    np.testing.assert_allclose(jax.vmap(jax.grad(loss))(XS), expected)
    summed = jax.grad(lambda xs: jnp.sum(jax.vmap(loss)(xs)))(XS)
    np.testing.assert_allclose(summed, expected)


def test_every_order_and_mode_goes_through_alone_and_in_batches(key):
    def plain(x):
        return jnp.sum(jnp.sin(x) * x[::-1])

    walking = one_at_a_time(plain)
    for derivative in (jax.jacfwd, jax.hessian, lambda g: jax.jacrev(jax.jacrev(g))):
        wanted = jax.vmap(derivative(plain))(XS)
        np.testing.assert_allclose(derivative(walking)(XS[0]), wanted[0], atol=1e-14)
        np.testing.assert_allclose(jax.vmap(derivative(walking))(XS), wanted, atol=1e-14)


def test_closed_over_values_are_batched_and_differentiated():
    def scaled(c):
        return one_at_a_time(lambda x: jnp.sum(x * c**2))(XS[0])

    c = jnp.asarray([1.0, 2.0])
    np.testing.assert_allclose(jax.vmap(scaled)(c), c**2 * jnp.sum(XS[0]))
    np.testing.assert_allclose(jax.vmap(jax.grad(scaled))(c), 2 * c * jnp.sum(XS[0]))


@pytest.mark.slow
def test_arguments_that_are_no_arrays_are_held_fixed():
    apply = one_at_a_time(lambda function, x: function(x))
    np.testing.assert_allclose(jax.vmap(lambda x: apply(jnp.sin, x))(XS), jnp.sin(XS))


MODELS = """
    import json, sys
    import jax, jax.numpy as jnp
    from jax.sharding import Mesh, PartitionSpec
    import jaxcal

    def p_value(key, centers, targets):
        predictions = jaxcal.Unnormalized(lambda c, y: -jnp.sum((y - c) ** 2) / 2, centers)
        null = jaxcal.nulls.Wild(99)
        result = jaxcal.kccsd_test(key, predictions, targets, null=null)
        return result.estimate, result.p_value

    keys = jax.random.split(jax.random.key(0), 6)
    centers, noise = jax.random.normal(jax.random.key(1), (2, 6, 30, 2))
    every, models = jax.vmap(p_value), PartitionSpec("models")
    mesh = Mesh(jax.devices(), ("models",))
    shared = jax.shard_map(every, mesh=mesh, in_specs=models, out_specs=models, check_vma=False)
    results = [jax.jit(f)(keys, centers, centers + noise) for f in (every, shared)]
    json.dump([[part.tolist() for part in one] for one in results], sys.stdout)
"""


@pytest.mark.slow
def test_models_shared_out_among_devices_are_those_of_one():
    alone, shared = many_devices.run_on(2, MODELS)
    np.testing.assert_allclose(shared, alone, rtol=1e-12)
    assert len(set(alone[1])) > 1
