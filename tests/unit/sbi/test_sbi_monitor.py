"""The monitor of a posterior: a martingale, whose value another computation confirms."""

import importlib
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import jaxcal
from jaxcal import sbi
from jaxcal.results.notes import codes

monitor = importlib.import_module("jaxcal.sbi.monitor")
PRIOR = dist.Normal(jnp.zeros(2), 1.0).to_event(1)


def exact(theta, x):
    return -((theta - x / 2) ** 2).sum()


def narrow(theta, x):
    return -4 * ((theta - x / 2) ** 2).sum()


def pairs(seed, n):
    keys = jax.random.split(jax.random.key(seed))
    thetas = PRIOR.sample(keys[0], (n,))
    return thetas, thetas + jax.random.normal(keys[1], (n, 2))


def test_a_bet_is_the_ratio_of_two_densities_of_all_scores():
    # joint density of a regression with conjugate prior: a Student t of n dimensions
    rng = np.random.default_rng(0)
    n, p = 7, 3
    features, prior = rng.normal(size=(n, p)), np.array([0.3, 0.2, 0.1])
    scores = rng.normal(size=(n, 2))
    logs, means = monitor._bets(jnp.asarray(features), jnp.asarray(prior), jnp.asarray(scores))
    for m in (1, 4, n):
        f = features[:m]
        shape = np.eye(m) + f * prior @ f.T
        for k in range(2):
            joint = stats.multivariate_t(shape=shape, df=monitor.DEGREES).logpdf(scores[:m, k])
            expected = joint - stats.norm.logpdf(scores[:m, k]).sum()
            np.testing.assert_allclose(logs[m - 1, k], expected, rtol=1e-9)
    ridge = np.linalg.solve(features.T @ features + np.diag(1 / prior), features.T @ scores)
    np.testing.assert_allclose(means, ridge.T, rtol=1e-8)


@pytest.mark.slow
def test_a_bet_on_the_spread_is_a_mean_of_ratios_of_densities():
    rng = np.random.default_rng(1)
    scores, widths = jnp.asarray(rng.normal(size=(2, 9, 2)))
    ones = jnp.ones((9, 1)).at[7:].set(0)  # two rows of padding
    logs = monitor._spread_bets(ones, scores, widths)
    ratios = []
    for level in monitor.LEVELS:
        for slope in monitor.SPREADS:
            scale = np.exp(level + slope * np.asarray(widths[:7]))
            each = stats.norm.logpdf(scores[:7], 0, scale) - stats.norm.logpdf(scores[:7])
            ratios.append(np.exp(each.cumsum(0)))
    np.testing.assert_allclose(logs[:7], np.log(np.mean(ratios, axis=0)), rtol=1e-9)


@pytest.mark.parametrize(("level", "slope"), [(0.0, 0.0), (0.2, -0.25), (1.5, 0.6)])
def test_the_fitted_spread_is_that_of_the_scores(level, slope):
    """Standard errors for n = 4000: .012, and .018 for the slope; the last rows are padding."""
    noise, widths = jax.random.normal(jax.random.key(3), (2, 5000, 1))
    ones = (jnp.arange(5000) < 4000).astype(noise.dtype)[:, None]
    spreads = monitor._spreads(ones, ones * noise * jnp.exp(level + slope * widths), ones * widths)
    np.testing.assert_allclose(spreads, [[level, slope]], atol=0.07)
    assert float(monitor._spreads(ones, noise, 0 * widths)[0, 1]) == 0


@pytest.mark.slow
def test_errors_of_the_spread_along_its_own_claim_are_found():
    """Too narrow where the posterior is sharp, which is not linear in x: bets on widths count."""

    def posterior(theta, x):
        deviation = 0.5**0.5 * jnp.exp(0.4 * jnp.cos(3 * x[0]))
        return -(((theta - x / 2) / deviation) ** 2).sum() / 2

    result = sbi.monitor(0, posterior, *pairs(5, 200), prior=PRIOR)
    assert result.verdict == "rejected"
    without = monitor.evidence(result.normal_scores, result.inputs, 0 * result.widths)[0]
    assert float(result.log_evidence[-1] - without[-1]) > math.log(20)
    assert np.all(np.asarray(result.spreads)[1:, 1] < -0.1)
    assert "fitted spread: theta_" in repr(result)


