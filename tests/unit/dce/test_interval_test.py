"""Tests of calibration by distances: the statistic is the distance, the level is kept."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxcal import dce
from jaxcal.dce.predictions import binary, by_label, ordered

interval_test = partial(dce.distance_from_calibration, test="interval")
TESTS = {"distance": dce.distance_from_calibration, "interval": interval_test}


@pytest.mark.slow
def test_the_statistic_is_the_measure_and_so_are_its_draws():
    rng = np.random.default_rng(0)
    v = rng.integers(1, 8, 60) / 8
    y = (rng.random(60) < v**2).astype(float)
    result = interval_test(0, v, y, n_draws=199)
    value = float(dce.surrogate_interval_ce(v, y).value)
    assert float(result.statistic) == pytest.approx(value, abs=1e-12)
    labels = (rng.random((200, 60)) < v).astype(float)
    drawn = jax.jit(jax.vmap(lambda y: dce.surrogate_interval_ce(v, y).value))(labels)
    assert scipy.stats.ks_2samp(drawn, result.null_samples)[1] > 1e-4
    assert (result.n, result.null, result.null_samples.shape) == (60, "redraw", (199,))


@pytest.mark.slow
def test_a_test_by_a_distance_keeps_its_level_and_has_power():
    """Rare labels too: half of the data sets hold one label 1 or none."""

    @jax.jit
    def p_values(keys, v, y):
        return jax.vmap(lambda *data: interval_test(*data, n_draws=19).p_value)(keys, v, y)

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


@pytest.mark.slow
def test_means_get_random_signs_and_nan_gives_nan():
    v = jnp.linspace(0.1, 0.9, 40)
    means = interval_test(0, v, v**3)
    assert (means.null, means.verdict) == ("signs", "rejected")
    with pytest.raises(ValueError, match="null='redraw' draws labels"):
        interval_test(0, v, v**3, null="redraw")
    with pytest.raises(ValueError, match="test: wanted"):
        interval_test(0, v, v > 0.5, test="intervals")
    assert "surrogate interval error, random signs" in repr(means)
    lost = jax.jit(lambda v: interval_test(0, v, v > 0.5))(v.at[3].set(jnp.nan))
    assert np.isnan(float(lost.p_value))
    assert lost.verdict == "cannot tell"
    few = interval_test(0, v, v > 0.5, n_draws=9)
    assert few.verdict == "cannot tell"
    assert "too-few-draws" in few.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", TESTS)
def test_too_few_labels_to_reject_give_no_verdict(name):
    """Labels 1 at p = .5: all and none of n share the largest statistic, of probability 2 / 2^n."""
    test = TESTS[name]
    four, six = (test(0, np.full(n, 0.5), np.ones(n)) for n in (4, 6))
    assert float(four.least_p_value) == pytest.approx(1 / 8)
    assert (four.verdict, "too-few-observations" in four.reason) == ("cannot tell", True)
    assert (six.verdict, float(six.least_p_value)) == ("rejected", pytest.approx(1 / 32))
    rare = test(0, np.full(4, 1e-5), np.zeros(4))  # one label 1 would reject
    assert rare.verdict == "not rejected"


@pytest.mark.slow
@pytest.mark.parametrize("name", TESTS)
def test_means_under_jit_have_no_p_value_without_signs(name):
    test = TESTS[name]
    v = jnp.linspace(0.1, 0.9, 40)
    means = jax.jit(lambda y: test(0, v, y, n_draws=39))(v**3)
    assert (means.verdict, "labels are means" in means.reason) == ("cannot tell", True)
    labels = jax.jit(lambda y: test(0, v, y, n_draws=39))(jnp.zeros(40))
    assert labels.verdict == "rejected"


@pytest.mark.slow
@pytest.mark.parametrize("name", TESTS)
def test_groups_of_labels_are_their_labels_one_by_one(name):
    test = TESTS[name]
    v, ones, counts = np.array([0.2, 0.5, 0.8]), [4, 1, 30], [10, 1, 40]
    grouped = test(0, v, ones, counts=counts, n_draws=39)
    labels = np.repeat([1.0, 0, 1, 0], [4, 6, 31, 10])
    each = test(0, np.repeat(v, counts), labels, n_draws=39)
    assert (float(grouped.p_value), grouped.null) == (float(each.p_value), "redraw")
    np.testing.assert_allclose(grouped.null_samples, each.null_samples, rtol=1e-12)
    weights = [1.0, 2, 3]
    weighted = test(0, v, ones, counts=counts, weights=weights, n_draws=39)
    each = test(0, np.repeat(v, counts), labels, weights=np.repeat(weights, counts), n_draws=39)
    assert float(weighted.statistic) == pytest.approx(float(each.statistic), rel=1e-12)
    assert weighted.n == grouped.n == 51
    with pytest.raises(ValueError, match="weights: wanted one above 0 for a group that has labels"):
        test(0, v, [0, 1, 3], counts=[0, 1, 4], weights=[1, 0, 0])
    for wrong in ([4, 0, 41], [4, 2, 30], [-1, 0, 30], [0.5, 0, 30]):
        with pytest.raises(ValueError, match="targets: with counts wanted"):
            test(0, v, wrong, counts=counts)
    with pytest.raises(ValueError, match="counts: numbers of labels are looked at"):
        jax.jit(lambda k: test(0, v, k, counts=counts))(jnp.asarray(ones))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_labels_of_groups_are_whole_numbers(dtype):
    """6 - 6 (4 / 6) is 1.9999999 in floats, and generators of random numbers take its floor."""
    ones, counts = np.asarray([(i, n) for n in range(1, 40) for i in range(n + 1)]).T
    parts = ordered(binary(np.linspace(0.1, 0.9, len(ones), dtype=dtype), ones, counts=counts))
    assert np.any((parts.labels * (1 - parts.y)) % 1)  # the case exists
    labels = by_label(parts).labels
    np.testing.assert_array_equal(labels.reshape(-1, 2)[:, 1], ones)
    np.testing.assert_array_equal(labels.reshape(-1, 2)[:, 0], counts - ones)


@pytest.mark.slow
@pytest.mark.parametrize("null", ["redraw", "signs"])
def test_small_groups_have_the_null_draws_of_their_labels(null):
    ones, counts = np.asarray([(i, n) for n in range(1, 60) for i in range(n)]).T
    few = (counts * (1 - ones / counts)) % 1 > 0.5  # labels 0, less by rounding than a whole number
    ones, counts = ones[few][:60], counts[few][:60]
    v = np.linspace(0.1, 0.9, 60)
    labels = [np.repeat([1.0, 0.0], [k, n - k]) for k, n in zip(ones, counts, strict=True)]
    options = {"null": null, "n_draws": 999}
    grouped = dce.distance_from_calibration(0, v, ones, counts=counts, **options)
    each = dce.distance_from_calibration(1, np.repeat(v, counts), np.concatenate(labels), **options)
    assert scipy.stats.ks_2samp(grouped.null_samples, each.null_samples)[1] > 1e-4


@pytest.mark.slow
def test_more_classes_than_draws_allow_give_no_verdict():
    """m classes by Holm's method: the smallest p-value is m / (1 + draws)."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 6)) * 2
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    sure = np.asarray(jax.nn.softmax(3 * logits))
    test = partial(dce.distance_from_calibration, 0, sure, labels, notion="class-wise")
    few, enough = test(n_draws=119), test(n_draws=120)
    assert set(few.verdict) == {"cannot tell"}
    assert set(enough.verdict) == {"rejected"}
    (reason,) = set(few.reason)
    assert "with them, 120 would do [too-few-draws]" in reason
