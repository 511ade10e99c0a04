"""Tests of calibration by distances: the statistic is the distance, the level is kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxcal import dce

TESTS = {"smooth": dce.smooth_ce_test, "interval": dce.interval_ce_test}
MEASURES = {"smooth": dce.smooth_ce, "interval": dce.surrogate_interval_ce}


@pytest.mark.parametrize("name", TESTS)
def test_the_statistic_is_the_measure_and_draws_have_its_distribution(name):
    rng = np.random.default_rng(0)
    v = rng.integers(1, 8, 60) / 8
    y = (rng.random(60) < v**2).astype(float)
    result = TESTS[name](0, v, y, n_draws=199)
    assert float(result.statistic) == pytest.approx(float(MEASURES[name](v, y).value), abs=1e-12)
    labels = (rng.random((200, 60)) < v).astype(float)
    drawn = jax.jit(jax.vmap(lambda y: MEASURES[name](v, y).value))(labels)
    assert scipy.stats.ks_2samp(drawn, result.null_samples)[1] > 1e-4
    assert (result.n, result.null, result.null_samples.shape) == (60, "redraw", (199,))


@pytest.mark.parametrize("name", TESTS)
def test_a_test_by_a_distance_keeps_its_level_and_has_power(name):
    """Rare labels too: half of the data sets hold one label 1 or none."""

    @jax.jit
    def p_values(keys, v, y):
        return jax.vmap(lambda k, v, y: TESTS[name](k, v, y, n_draws=19).p_value)(keys, v, y)

    place, label = jax.random.split(jax.random.key(3))
    u = jax.random.uniform(place, (400, 40))
    keys = jax.random.split(jax.random.key(4), 400)
    low, high = scipy.stats.binom.interval(0.9999, 400, 0.05)
    for v, rate, least, most in [
        (u, u, low, high),
        (u / 20, u / 20, 0, high),
        (u, u**3, 200, 400),
    ]:
        y = jax.random.bernoulli(label, rate).astype(v.dtype)
        assert least <= int(jnp.sum(p_values(keys, v, y) <= 0.05)) <= most


def test_means_get_random_signs_and_nan_gives_nan():
    v = jnp.linspace(0.1, 0.9, 40)
    means = dce.smooth_ce_test(0, v, v**3)
    assert (means.null, means.verdict) == ("signs", "rejected")
    with pytest.raises(ValueError, match="null='redraw' draws labels"):
        dce.smooth_ce_test(0, v, v**3, null="redraw")
    lost = jax.jit(lambda v: dce.smooth_ce_test(0, v, v > 0.5))(v.at[3].set(jnp.nan))
    assert np.isnan(float(lost.p_value))
    assert lost.verdict == "cannot tell"
    few = dce.interval_ce_test(0, v, v > 0.5, n_draws=9)
    assert few.verdict == "cannot tell"
    assert "too-few-draws" in few.reason
