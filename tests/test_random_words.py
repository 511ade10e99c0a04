"""Random numbers by one kernel are those of `jax.random`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcal import random_words


@pytest.mark.parametrize("seed", [0, 7, 2**31 + 5])
def test_words_keys_and_normals_are_those_of_jax(seed):
    key = jax.random.key(seed)
    for n in (1, 3, 300):
        assert jnp.array_equal(random_words.words(key, n), jax.random.bits(key, (n,), jnp.uint32))
        keys, wanted = random_words.split(key, n), jax.random.split(key, n)
        assert keys.dtype == wanted.dtype
        assert jnp.array_equal(jax.random.key_data(keys), jax.random.key_data(wanted))
    for n in (1, 2, 300, 3000):  # more rounds from 1626 on
        assert jnp.array_equal(random_words.permutation(key, n), jax.random.permutation(key, n))
    for k, one in enumerate(random_words.split(key, 4)):
        folded = jax.random.fold_in(key, k)
        assert jnp.array_equal(jax.random.key_data(one), jax.random.key_data(folded))
    for dtype in (jnp.float32, jnp.float64):
        draws = random_words.normal(key, (10, 5), dtype)
        assert jnp.array_equal(draws, jax.random.normal(key, (10, 5), dtype))


def test_other_generators_are_asked_themselves():
    key = jax.random.key(3, impl="rbg")
    assert jnp.array_equal(random_words.words(key, 4), jax.random.bits(key, (4,), jnp.uint32))
    assert random_words.split(key, 2).dtype == key.dtype
    keys = jax.random.split(jax.random.key(0), 3)
    batched = jax.vmap(lambda key: random_words.words(key, 5))(keys)
    wanted = np.stack([jax.random.bits(one, (5,), jnp.uint32) for one in keys])
    assert jnp.array_equal(batched, wanted)