@pytest.mark.slow
def test_a_shift_is_no_spread_and_has_its_direction():
    """Posteriors are .99 deviations too high, and as wide as they should be."""
    thetas, xs = pairs(7, 200)
    result = sbi.monitor(0, lambda theta, x: exact(theta - 0.7, x), thetas, xs, prior=PRIOR)
    assert np.all(np.abs(np.asarray(result.spreads)[1:, 0]) < 3 / 400**0.5)
    text = repr(result)
    assert "claimed too high by " in text
    assert "anytime p = 0)" not in text
    lost = repr(replace(result, log_evidence=result.log_evidence.at[3:].set(jnp.nan)))
    assert "E = nan after 200 pairs" in lost
    assert "cannot tell" in lost
    assert "anytime p = nan" in lost


@pytest.mark.slow
def test_the_evidence_has_mean_1():
    # E of 3 pairs, by the mean over 20,000 data sets: its error is below .02
    scores = jax.random.normal(jax.random.key(0), (20_000, 3, 2))
    inputs, widths = jax.random.uniform(jax.random.key(1), (2, 20_000, 3, 2), minval=-1, maxval=1)
    e = np.exp(np.asarray(jax.vmap(lambda *a: monitor.evidence(*a)[0][-1])(scores, inputs, widths)))
    error = e.std() / len(e) ** 0.5
    assert error < 0.02
    assert abs(e.mean() - 1) < 4 * error


def test_more_pairs_rarely_recompile_and_keep_earlier_results():
    scores = jax.random.normal(jax.random.key(0), (128, 1))
    inputs = jax.random.normal(jax.random.key(1), (128, 2))
    programs = monitor._evidence._cache_size()
    logs = [monitor.evidence(scores[:n], inputs[:n], inputs[:n, :1])[0] for n in (70, 101, 128)]
    assert monitor._evidence._cache_size() == programs + 1
    for part in logs[:2]:
        np.testing.assert_array_equal(part, logs[2][: len(part)])


@pytest.mark.slow
def test_the_level_holds_at_every_time():
    def ever(key):
        keys = jax.random.split(key)
        scores, inputs = jax.random.normal(keys[0], (200, 2)), jax.random.normal(keys[1], (200, 3))
        return jnp.max(monitor.evidence(scores, inputs, inputs[:, 1:])[0]) >= math.log(20)

    keys = jax.random.split(jax.random.key(2), 1000)
    rejected = int(jnp.sum(jax.jit(lambda k: jax.lax.map(ever, k))(keys)))
    assert rejected <= stats.binom.ppf(0.999, 1000, 0.05)


@pytest.fixture(scope="module")
def evidence():
    so_far = None
    for batch in range(4):
        so_far = sbi.monitor(batch, narrow, *pairs(batch, 40), so_far=so_far, prior=PRIOR)
    return so_far


@pytest.mark.slow
def test_a_narrow_posterior_is_rejected_and_an_exact_one_is_not(evidence):
    assert evidence.verdict == "rejected"
    assert evidence.rejected_at <= 160
    right = sbi.monitor(0, exact, *pairs(9, 160), prior=PRIOR)
    assert right.verdict == "not rejected"
    assert float(right.p_value) > 0.05
    assert right.rejected_at is None
    assert "rejected after" in repr(evidence)
    assert "not rejected" in repr(right)


@pytest.mark.slow
def test_batches_do_not_change_what_came_before(evidence, tmp_path):
    first = sbi.monitor(0, narrow, *pairs(0, 40), prior=PRIOR)
    np.testing.assert_allclose(evidence.log_evidence[:40], first.log_evidence, rtol=1e-9)
    first.save(tmp_path / "evidence.npz")
    read = jaxcal.load(tmp_path / "evidence.npz")
    again = sbi.monitor(1, narrow, *pairs(1, 40), so_far=read, prior=PRIOR)
    np.testing.assert_allclose(evidence.log_evidence[:80], again.log_evidence, rtol=1e-9)


@pytest.mark.slow
def test_draws_serve_where_they_are_cheap():
    def posterior(xs):
        return dist.Normal(xs / 2 + 1, 0.5**0.5).to_event(1)

    result = sbi.monitor(0, posterior, *pairs(3, 60), prior=PRIOR)
    assert result.statistics[0] == "distance"
    assert result.verdict == "rejected"
    k = int(np.argmax(np.abs(np.asarray(result.slopes))[:, 0]))
    assert k > 0
    assert float(result.slopes[k, 0]) < -0.5  # parameters lie below what is claimed


