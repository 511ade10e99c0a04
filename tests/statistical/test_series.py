"""What is said beside the p-value allows for dependence in time, too, under `DependentWild`."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.signal
import scipy.stats

import jaxcal
from jaxcal.nulls import DependentWild


def series(rho, n, *sets):
    """Normal series of variance 1 with autocorrelations rho^t, [*sets, n]."""
    noise = np.random.default_rng(0).normal(size=(*sets, n + 200))
    return scipy.signal.lfilter([(1 - rho**2) ** 0.5], [1, -rho], noise)[..., 200:]


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_errors_of_a_series_are_wider_by_its_dependence(rho):
    """A mean varies (1 + r) / (1 - r) times as much: r = rho for shifts, rho^2 for spreads."""
    errors, x = series(rho, 1000), np.random.default_rng(1).normal(size=1000)
    predictions, null = dist.Normal(x, 1.0), DependentWild(19)
    table = jaxcal.calibration_test(0, predictions, x + errors, null=null).table
    factors = np.array([((1 + r) / (1 - r)) ** 0.5 for r in (rho, rho**2)])
    width = (table.high - table.low)[:2] * 1000**0.5 / (2 * 1.96)
    plain = np.array([1, 0.5**0.5])  # standard deviations of a score and of half its square
    np.testing.assert_allclose(width[:, 0], plain * factors, rtol=0.2)
    np.testing.assert_allclose(width[0, 1], 1, rtol=0.2)  # along x, which is independent
    result = jaxcal.skce_test(0, predictions, x + 1 + errors, null=null)
    plain = 2 * np.std(result.contributions, ddof=1) * 1000**0.5
    np.testing.assert_allclose(result.standard_error / plain, factors[0], rtol=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(("rho", "n"), [(0.5, 600), (0.8, 300)])
def test_limits_of_a_series_hold_the_truth(rho, n):
    """At least .9 of the time: dependence is underestimated a little from so few observations."""
    sets = 200
    errors, x = series(rho, n, sets), np.random.default_rng(1).normal(size=(sets, n))

    def one(data):
        key, x, errors = data
        predictions, null = dist.Normal(x, 1.0), DependentWild(19)
        table = jaxcal.calibration_test(key, predictions, x + 1.5 * errors, null=null).table
        result = jaxcal.skce_test(key, predictions, x + 0.8 + errors, null=null)
        said = jnp.abs(table.effect[0, 0]) > (table.high - table.low)[0, 0] / 2
        interval = jaxcal.skce_interval(result)
        return said, table.p_adjusted[0, 0] <= 0.05, result.estimate, *interval[:2]

    keys = jax.random.split(jax.random.key(0), sets)
    said, named, estimates, low, high = jax.lax.map(one, (keys, x, errors), batch_size=20)
    most = scipy.stats.binom.isf(1e-3, sets, 0.1)
    missed = (low > jnp.mean(estimates)) | (high < jnp.mean(estimates))
    rates = [int(jnp.sum(part)) for part in (said, named, missed)]
    assert max(rates) <= most, rates
