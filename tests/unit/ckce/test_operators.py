"""Operators, groups, the toy model of the paper's appendix, the exact test, and rankings."""

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
import scipy.stats
from reference import synthetic
from reference.conditional_means import conditional_mean, inner_product, null_mean, squared_distance
from reference.joint import jkce
from reference.ranking import Drawn, Trials, drawn_trials, shift_curves, subsample_trials

from jaxcal.ckce import Equal, Exact, LowRank, ckce, ckce_test
from jaxcal.kernels import Gaussian, Linear

N = problems.N
Q, Y = problems.data()
E = jnp.asarray(problems.one_hot(Y))


def test_ckce_is_a_distance_of_two_operators():
    options = {"kernel": Gaussian(0.3), "target_kernel": Linear(), "ridge": 0.1}
    said, came = conditional_mean(Q, Q, **options), conditional_mean(Q, E, **options)
    wanted = ckce(Q, Y, prediction_kernel=Gaussian(0.3), ridge=0.1).estimate
    np.testing.assert_allclose(squared_distance(came, said), wanted, rtol=1e-9)
    np.testing.assert_allclose(inner_product(came, said), inner_product(said, came), rtol=1e-10)


@pytest.mark.slow
def test_two_samples_by_the_trace_formula():
    keys = jax.random.split(jax.random.key(1), 4)
    xs, zs = jax.random.normal(keys[0], (20, 2)), jax.random.normal(keys[1], (30, 2))
    ys, ws = jax.random.normal(keys[2], (20,)), jax.random.normal(keys[3], (30,))
    options = {"kernel": Gaussian(1.0), "target_kernel": Gaussian(0.8)}
    a = conditional_mean(xs, ys[:, None], ridge=0.2, **options)
    b = conditional_mean(zs, ws[:, None], ridge=0.3, **options)

    def gauss(u, v, length):
        u, v = (np.asarray(x).reshape(len(x), -1) for x in (u, v))
        return np.exp(-np.sum((u[:, None] - v) ** 2, axis=-1) / (2 * length**2))

    ia = np.linalg.inv(gauss(xs, xs, 1.0) + 0.2 * 20 * np.eye(20))
    ib = np.linalg.inv(gauss(zs, zs, 1.0) + 0.3 * 30 * np.eye(30))
    wanted = (
        np.trace(ia @ gauss(ys, ys, 0.8) @ ia @ gauss(xs, xs, 1.0))
        + np.trace(ib @ gauss(ws, ws, 0.8) @ ib @ gauss(zs, zs, 1.0))
        - 2 * np.trace(ia @ gauss(ys, ws, 0.8) @ ib @ gauss(zs, xs, 1.0))
    )
    np.testing.assert_allclose(squared_distance(a, b), wanted, rtol=1e-9)
    # evaluated: kernel ridge regression of l(Y, y) on x
    at = gauss(zs[:5], xs, 1.0) @ ia @ gauss(ys, ws[:3], 0.8)
    np.testing.assert_allclose(a(zs[:5], ws[:3, None]), at, rtol=1e-9)


def test_groups_sum_to_the_whole():
    groups = jnp.arange(N) % 3
    groups_as = {"given": groups, "given_kernel": Equal()}
    whole = ckce(Q, Y, bandwidth=0.3, ridge=0.1, **groups_as)
    for g in range(3):
        inside = np.asarray(groups) == g
        alone = ckce(Q[inside], Y[inside], bandwidth=0.3, ridge=0.1 * N / inside.sum())
        part = jnp.sum(whole.contributions[inside])
        np.testing.assert_allclose(part, alone.estimate, rtol=1e-9)


def test_a_constant_covariate_changes_nothing():
    estimate = ckce(Q, Y, given=jnp.zeros(N), bandwidth=0.3)
    assert sorted(estimate.bandwidths) == ["given", "prediction"]
    np.testing.assert_allclose(estimate.estimate, ckce(Q, Y, bandwidth=0.3).estimate, rtol=1e-10)
    exact, low_rank = (
        ckce(Q, Y, given=Q[:, 0], bandwidth=0.3, solver=solver).estimate
        for solver in (Exact(), LowRank(N))
    )
    np.testing.assert_allclose(low_rank, exact, rtol=1e-6)


TOY = jnp.asarray([[0.7, 0.3], [0.4, 0.6]])


def test_the_toy_model_with_equality_for_a_kernel():
    n, ridge = 1000, 1000**-0.25
    for p, wanted in ((0.2, 0.0358), (0.5, 0.0544), (0.8, 0.0592)):
        first = round(p * n)
        x = jnp.concatenate([jnp.zeros(first, int), jnp.ones(n - first, int)])
        y = jnp.arange(n) % 2  # balanced within each input
        q = TOY[x]
        estimate = ckce(q, y, prediction_kernel=Equal()).estimate
        np.testing.assert_allclose(estimate, wanted, atol=6e-5)
        shares = np.array([p, 1 - p])
        gaps = np.array([0.08, 0.02])
        np.testing.assert_allclose(estimate, np.sum((shares / (shares + ridge)) ** 2 * gaps))
        limit = ckce(q, y, prediction_kernel=Equal(), ridge=1e-6).estimate
        np.testing.assert_allclose(limit, 0.1, rtol=1e-4)
        joint = jkce(q, y, prediction_kernel=Equal()).biased
        np.testing.assert_allclose(joint, 0.1 * p**2 - 0.04 * p + 0.02, rtol=1e-9)
        # printed 0.4 - 0.2 p: the two weights are swapped there
        np.testing.assert_allclose(problems.ece_of_the_paper(q, y), 0.2 + 0.2 * p, rtol=1e-9)