@pytest.mark.slow
def test_what_cannot_be_monitored_is_said(evidence):
    with pytest.raises(ValueError, match="first call wants at least 20 pairs, got 5"):
        sbi.monitor(0, narrow, *pairs(0, 5), prior=PRIOR)
    with pytest.raises(TypeError, match="so_far"):
        sbi.monitor(0, narrow, *pairs(0, 40), so_far=0.3, prior=PRIOR)
    with pytest.raises(ValueError, match="so_far: it ranks density"):
        sbi.monitor(0, narrow, *pairs(0, 40), so_far=evidence, prior=PRIOR, names=["a", "b"])
    thetas, xs = pairs(0, 40)
    scores = jaxcal.Scores(jnp.zeros((40, 2)), jnp.zeros((40, 10, 2)), jnp.zeros((10, 2)))
    with pytest.raises(TypeError, match="ranks need log densities or draws"):
        sbi.monitor(0, scores, thetas, xs)


@pytest.mark.slow
def test_the_picture_shows_the_evidence_and_the_line(evidence):
    ax = importlib.import_module("jaxcal.plots.sbi").evidence(evidence)
    line, bound = ax.lines[:2]
    np.testing.assert_allclose(line.get_ydata(), np.asarray(evidence.log_evidence) / math.log(10))
    assert bound.get_ydata()[0] == pytest.approx(math.log10(20))
    assert evidence.figure() is not None


@pytest.mark.slow
def test_sorted_pairs_of_a_call_are_put_in_random_order():
    """Sorted by a parameter, one tells of the next: 100 of 100 right posteriors were rejected."""
    thetas, xs = pairs(0, 100)
    order = jnp.argsort(thetas[:, 0])
    sorted_pairs = sbi.monitor(0, exact, thetas[order], xs[order], prior=PRIOR)
    assert float(sorted_pairs.p_value) > 0.05
    assert sorted_pairs.warnings() == []
    evidence = None
    for rows in np.split(np.asarray(order), 4):  # nothing can be mended across calls
        evidence = sbi.monitor(0, exact, thetas[rows], xs[rows], prior=PRIOR, so_far=evidence)
    assert "[dependent-rows]" in str(evidence)


@pytest.mark.slow
def test_a_pair_is_evidence_once():
    thetas, xs = pairs(0, 30)
    with pytest.raises(ValueError, match="30 of 60 pairs repeat others"):
        sbi.monitor(0, exact, jnp.tile(thetas, (2, 1)), jnp.tile(xs, (2, 1)), prior=PRIOR)
    first = sbi.monitor(0, exact, thetas, xs, prior=PRIOR)
    with pytest.raises(ValueError, match="10 of 10 pairs repeat others"):
        sbi.monitor(1, exact, thetas[:10], xs[:10], prior=PRIOR, so_far=first)
    rounded = jnp.sign(xs)  # few values, which come again
    first = sbi.monitor(0, exact, thetas, rounded, prior=PRIOR)
    assert len(sbi.monitor(1, exact, *pairs(1, 9), prior=PRIOR, so_far=first).inputs) == 39


@pytest.mark.slow
def test_notes_on_the_pairs_of_all_calls_are_warnings():
    elsewhere, evidence = dist.Normal(jnp.full(2, 6.0), 1.0).to_event(1), None
    for batch in range(2):
        evidence = sbi.monitor(batch, exact, *pairs(batch, 25), so_far=evidence, prior=elsewhere)
        assert codes(evidence.warnings()) == [*evidence.notes] == ["unlike-prior"]


def of_named(theta, x):
    return -((theta - x["z"] / 2) ** 2).sum()


@pytest.mark.slow
def test_names_of_observations_may_change_their_order():
    """By the order of insertion, two calls exchanged the columns of their inputs."""
    results = []
    for reverse in (False, True):
        so_far = None
        for call in range(2):
            thetas, z = pairs(call, 40)
            named = {"z": z, "a": jax.random.normal(jax.random.key(call), (40, 2))}
            xs = dict(reversed(named.items())) if reverse and call else named
            so_far = sbi.monitor(call, of_named, thetas, xs, so_far=so_far, prior=PRIOR)
        results.append(so_far)
    np.testing.assert_array_equal(results[1].inputs, results[0].inputs)
    np.testing.assert_array_equal(results[1].log_evidence, results[0].log_evidence)


@pytest.mark.slow
def test_a_lost_row_leaves_the_inputs_of_others():
    thetas, z = pairs(0, 30)
    xs = {"z": z, "a": 10 + jax.random.normal(jax.random.key(1), (30, 1))}
    lost = xs | {"a": xs["a"].at[4].set(jnp.nan)}
    of_all = sbi.score_pairs(0, of_named, thetas, xs, prior=PRIOR).features
    rest = sbi.score_pairs(0, of_named, thetas, lost, prior=PRIOR, exclude_invalid_x=True).features
    np.testing.assert_array_equal(rest, jnp.delete(of_all, 4, axis=0))
    np.testing.assert_array_equal(of_all, jnp.concatenate([xs["a"], xs["z"]], axis=1))
