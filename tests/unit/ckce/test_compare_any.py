"""Comparing distributions, draws and unnormalized densities by the same call."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats

import jaxcal
from jaxcal import ckce
from jaxcal.ckce.probability import residuals

N = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=N)
Y = X + 0.6 * RNG.normal(size=N)
BIAS = 0.8  # found in nearly all data sets of this size; half a unit in 80 of 100
FORECASTS = {
    "biased": dist.Normal(X + BIAS, 0.6),
    "right": dist.Normal(X, 0.6),
    "again": dist.Normal(X, 0.6),
}


def compared(models, measure="ckce", **options):
    return jaxcal.compare(0, models, Y, n_draws=99, measure=measure, **options)


def log_density(parameters, y):
    mean, deviation = parameters
    return -jnp.sum((y - mean) ** 2) / (2 * deviation**2)


@pytest.mark.slow
def test_distributions_are_compared_by_kernel_means():
    result = compared(FORECASTS)
    alone = ckce.ckce(FORECASTS["biased"], Y, key=0, bandwidth=float(result.bandwidths[0]))
    np.testing.assert_allclose(result.estimate[0], alone.estimate, rtol=1e-6)
    assert set(result.best()) == {"right", "again"}
    assert float(result.differences.p_value[1, 2]) == 1
    scores = [-np.mean(forecast.log_prob(Y)) for forecast in FORECASTS.values()]
    np.testing.assert_allclose(result.skill["log"], scores, rtol=1e-6)
    assert "log" in str(result)


@pytest.mark.slow
def test_distributions_are_compared_inside_jit_and_vmap():
    def gaps(mean, y):
        models = {"biased": dist.Normal(mean + 0.5, 0.6), "right": dist.Normal(mean, 0.6)}
        result = jaxcal.compare(0, models, y, n_draws=19, measure="ckce")
        return result.corrected, result.skill["log"]

    alone = gaps(jnp.asarray(X), jnp.asarray(Y))
    means, ys = jnp.stack([X, X]), jnp.stack([Y, Y[::-1]])
    for inside in (jax.jit(gaps)(means[0], ys[0]), jax.jit(jax.vmap(gaps))(means, ys)):
        for a, b in zip(alone, inside, strict=True):
            np.testing.assert_allclose(a, b.reshape(-1, 2)[0], rtol=1e-9)


@pytest.mark.slow
def test_draws_and_densities_up_to_their_constants():
    draws = {
        "right": jaxcal.Draws(X[:, None] + 0.6 * RNG.normal(size=(N, 20))),
        "biased": jaxcal.Draws(X[:, None] + 0.6 + 0.6 * RNG.normal(size=(N, 20))),
        "closed": FORECASTS["right"],
    }
    by_draws = compared(draws)
    assert set(by_draws.best()) == {"right", "closed"}
    np.testing.assert_array_equal(np.isnan(by_draws.skill["log"]), [True, True, False])

    deviations = jnp.full(N, 0.6)
    densities = {
        "right": jaxcal.Unnormalized(log_density, (jnp.asarray(X), deviations)),
        "biased": jaxcal.Unnormalized(log_density, (jnp.asarray(X) + 0.6, deviations)),
    }
    by_scores = compared(densities)
    assert by_scores.best() == ["right"]
    assert by_scores.skill == {}
    # no constant and no unit of the density changes anything
    scaled = {
        name: jaxcal.Unnormalized(lambda p, y: log_density(p, y / 10) + 3, model.params)
        for name, model in densities.items()
    }
    again = jaxcal.compare(0, scaled, 10 * Y, n_draws=99, measure="ckce")
    np.testing.assert_allclose(again.corrected, by_scores.corrected, rtol=1e-6)


def test_options_and_models_that_do_not_go_together_are_named():
    with pytest.raises(ValueError, match="rank: an option for class probabilities"):
        compared(FORECASTS, rank=3)
    with pytest.raises(ValueError, match="bandwidth: 'own' is an option"):
        compared(FORECASTS, bandwidth="own")
    mixed = {
        "density": jaxcal.Unnormalized(log_density, (jnp.asarray(X), jnp.ones(N))),
        "array": np.full((N, 2), 0.5),
    }
    with pytest.raises(TypeError, match=r"models\[array\]"):
        compared(mixed)
    with pytest.raises(ValueError, match=r"models\[short\]"):
        compared({"right": FORECASTS["right"], "short": dist.Normal(X[1:], 0.6)})


@pytest.mark.parametrize("measure", ["ckce", "skce"])
def test_only_bandwidths_that_are_used_are_reported(measure):
    """A bandwidth is that of kernels without one, as for class probabilities."""
    kernel = jaxcal.kernels.Gaussian(0.5)
    plain = compared(FORECASTS, measure, prediction_kernel=kernel)
    result = compared(FORECASTS, measure, prediction_kernel=kernel, bandwidth=3.0)
    np.testing.assert_array_equal(result.estimate, plain.estimate)
    np.testing.assert_array_equal(result.bandwidths, 1)


def test_what_is_no_density_is_named_at_once():
    with pytest.raises(TypeError, match=r"log_density: wanted a function .* got an array"):
        jaxcal.Unnormalized(jnp.zeros(3), lambda params, y: 0.0)
    with pytest.raises(ValueError, match=r"draws \[n, m, d\] go as jaxcal.Draws"):
        jaxcal.compare(0, [np.zeros((5, 3, 2))] * 2, np.zeros((5, 2)))


def rank_error(shift, spread):
    """Root mean square error of the probabilities of events of normal forecasts."""
    levels = np.arange(0.05, 1, 0.1)
    true = scipy.stats.norm.cdf(shift + spread * scipy.stats.norm.ppf(levels))
    return float(np.sqrt(np.mean((true - levels) ** 2)))


@pytest.mark.slow
def test_kinds_have_one_error_in_units_of_probability():
    n, rng = 2000, np.random.default_rng(1)
    x = rng.normal(size=n)
    y = x + 0.6 * rng.normal(size=n)
    models = {
        "biased": dist.Normal(x + 0.3, 0.6),
        "too wide": jaxcal.Unnormalized(log_density, (jnp.asarray(x), jnp.full(n, 1.2))),
        "too sure": jaxcal.Draws(x[:, None] + 0.3 * rng.normal(size=(n, 200))),
        "right": jaxcal.Unnormalized(log_density, (jnp.asarray(x), jnp.full(n, 0.6))),
    }
    result = jaxcal.compare(0, models, y, n_draws=199)
    wanted = [rank_error(0.5, 1), rank_error(0, 2), rank_error(0, 0.5), 0]
    low, high = np.sqrt(result.low), np.sqrt(result.high)
    assert np.all((low <= wanted) & (wanted <= high))
    np.testing.assert_allclose(result.error[:3], wanted[:3], atol=0.03)
    assert result.measure == "probability"
    assert result.best() == ["right"]
    inside = 2 * scipy.stats.norm.cdf(0.5 * scipy.stats.norm.ppf(0.95)) - 1
    np.testing.assert_allclose(result.covered.inside[2, 0], inside, atol=0.05)
    np.testing.assert_allclose(result.covered.below[0, 0], scipy.stats.norm.cdf(0.5), atol=0.05)
    said = {
        line.split("   ")[0].strip(): line for line in str(result).splitlines() if "hold" in line
    }
    assert "overconfident" in said["too sure"]
    assert "underconfident" in said["too wide"]
    assert "says too much" in said["biased"]


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.5, 2.0])
@pytest.mark.parametrize(("m", "most"), [(100, 0.015), (40, 0.075), (24, 0.25)])
def test_few_draws_of_a_model_do_not_make_it_look_better(spread, m, most):
    """Ranks among m draws are blurred by O(1 / m): of 50, alone, by .06 and .13 of the error."""
    n, random = 20_000, np.random.default_rng(1)
    x = random.normal(size=n)
    y = x + random.normal(size=n)
    models = {
        "closed": dist.Normal(x, spread),
        "density": jaxcal.Unnormalized(log_density, (jnp.asarray(x), jnp.full(n, spread))),
        "draws": jaxcal.Draws(x[:, None] + spread * random.normal(size=(n, m))),
    }
    levels = np.arange(0.05, 1, 0.1)
    true = scipy.stats.norm.cdf(spread * scipy.stats.norm.ppf(levels))
    result = jaxcal.compare(0, models, y, n_draws=99)
    deviations = (result.high - result.low) / 4
    error = np.mean((true - levels) ** 2)
    # what is left, by the binomial law of ranks: of points and distributions as of 100 draws
    left = error * jnp.asarray([0.015, 0.015, most])
    assert np.all(np.abs(result.corrected - error) < 3 * deviations + left)


def test_errors_along_a_coordinate_are_those_of_the_mean_square():
    ranks = jnp.asarray(np.random.default_rng(0).uniform(size=(500, 2)) ** [1, 2])
    mean = jnp.mean(residuals(ranks)[0], axis=0)
    levels = np.arange(0.05, 1, 0.1)
    gaps = np.mean(np.asarray(ranks)[:, :, None] <= levels, axis=0) - levels
    np.testing.assert_allclose(jnp.sum(mean**2) / 2, np.mean(gaps**2), rtol=1e-6)


@pytest.mark.slow
def test_what_has_no_ranks_is_named_and_bad_rows_are_counted():
    with pytest.raises(TypeError, match=r"models\[model 1\]: scores alone give no ranks"):
        compared([FORECASTS["right"], jaxcal.Scores(-Y)], measure="probability")
    with pytest.raises(ValueError, match=r"models\[short\]"):
        compared({"right": FORECASTS["right"], "short": dist.Normal(X[1:], 0.6)}, "probability")
    lost = jaxcal.Unnormalized(log_density, (jnp.asarray(X).at[3].set(jnp.nan), jnp.full(N, 0.6)))
    result = compared({"lost": lost, **FORECASTS}, measure="probability")
    assert np.isnan(result.corrected[0])
    assert int(result.nonfinite_predictions[0]) == 1
    assert any("1 of its predictions" in says for says in result.warnings())
    assert set(result.best()) == {"right", "again"}
