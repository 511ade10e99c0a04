"""What users bring is read in one place: keys and integers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.problems import two_moons
from reference.sketches import sampled_interval_ce

import jaxcal
from jaxcal.nulls import Wild
from jaxcal.read import Scores, convert

pytestmark = pytest.mark.usefixtures("as_users_run_it")


def data(key):
    return jax.random.key_data(key).tolist()


SEED_SEVEN = [7, np.int64(7), np.uint8(7), jnp.asarray(7), np.asarray(7), jax.random.key(7)]
SEED_SEVEN += [jax.random.PRNGKey(7), np.asarray(jax.random.PRNGKey(7))]


@pytest.mark.parametrize("value", SEED_SEVEN, ids=lambda v: f"{type(v).__name__}")
def test_every_form_of_a_key_is_the_same_key(value):
    assert data(convert.key(value)) == data(jax.random.key(7))
    assert data(convert.key(convert.key(value))) == data(jax.random.key(7))


def test_no_seed_is_cut_off_and_none_depends_on_the_float_type():
    seeds = [0, 1, -1, -2, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**40, 2**63, 2**64, 2**70, -(2**70)]
    keys = [tuple(data(convert.key(seed))) for seed in seeds]
    assert len(set(keys)) == len(seeds)
    with jax.enable_x64(False):
        assert [tuple(data(convert.key(seed))) for seed in seeds] == keys
    assert keys[:2] == [tuple(data(jax.random.key(seed))) for seed in (0, 1)]


def test_keys_are_read_under_jit_and_vmap():
    read = jax.jit(jax.vmap(lambda value: jax.random.key_data(convert.key(value))))
    want = [data(jax.random.key(seed)) for seed in range(3)]
    assert read(jnp.arange(3)).tolist() == want
    assert read(jax.vmap(jax.random.PRNGKey)(jnp.arange(3))).tolist() == want
    assert read(jax.vmap(jax.random.key)(jnp.arange(3))).tolist() == want


@pytest.mark.parametrize("value", [1.0, None, "0", True, np.zeros(3, np.uint32), [0, 1], int])
def test_what_is_no_key_is_refused(value):
    with pytest.raises(TypeError, match=r"^key: "):
        convert.key(value)


@pytest.mark.parametrize(
    "value", [jax.random.split(jax.random.key(0)), jax.random.split(jax.random.PRNGKey(0))]
)
def test_one_key_not_several(value):
    with pytest.raises(ValueError, match="key: wanted one key"):
        convert.key(value)


YS = np.random.default_rng(0).normal(size=(12, 2))
P, Y = np.linspace(0.1, 0.9, 12), np.arange(12) % 2
SCORES = Scores(-YS, np.zeros((12, 4, 2)), np.ones((4, 2)))
TAKE_KEYS = {
    "kccsd_test": lambda key: jaxcal.kccsd_test(key, SCORES, YS, null=Wild(19)).p_value,
    "kcsd_test": lambda key: jaxcal.kcsd_test(key, SCORES, YS, YS, null=Wild(19)).p_value,
    "ksd_test": lambda key: jaxcal.ksd_test(key, Scores(-YS), YS, null=Wild(19)).p_value,
    "sampled_interval_ce": lambda key: sampled_interval_ce(key, P, Y, width=0.2)[0],
    "pairs": lambda key: two_moons().pairs(key, 3).thetas,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TAKE_KEYS)
def test_every_function_reads_keys_alike(name):
    typed, legacy, seed = map(TAKE_KEYS[name], (jax.random.key(3), jax.random.PRNGKey(3), 3))
    assert typed.tolist() == legacy.tolist() == seed.tolist()


@pytest.mark.parametrize("value", [3, np.int32(3), np.uint8(3), jnp.asarray(3), np.asarray(3)])
def test_an_integer_of_any_library_is_an_integer(value):
    three = convert.integer(value, "bins")
    assert three == 3
    assert type(three) is int


@pytest.mark.parametrize("value", [3.0, "3", None, True, np.bool_(True), 0, -1, [3], int])
def test_what_is_no_positive_integer_is_refused(value):
    with pytest.raises(ValueError, match=r"^bins: wanted a whole number of at least 1, got "):
        convert.integer(value, "bins")
    with pytest.raises(ValueError, match="from 2 to 9"):
        convert.integer(value, "bins", least=2, most=9)


@pytest.mark.parametrize("read", [convert.floats, convert.numbers])
def test_integers_beyond_32_bits_stay_what_they_are(read):
    with jax.enable_x64(False):
        for values in ([3_000_000_000, 5_000_000_000], np.array([-(2**40), 2**62])):
            np.testing.assert_allclose(read(values, "x"), values, rtol=1e-6)
    assert read(np.array([3, 5]), "x").dtype == (float if read is convert.floats else int)
