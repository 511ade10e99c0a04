"""Other measures against their definitions, brute force, and the numbers known in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from jax.scipy.special import digamma
from reference import synthetic
from reference.classes import (
    absolute,
    canonical_error,
    cell_numbers,
    euclidean,
    squared_euclidean,
    total_variation,
)
from reference.conditional_means import brier_split
from reference.joint import jkce

from jaxcal.ckce import ckce, skill
from jaxcal.kernels import Linear
from jaxcal.measures import confidences, reliability

N = problems.N
Q, Y = problems.data()
R = problems.one_hot(Y) - np.asarray(Q)


def test_jkce_is_a_sum_over_pairs():
    h = problems.simplex_gram(Q, Q, problems.median(Q)) * (R @ R.T)
    estimate = jkce(Q, Y, tile=16)
    np.testing.assert_allclose(estimate.biased, h.mean(), rtol=1e-9)
    wanted = (h.sum() - np.trace(h)) / (N * (N - 1))
    np.testing.assert_allclose(estimate.unbiased, wanted, rtol=1e-9)
    v = (N - 1) / N * estimate.unbiased + np.trace(h) / N**2
    np.testing.assert_allclose(estimate.biased, v, rtol=1e-9)


@pytest.mark.parametrize(("n", "m", "printed"), [(10_000, 10, -0.0099), (200, 10, None)])
def test_jkce_of_the_marginal_model_of_table_1(n, m, printed):
    y = jnp.arange(n) % m
    exact = (1 + 1 / m) * ((n / m - 1) / (n - 1) - 1 / m)
    if printed is None:
        estimate = jkce(synthetic.marginal(n, m), y).unbiased
        np.testing.assert_allclose(estimate, exact, rtol=1e-8)
    else:
        np.testing.assert_allclose(100 * exact, printed, rtol=1e-3)


def brute_cells(q, bins):
    codes = np.minimum(np.floor(np.asarray(q) * bins), bins - 1).astype(int)
    return np.unique(codes, axis=0, return_inverse=True)[1]


@pytest.mark.parametrize(("m", "bins"), [(2, 3), (4, 10), (1000, 3)])
def test_cells_are_those_of_the_whole_table(m, bins):
    q = jnp.asarray(problems.drawn(m, 60, m, 0.05 if m > 100 else 0.5)[0])
    values, wanted = np.asarray(cell_numbers(q, bins)), brute_cells(q, bins).ravel()
    assert np.array_equal(values[:, None] == values, wanted[:, None] == wanted)
    assert set(values) == set(range(values.max() + 1))


def test_edges_of_cells_belong_to_the_upper_interval():
    q = jnp.asarray([[0.5, 0.5], [0.49, 0.51], [1.0, 0.0], [0.0, 1.0], [0.51, 0.49]])
    values, wanted = np.asarray(cell_numbers(q, 2)), brute_cells(q, 2).ravel()
    assert np.array_equal(values[:, None] == values, wanted[:, None] == wanted)


def test_ece_by_brute_force():
    where = brute_cells(Q, 3).ravel()
    shares = [np.mean(where == b) for b in set(where)]
    gaps = [R[where == b].mean(axis=0) for b in set(where)]
    for divergence, one in {
        absolute: lambda gap: np.abs(gap).sum(),
        total_variation: lambda gap: np.abs(gap).sum() / 2,
        euclidean: lambda gap: np.sqrt(np.sum(gap**2)),
        squared_euclidean: lambda gap: np.sum(gap**2),
    }.items():
        wanted = np.dot(shares, [one(gap) for gap in gaps])
        mean = canonical_error(Q, Y, bins=3, distance=divergence).mean
        np.testing.assert_allclose(mean, wanted, rtol=1e-10)


def test_ece_of_a_thousand_classes():
    q, y = synthetic.marginal(50, 1000), jnp.arange(50)
    np.testing.assert_allclose(
        problems.ece_of_the_paper(q, y), 50 * (1 / 50 - 1 / 1000) + 950 / 1000, rtol=1e-9
    )
    balanced = jnp.arange(20) % 10
    result = problems.ece_of_the_paper(synthetic.marginal(20, 10), balanced)
    np.testing.assert_allclose(result, 0, atol=1e-12)


def test_scores_and_their_split():
    scores_of = skill(Q, Y)
    np.testing.assert_allclose(scores_of.brier, np.mean(np.sum(R**2, axis=1)))
    values = np.asarray(Q)[np.arange(N), np.asarray(Y)]
    np.testing.assert_allclose(scores_of.cross_entropy, -np.mean(np.log(values)))
    np.testing.assert_allclose(scores_of.accuracy, np.mean(np.argmax(Q, axis=1) == np.asarray(Y)))
    np.testing.assert_allclose(
        skill(synthetic.marginal(9, 10), Y[:9]).cross_entropy, np.log(10), rtol=1e-12
    )
    distinct = jnp.asarray([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.3, 0.5]])
    which = jax.random.randint(jax.random.key(5), (N,), 0, 3)
    split = brier_split(distinct[which], Y)
    np.testing.assert_allclose(split.within, 0, atol=1e-12)
    np.testing.assert_allclose(split.calibration + split.refinement, split.brier, rtol=1e-10)
    np.testing.assert_allclose(split.uncertainty - split.resolution, split.refinement, rtol=1e-10)
    np.testing.assert_allclose(
        split.calibration,
        canonical_error(distinct[which], Y, bins=10, distance=squared_euclidean).mean,
        rtol=1e-10,
    )
    loose = brier_split(Q, Y, bins=3)
    total = loose.calibration + loose.refinement + loose.within
    np.testing.assert_allclose(total, loose.brier, rtol=1e-12)


def test_reliability_of_one_class_and_of_the_predicted_one():
    diagram = reliability(Q[:, 0], Y == 0, bins=4)  # the diagram of Figure 1
    p, came = np.asarray(Q)[:, 0], np.asarray(Y) == 0
    for b in range(4):
        inside = np.minimum((p * 4).astype(int), 3) == b
        assert int(diagram.count[b]) == inside.sum()
        if inside.any():
            np.testing.assert_allclose(diagram.confidence[b], p[inside].mean(), rtol=1e-9)
            np.testing.assert_allclose(diagram.accuracy[b], came[inside].mean(), rtol=1e-9)
        else:
            assert np.isnan(float(diagram.confidence[b]))
    top = reliability(*confidences(Q, Y), bins=10)
    gaps = np.asarray(top.count) * np.abs(np.asarray(top.confidence) - np.asarray(top.accuracy))
    np.testing.assert_allclose(top.ece, np.nansum(gaps) / N, rtol=1e-9)
    assert not np.any(np.asarray(top.count)[:3])  # the largest of three is at least 1/3


def test_temperatures():
    q = jnp.asarray([[0.2, 0.3, 0.5], [0.0, 0.4, 0.6]])
    np.testing.assert_allclose(synthetic.temperature(q, 1), q, rtol=1e-12)
    logs = np.log(np.asarray(q[0]))
    centred = np.exp((logs - logs.mean()) / 0.5)  # clr, scaled
    np.testing.assert_allclose(synthetic.temperature(q, 0.5)[0], centred / centred.sum())
    np.testing.assert_allclose(
        synthetic.recalibration(synthetic.temperature(q, 2.0), 2.0), q, rtol=1e-10
    )
    with pytest.raises(ValueError, match="t: wanted a positive"):
        synthetic.temperature(q, -1.0)


def test_binary_temperatures_against_exact_numbers():
    p = synthetic.binary(jnp.linspace(0.0005, 0.9995, 1000))
    wanted = {2.0: 0.1078, 0.5: 0.1789}
    for t, three_bins in wanted.items():
        q = synthetic.temperature(p, t)
        gap = p - q
        np.testing.assert_allclose(jnp.mean(jnp.sum(jnp.abs(gap), 1)), np.log(2) - 0.5, atol=1e-4)
        np.testing.assert_allclose(jnp.mean(jnp.sum(gap**2, 1)), 0.02286, atol=1e-4)
        # the population's three-bin ECE: residuals replaced by their means
        sums = jax.ops.segment_sum(gap, cell_numbers(q, 3), 3)
        np.testing.assert_allclose(jnp.sum(jnp.abs(sums)) / 1000, three_bins, atol=3e-3)
        c = q[:, 1]
        np.testing.assert_allclose(p[:, 1], c**t / (c**t + (1 - c) ** t), rtol=1e-9)


@pytest.mark.slow
def test_the_dirichlet_model_against_exact_numbers():
    n = 60_000
    truth = synthetic.dirichlet(jax.random.key(0), n, 10, 0.1)
    y = synthetic.labels(jax.random.key(1), truth)
    single = synthetic.temperature(truth.astype(jnp.float32), 2.0)
    assert np.any(np.asarray(truth) < np.finfo(np.float32).tiny)  # 0 in float32
    assert np.all(np.isfinite(single))
    scores_of = skill(truth, y)
    np.testing.assert_allclose(scores_of.brier, 0.45, atol=0.005)
    np.testing.assert_allclose(scores_of.cross_entropy, digamma(2.0) - digamma(1.1), atol=0.012)
    np.testing.assert_allclose(scores_of.accuracy, 0.664, atol=0.006)
    for t, l1, square in ((2.0, 0.395, 0.0511), (0.5, 0.303, 0.0383)):
        gap = truth - synthetic.temperature(truth, t)
        np.testing.assert_allclose(jnp.mean(jnp.sum(jnp.abs(gap), 1)), l1, atol=0.004)
        np.testing.assert_allclose(jnp.mean(jnp.sum(gap**2, 1)), square, atol=0.0007)


@pytest.mark.slow
def test_linear_recalibration_with_a_linear_kernel():
    m, epsilon, ridge, n, sets = 3, 0.6, 0.1, 1000, 10
    s = 1 / (m * (m + 1))

    def one(key):
        q_key, y_key = jax.random.split(key)
        q = problems.flat(q_key, n, m)
        y = synthetic.labels(y_key, (1 - epsilon) * q + epsilon / m)
        linear = ckce(q, y, prediction_kernel=Linear(), ridge=ridge).estimate
        return linear, jkce(q, y, prediction_kernel=Linear()).unbiased, ckce(q, y).estimate

    values, joint, whole = jax.lax.map(one, jax.random.split(jax.random.key(1), sets))
    limit = epsilon**2 * (m - 1) * (s / (s + ridge)) ** 2
    np.testing.assert_allclose(limit, 0.1488, atol=1e-4)
    # noise adds at most (m / n) (1 - 1 / m) / (4 ridge) or so
    assert abs(values.mean() - limit) < 4 * values.std() / sets**0.5 + 0.005
    assert abs(joint.mean() - 0.005) < 4 * joint.std() / sets**0.5
    # the whole kernel tends to epsilon^2 (m - 1) = 0.72, from far below and slowly: an independent
    # computation has 0.075 at n = 500 and 0.094 at n = 2000
    assert 0.07 < whole.mean() < 0.1


def test_shifted_inputs():
    for location in (-1.0, 0.0, 0.9):
        x = np.asarray(synthetic.truncated_normal(jax.random.key(0), 20_000, location))
        assert x.min() >= -1
        assert x.max() <= 1
        from scipy.stats import kstest, truncnorm

        law = truncnorm((-1 - location) / 0.25, (1 - location) / 0.25, location, 0.25)
        assert kstest(x, law.cdf).pvalue > 1e-4
    q, y, x = synthetic.covariate_shift(jax.random.key(1), 20_000, 0.5)
    np.testing.assert_allclose(q[:, 1], jax.nn.sigmoid(5 * x))
    share, wanted = np.mean(np.asarray(y)), np.mean(1 / (1 + np.exp(-np.asarray(x))))
    assert abs(share - wanted) < 4 * 0.5 / 20_000**0.5


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="bins: wanted a whole number"):
        brier_split(Q, Y, bins=0)
    with pytest.raises(ValueError, match="sum over pairs"):
        jkce(Q[:1], Y[:1])
