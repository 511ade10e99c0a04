"""The regression problems: moments and laws that are known, and the calibration they promise."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from reference.regression import friedman1, gaussian_forecasts, least_squares, noisy_sine

from jaxcal.kernels import Gaussian, Laplace
from jaxcal.skce import block_estimates


def test_the_noisy_sine_has_its_mean_and_width(key):
    xs, ys = noisy_sine(key, 50_000)
    assert scipy.stats.kstest(np.asarray(xs), "uniform", (-1, 2)).pvalue > 1e-4
    noise = np.asarray((ys - jnp.sin(jnp.pi * xs)) / (0.15 * (1 + xs)))
    assert scipy.stats.kstest(noise, "norm").pvalue > 1e-4


def test_the_line_of_least_squares(key):
    xs, ys = noisy_sine(key, 50_000)
    line = least_squares(xs, ys)
    # standard errors: deviation / sqrt(n) for the intercept, times sqrt(3) for the slope
    error = 0.4754 / 50_000**0.5
    assert abs(line.intercept) < 4 * error
    assert abs(line.slope - 3 / np.pi) < 4 * 3**0.5 * error
    assert abs(line.deviation - 0.47543) < 4 * error
    few = least_squares(xs[:20], ys[:20])
    wanted = scipy.stats.linregress(np.asarray(xs[:20]), np.asarray(ys[:20]))
    np.testing.assert_allclose([few.slope, few.intercept], wanted[:2], rtol=1e-10)
    residuals = np.asarray(ys[:20] - few(xs[:20]))
    np.testing.assert_allclose(few.deviation, np.std(residuals, ddof=1), rtol=1e-10)
    with pytest.raises(ValueError, match="at least 3 observations, got 2"):
        least_squares(xs[:2], ys[:2])


@pytest.mark.parametrize("d", [1, 10])
@pytest.mark.parametrize("calibrated", [True, False])
def test_gaussian_forecasts_follow_their_laws(d, calibrated, key):
    means, deviation, ys = gaussian_forecasts(key, 50_000, d=d, calibrated=calibrated)
    assert means.shape == ys.shape == (50_000, d)
    assert deviation == 0.1
    assert np.all(means == means[:, :1])
    assert scipy.stats.kstest(np.asarray(means[:, 0]), "uniform").pvalue > 1e-4
    centre = means if calibrated else means.at[:, 0].set(0.1)
    noise = np.asarray((ys - centre) / 0.1)
    assert scipy.stats.kstest(noise.ravel(), "norm").pvalue > 1e-4
    assert np.abs(np.corrcoef(noise.T) - np.eye(d)).max() < 5 / 50_000**0.5


@pytest.mark.parametrize(
    ("d", "calibrated", "skce"),
    [(1, True, 0.0), (10, True, 0.0), (1, False, 0.1107737), (10, False, 0.0595975)],
)
def test_their_calibration_error_is_the_integral(d, calibrated, skce, key):
    means, deviation, ys = gaussian_forecasts(key, 40_000, d=d, calibrated=calibrated)
    estimates = block_estimates(
        key,
        dist.Normal(means, deviation).to_event(1),
        ys,
        size=10,
        standardize=False,
        target_kernel=Gaussian(1.0),
        prediction_kernel=Laplace(1.0),
    )
    assert abs(estimates.estimate - skce) < 4 * estimates.standard_error
    assert estimates.standard_error < 0.002


def test_friedmans_function_of_five_inputs(key):
    xs, ys = friedman1(key, 50_000)
    assert xs.shape == (50_000, 10)
    assert scipy.stats.kstest(np.asarray(xs).ravel()[:50_000], "uniform").pvalue > 1e-4
    x = np.asarray(xs).T
    clean = 10 * np.sin(np.pi * x[0] * x[1]) + 20 * (x[2] - 0.5) ** 2 + 10 * x[3] + 5 * x[4]
    assert scipy.stats.kstest(np.asarray(ys) - clean, "norm").pvalue > 1e-4


@pytest.mark.parametrize(
    "simulate", [noisy_sine, friedman1, partial(gaussian_forecasts, calibrated=True)]
)
def test_keys_decide_and_counts_are_checked(simulate):
    one, same, other = (simulate(jax.random.key(k), 5) for k in (1, 1, 2))
    jax.tree.map(np.testing.assert_array_equal, one, same)
    assert not np.array_equal(one[0], other[0])
    for wrong in (0, -1, True):
        with pytest.raises(ValueError, match="n: wanted a whole number of at least 1"):
            simulate(jax.random.key(0), wrong)


def test_dimensions_are_checked(key):
    with pytest.raises(ValueError, match="d: wanted a whole number of at least 1, got 0"):
        gaussian_forecasts(key, 3, d=0, calibrated=True)