def test_the_toy_model_with_the_simplex_kernel_ignores_weights():
    for gamma, wanted in ((0.1, 0.0868), (0.3, 0.1279), (1.0, 0.5120)):
        k = problems.simplex_gram(TOY, TOY, gamma)
        gaps = np.array([[-0.2, 0.2], [0.1, -0.1]])
        exact = np.trace(np.linalg.solve(k, gaps @ gaps.T))
        np.testing.assert_allclose(exact, wanted, atol=6e-5)
    for p in (0.2, 0.8):
        first = round(p * 200)
        x = jnp.concatenate([jnp.zeros(first, int), jnp.ones(200 - first, int)])
        estimate = ckce(TOY[x], jnp.arange(200) % 2, bandwidth=1.0, ridge=1e-7).estimate
        np.testing.assert_allclose(estimate, 0.5120, rtol=1e-3)


def test_the_test_is_exact_under_calibration():
    trials = 400

    def one(key):
        q_key, y_key, test_key = jax.random.split(key, 3)
        q = problems.flat(q_key, 15, 3)
        result = ckce_test(test_key, q, synthetic.labels(y_key, q), n_draws=19)
        return result.p_value, result.estimate

    p, estimates = jax.jit(lambda keys: jax.lax.map(one, keys))(
        jax.random.split(jax.random.key(3), trials)
    )
    # the p-value is uniform on 1/20, .., 1
    for level in (0.05, 0.25, 0.5):
        low, high = scipy.stats.binom.interval(0.9999, trials, level)
        assert low <= int(jnp.sum(p <= level + 1e-9)) <= high
    assert abs(estimates.mean()) < 4 * estimates.std() / trials**0.5


def test_the_test_sees_miscalibration_and_reports():
    truth, y = problems.drawn(0, 150)
    q = jnp.asarray(problems.tempered(truth, 3.0))
    result = ckce_test(jax.random.key(2), q, y, n_draws=99)
    assert float(result.p_value) <= 0.02
    exact = ckce(q, y)
    np.testing.assert_allclose(result.statistic, exact.estimate, rtol=1e-9)
    np.testing.assert_allclose(jnp.sum(result.contributions), result.estimate, rtol=1e-9)
    np.testing.assert_allclose(result.standard_error, exact.standard_error, rtol=1e-9)
    assert abs(float(result.null_samples.mean() / null_mean(q)) - 1) < 0.2
    assert "CKCE test, n = 150" in repr(result)


def value(q, y):
    return ckce(q, y).estimate


def joint(q, y):
    return jkce(q, y).unbiased


MEASURES = {"CKCE": value, "JKCE": joint, "ECE": problems.ece_of_the_paper}


def models(key):
    truth_key, label_key = jax.random.split(key)
    truth = synthetic.dirichlet(truth_key, 100, 10, 0.1)
    parts = [truth, synthetic.marginal(100, 10)]
    parts += [synthetic.temperature(truth, t) for t in (2.0, 0.5)]
    return Drawn(jnp.stack(parts), synthetic.labels(label_key, truth))


@pytest.mark.slow
def test_rankings_of_the_paper_at_100_observations():
    trials = drawn_trials(jax.random.key(4), models, MEASURES, trials=60)
    wins = np.asarray(trials.wins("CKCE"))
    for calibrated in (0, 1):
        for wrong in (2, 3):
            assert wins[calibrated, wrong] >= 0.9
    assert np.asarray(trials.wins("ECE"))[0, 3] < 0.3  # biased least where predictions are sharp
    assert np.asarray(trials.wins("JKCE"))[1, 2] < 0.9


@pytest.mark.slow
def test_subsets_without_replacement():
    stack, labels = jnp.stack([Q, Q]), Y
    trials = subsample_trials(
        jax.random.key(0), stack, labels, {"mean": mean_label}, size=N, trials=4
    )
    # all observations in another order
    np.testing.assert_allclose(trials.values, jnp.mean(labels), rtol=1e-12)
    order = jnp.asarray([[[1.0, 2, 3]], [[3.0, 2, 1]]])
    result = Trials(order, ("x",))
    np.testing.assert_array_equal(result.in_order("x", [0, 1, 2]), [1, 0])
    np.testing.assert_array_equal(result.wins("x")[0], [0, 0.5, 0.5])
    with pytest.raises(ValueError, match="size: wanted"):
        subsample_trials(jax.random.key(0), stack, labels, {"m": mean_label}, size=N + 1, trials=2)


def test_wilson_intervals_of_rates():
    for wins, trials, wanted in ((700, 1000, (0.6709, 0.7276)), (100, 100, (0.9630, 1.0))):
        values = np.zeros((trials, 1, 2))
        values[:, 0, 1] = np.where(np.arange(trials) < wins, 1, -1)
        low, high = Trials(jnp.asarray(values), ("x",)).intervals("x")
        np.testing.assert_allclose([low[0, 1], high[0, 1]], wanted, atol=5e-5)


def mean_label(q, y):
    return jnp.mean(y.astype(q.dtype))


def shifted(key, place):
    q, y, _ = synthetic.covariate_shift(key, 300, place)
    return Drawn(q[None], y)


@pytest.mark.slow
def test_a_covariate_shift_moves_ckce_least():
    curves = shift_curves(jax.random.key(7), shifted, [-1.0, 0.0, 1.0], MEASURES, trials=10)
    means = np.asarray(curves).mean(axis=1)[:, :, 0]
    ratio = means.max(axis=0) / means.min(axis=0)
    assert ratio[0] < 1.4
    assert ratio[1] > 5
    assert ratio[2] > 1.7
