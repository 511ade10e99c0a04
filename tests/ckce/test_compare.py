"""Comparing models: the value, the intervals, the level of the test, and the report."""

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
import scipy.spatial
import scipy.stats
from reference import synthetic

from jaxcal.ckce import Comparison, ckce, compare, pooled_bandwidth

N = 200
TRUTH, Y = (jnp.asarray(a) for a in problems.drawn(0, N))
MODELS = {
    "over": jnp.asarray(problems.tempered(np.asarray(TRUTH), 0.4)),
    "true": TRUTH,
    "again": TRUTH,
    "under": jnp.asarray(problems.tempered(np.asarray(TRUTH), 3.0)),
}
KEY = jax.random.key(2)
POOLED = jax.jit(pooled_bandwidth)
FOUND = compare(KEY, MODELS, Y, n_draws=199, rank=100)


def test_values_are_those_of_the_exact_estimator():
    gamma = float(FOUND.bandwidths[0])
    np.testing.assert_allclose(gamma, pooled_bandwidth(jnp.stack(list(MODELS.values()))))
    for i, q in enumerate(MODELS.values()):
        exact = ckce(q, Y, bandwidth=gamma).estimate
        np.testing.assert_allclose(FOUND.estimate[i], exact, rtol=1e-4)
        k = problems.simplex_gram(q, q, gamma)
        w = problems.weights(k, N**-0.25)
        r = problems.one_hot(Y) - np.asarray(q)
        off = np.sum(w * (r @ r.T)) - np.diag(w) @ np.sum(r**2, axis=1)
        np.testing.assert_allclose(FOUND.corrected[i], off, rtol=1e-3, atol=1e-7)


def test_replicates_are_values_of_repeated_observations():
    # drawing every observation once more is the same as a weight of 2
    from jaxcal.ckce.compare import _replicated
    from jaxcal.ckce.kernels import simplex_kernel

    counts = np.random.default_rng(0).integers(0, 3, N)
    ridge, gamma = jnp.asarray(0.3), jnp.asarray(0.4)
    weights = jnp.asarray(counts[None], float)
    made = jax.jit(
        lambda q: _replicated(q, Y, weights, simplex_kernel(), None, ridge, gamma, rank=100)
    )(TRUTH)
    rows = np.repeat(np.arange(N), counts)
    # the ridge counts n observations, however many were drawn
    value = ckce(TRUTH[rows], Y[rows], bandwidth=0.4, ridge=0.3 * N / len(rows)).estimate
    k = problems.simplex_gram(TRUTH, TRUTH, 0.4)
    w = problems.weights(k, 0.3)
    own = np.diag(w) * np.sum((problems.one_hot(Y) - np.asarray(TRUTH)) ** 2, axis=1)
    np.testing.assert_allclose(made.draws[0], value - counts**2 @ own, rtol=1e-4)


def test_the_report_ranks_and_warns():
    assert set(FOUND.ranking()[:2]) == {"true", "again"}
    text = repr(FOUND)
    assert "comparable only at equal n, ridge and kernel" in text
    assert "no difference shown" in text
    assert FOUND.warnings() == []
    held = FOUND.to_dict()
    assert held["names"] == list(MODELS)
    own = compare(KEY, MODELS, Y, n_draws=9, rank=20, bandwidth="own")
    assert any("a bandwidth of its own" in text for text in own.warnings())
    assert any("cannot give p-values below 0.1" in text for text in own.warnings())
    rough = compare(KEY, MODELS, Y, n_draws=99, rank=3)
    assert any("take a larger rank" in text for text in rough.warnings())


