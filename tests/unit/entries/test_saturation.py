"""Normal scores of ranks among m draws: shifts that saturate, and spreads beside them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats

import jaxcal
from jaxcal.entries import saturation
from jaxcal.sbi.ranks import diagnosed


def drawn_ranks(seed, n, m, shift, deviation, sets=1):
    random = np.random.default_rng(seed)
    targets = shift + deviation * random.normal(size=(n, sets))
    below = random.binomial(m, scipy.stats.norm.cdf(targets))
    return jnp.asarray((below + random.random((n, sets))) / (m + 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("m", "shift", "deviation"), [(9, -1.0, 1.5), (20, 2.0, 0.7), (97, 3.0, 1.0)]
)
def test_moments_of_scores_are_as_simulated_and_inverted(m, shift, deviation):
    """By 200,000 scores: errors of the mean and of the log deviation are below .004."""
    scores = scipy.stats.norm.ppf(np.asarray(drawn_ranks(m, 200_000, m, shift, deviation))[:, 0])
    at = jnp.asarray([shift]), jnp.log(jnp.asarray([deviation]))
    mean, log, tie = (saturation.look_up(name, m, *at) for name in ("mean", "log", "tie"))
    np.testing.assert_allclose(mean, scores.mean(), atol=0.01)
    np.testing.assert_allclose(log, np.log(scores.std()), atol=0.01)
    third = ((scores - scores.mean()) ** 3).mean() / scores.var() ** 2 / 2
    np.testing.assert_allclose(tie, third, atol=0.04)
    np.testing.assert_allclose(saturation.inverted(mean, log, m), jnp.stack(at), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("m", [20, 99])
def test_a_shift_is_no_spread_and_its_limits_hold(m):
    """100 sets of n = 500: without the correction all name a spread at a shift of 2 and more."""
    for shift in (0.0, 1.0, 2.0, 3.0):
        of = diagnosed(
            jax.random.key(0), drawn_ranks(1, 500, m, shift, 1.0, sets=100), None, 0.05, m
        )
        p = np.asarray(of.marginal_spread.p_value)
        assert np.sum(p <= 0.05) <= scipy.stats.binom.ppf(0.999, 100, 0.05)
        for means, wanted in ((of.shift, -shift), (of.marginal_spread, 0)):
            low, high = np.asarray(means.low), np.asarray(means.high)
            covered = np.sum((low <= wanted) & (wanted <= high))
            assert covered >= scipy.stats.binom.ppf(0.001, 100, 0.95)
            np.testing.assert_allclose(np.median(means.estimate), wanted, atol=0.15)


@pytest.mark.slow
def test_a_shifted_narrow_posterior_is_not_called_too_wide():
    of = diagnosed(jax.random.key(0), drawn_ranks(2, 2000, 20, 2.5, 1.4), None, 0.05, 20)
    assert of.shift.low[0] < -2.5 < of.shift.high[0]
    assert of.marginal_spread.high[0] < 0
    assert of.marginal_spread.p_adjusted[0] < 0.01
    assert of.marginal_spread.low[0] < -np.log(1.4) < of.marginal_spread.high[0]


@pytest.mark.slow
def test_errors_in_thirds_of_x_are_corrected_for_few_draws():
    """Actual deviations are 1 and 3 times those of 20 draws; variances by ranks were 1 and 2.8."""
    parts = [drawn_ranks(4, 2000, 20, 0.0, 1.0), drawn_ranks(5, 2000, 20, 0.5, 3.0)]
    x = jnp.repeat(jnp.arange(2.0), 2000)[:, None]
    thirds = diagnosed(jax.random.key(0), jnp.concatenate(parts), x, 0.05, 20).thirds
    assert np.all(np.isnan(np.asarray(thirds)[:, 1]))  # equal values are in one third
    np.testing.assert_allclose(1 - thirds[1, ::2], [1, 9], rtol=0.25)
    np.testing.assert_allclose(thirds[0, ::2], [0, -0.5], atol=0.3)


@pytest.mark.slow
def test_limits_of_a_spread_that_nothing_tells_of_are_wide():
    of = diagnosed(jax.random.key(0), drawn_ranks(3, 500, 20, 6.0, 1.0), None, 0.05, 20)
    assert of.marginal_spread.p_value[0] == 1
    np.testing.assert_allclose([of.marginal_spread.low[0], of.marginal_spread.high[0]], [-2.5, 2.5])
    assert of.shift.p_value[0] < 1e-6


@pytest.mark.slow
def test_a_shift_alone_is_named_alone():
    centers, noise = jax.random.normal(jax.random.key(0), (2, 500))
    result = jaxcal.calibration_test(1, dist.Normal(centers, 1.0), centers + noise + 2)
    (said,) = result.table.sentences()
    assert said.startswith("shift of 0: claimed too low by 2 sd")
    assert result.table.low[0, 0] < -2 < result.table.high[0, 0]


@pytest.mark.slow
def test_float32_and_nan_stay_what_they_are():
    """With x64 and strict promotion; an unknown mean has no limits of its spread."""
    means, logs = jnp.asarray([[1.0, jnp.nan], [0.0, 0.1]], jnp.float32)
    of_mean, of_log = jnp.full((2, 2), 0.05, jnp.float32)
    sizes = saturation.corrected(means, logs, of_mean, of_log, 20)
    for numbers in (*sizes.shift, *sizes.spread):
        assert numbers.dtype == jnp.float32
        np.testing.assert_array_equal(np.isnan(numbers), [False, True])