def test_differences_are_antisymmetric_and_identical_models_tie():
    d = FOUND.differences
    np.testing.assert_allclose(d.estimate, -d.estimate.T, atol=1e-15)
    np.testing.assert_allclose(d.low, -d.high.T, atol=1e-12)
    assert bool(jnp.all(d.p_adjusted >= d.p_value))
    i, j = 1, 2
    assert float(d.p_value[i, j]) == float(d.p_adjusted[i, j]) == 1
    assert float(d.estimate[i, j]) == 0
    assert float(d.p_adjusted[1, 3]) <= 0.05
    assert bool(jnp.all(jnp.diagonal(d.p_value) == 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_model_without_spread_moves_no_bandwidth(dtype):
    rng = np.random.default_rng(0)
    q, noise = rng.dirichlet(np.ones(3), 100), rng.uniform(-1, 1, (7, 100))
    alone = np.median(scipy.spatial.distance.pdist(q))
    for partners in (1, 7):
        for spread in (0.0, 1e-12, 1e-6, 1e-3, 1e-2, 1e-1):
            flat = 0.4 + spread * noise[:partners]
            models = [q, *(np.stack([p, 0.9 - p, np.full(100, 0.1)], 1) for p in flat)]
            width = float(POOLED(jnp.asarray(np.stack(models), dtype)))
            medians = [np.median(scipy.spatial.distance.pdist(a)) for a in models]
            wanted = np.sum(np.square(medians)) / np.sum(medians)
            rounding = 1e-5 if dtype == np.float32 else 1e-9
            assert abs(width / wanted - 1) < rounding
            # half of a distance is at most 2 spread, and each partner pulls by less than its own
            assert alone - 2 * partners * spread - rounding < width < alone + rounding
    assert POOLED(jnp.full((2, 100, 3), 1 / 3, dtype)) == 1


@pytest.mark.parametrize("dtype", [np.float32])
def test_a_valid_model_has_its_own_value_beside_the_base_rate(dtype):
    p = np.random.default_rng(1).uniform(size=100)
    y = np.random.default_rng(2).uniform(size=100) < p
    q = np.stack([1 - p, p], 1).astype(dtype)
    rate = np.broadcast_to(np.asarray([1 - y.mean(), y.mean()], dtype), (100, 2))
    both = compare(KEY, {"model": q, "rate": rate}, y.astype(int), n_draws=19, rank=20)
    width = np.median(scipy.spatial.distance.pdist(q.astype(float)))
    np.testing.assert_allclose(both.bandwidths, width, rtol=1e-5)
    exact = ckce(q.astype(np.float64), y.astype(int), bandwidth=width).estimate
    np.testing.assert_allclose(both.estimate[0], exact, rtol=1e-3)
    assert np.all(np.isfinite(both.corrected))


def test_a_model_without_a_value_is_never_best_and_the_reason_is_the_one_counted():
    stack = jnp.stack([TRUTH, MODELS["over"], MODELS["under"]])

    @jax.jit
    def compared(models):
        return compare(KEY, models, Y, n_draws=99, rank=20, bandwidth=0.4)

    whole = compared(stack)
    found = compared(stack.at[1, 3, 0].set(jnp.nan))
    assert found.ranking()[-1] == "model 1"
    np.testing.assert_array_equal(jnp.isnan(found.corrected), [False, True, False])
    np.testing.assert_array_equal(jnp.isnan(found.first), [False, True, False])
    assert float(found.first[0] + found.first[2]) == pytest.approx(1)
    assert ["1 of its predictions" in text for text in found.warnings()] == [True]
    # and the others lose nothing: their adjustment is that of the two of them
    two = compare(KEY, stack[jnp.asarray([0, 2])], Y, n_draws=99, rank=20, bandwidth=0.4)
    np.testing.assert_allclose(found.differences.p_adjusted[0, 2], two.differences.p_adjusted[0, 1])
    assert bool(jnp.all(jnp.isfinite(whole.first)))

    broken = compare(KEY, stack, Y, n_draws=9, rank=20, prediction_kernel=not_below)
    assert all("values of the kernel" in text for text in broken.warnings()[1:])
    assert jnp.all(jnp.isnan(broken.first) == jnp.isnan(broken.corrected))


def not_below(p, q):
    """No number where a probability is below .001: of the overconfident model alone."""
    return jnp.where(jnp.minimum(jnp.min(p), jnp.min(q)) < 1e-3, jnp.nan, p @ q)


def mirrored(key):
    """Two models, wrong on opposite halves of the inputs: equally far from calibration."""
    x_key, y_key = jax.random.split(key)
    p = jax.random.uniform(x_key, (80,))
    y = jax.random.bernoulli(y_key, p).astype(int)
    pull = 0.55
    a = jnp.where(p > 0.5, p + pull * (1 - p), p)
    b = jnp.where(p < 0.5, p - pull * p, p)
    return jnp.stack([synthetic.binary(a), synthetic.binary(b)]), y


def test_the_level_between_two_equally_wrong_models():
    trials = 200

    def one(key):
        data_key, test_key = jax.random.split(key)
        models, y = mirrored(data_key)
        found = compare(test_key, models, y, n_draws=99, rank=20, bandwidth=0.4)
        low, high = found.differences.low[0, 1], found.differences.high[0, 1]
        return found.differences.p_value[0, 1], (low <= 0) & (high >= 0), found.corrected

    p, covered, values = jax.jit(lambda keys: jax.lax.map(one, keys))(
        jax.random.split(jax.random.key(5), trials)
    )
    _, high = scipy.stats.binom.interval(0.9999, trials, 0.05)
    assert int(jnp.sum(p <= 0.05)) <= high
    assert int(jnp.sum(~covered)) <= high
    # both really are wrong, and the two are equal on average
    gap = values[:, 0] - values[:, 1]
    assert abs(gap.mean()) < 4 * gap.std() / trials**0.5
    assert float(values.mean()) > 0.005


def test_the_power_against_a_calibrated_model():
    def one(key):
        q_key, y_key, test_key = jax.random.split(key, 3)
        truth = problems.flat(q_key, 150, 3)
        y = synthetic.labels(y_key, truth)
        models = jnp.stack([truth, synthetic.temperature(truth, 0.3)])
        found = compare(test_key, models, y, n_draws=99, rank=30)
        return found.differences.p_adjusted[0, 1], found.differences.estimate[0, 1]

    p, gap = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(KEY, 60))
    assert int(jnp.sum((p <= 0.05) & (gap < 0))) > 45


@pytest.mark.slow
def test_inside_jit_and_by_vmap():
    stack = jnp.stack(list(MODELS.values()))[:2]

    def gap(key, models):
        found = compare(key, models, Y, n_draws=19, rank=10)
        assert isinstance(found, Comparison)
        assert "traced" in repr(found)
        return found.differences.estimate

    both = jax.jit(jax.vmap(gap))(jax.random.split(KEY, 2), jnp.stack([stack, stack[::-1]]))
    np.testing.assert_allclose(both[0, 0, 1], both[1, 1, 0], rtol=1e-9)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="at least 2 models"):
        compare(KEY, {"one": TRUTH}, Y)
    with pytest.raises(ValueError, match=r"models\[b\]: row 0 holds a negative"):
        compare(KEY, {"a": TRUTH, "b": -TRUTH}, Y)
    with pytest.raises(ValueError, match="all models must predict the same observations"):
        compare(KEY, {"a": TRUTH, "b": TRUTH[1:]}, Y)
    with pytest.raises(ValueError, match="bandwidth: wanted 'pooled'"):
        compare(KEY, MODELS, Y, bandwidth="median")
    with pytest.raises(ValueError, match="level: wanted"):
        compare(KEY, MODELS, Y, level=95.0)
    with pytest.raises(TypeError, match="models: wanted a mapping"):
        compare(KEY, TRUTH, Y)
    with pytest.raises(ValueError, match="n_draws: wanted"):
        compare(KEY, MODELS, Y, n_draws=0)
