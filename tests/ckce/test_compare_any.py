"""Comparing distributions, draws and unnormalized densities by the same call."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import jaxcal
from jaxcal import ckce

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


def compared(models, **options):
    return jaxcal.compare(0, models, Y, n_draws=99, **options)


def log_density(parameters, y):
    mean, deviation = parameters
    return -jnp.sum((y - mean) ** 2) / (2 * deviation**2)


def test_distributions_are_compared_by_kernel_means():
    result = compared(FORECASTS)
    alone = ckce.ckce(FORECASTS["biased"], Y, key=0, bandwidth=float(result.bandwidths[0]))
    np.testing.assert_allclose(result.estimate[0], alone.estimate, rtol=1e-6)
    assert set(result.best()) == {"right", "again"}
    assert float(result.differences.p_value[1, 2]) == 1
    scores = [-np.mean(forecast.log_prob(Y)) for forecast in FORECASTS.values()]
    np.testing.assert_allclose(result.skill["log"], scores, rtol=1e-6)
    # the targets lie that much too low
    shift = BIAS / np.std(Y)
    assert result.effect.low[0] < shift < result.effect.high[0]
    assert "shift" in str(result)
    assert "log" in str(result)


@pytest.mark.slow
def test_distributions_are_compared_inside_jit_and_vmap():
    def gaps(mean, y):
        models = {"biased": dist.Normal(mean + 0.5, 0.6), "right": dist.Normal(mean, 0.6)}
        result = jaxcal.compare(0, models, y, n_draws=19)
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
    again = jaxcal.compare(0, scaled, 10 * Y, n_draws=99)
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


def test_what_is_no_density_is_named_at_once():
    with pytest.raises(TypeError, match=r"log_density: wanted a function .* got an array"):
        jaxcal.Unnormalized(jnp.zeros(3), lambda params, y: 0.0)
    with pytest.raises(ValueError, match=r"draws \[n, m, d\] go as jaxcal.Draws"):
        jaxcal.compare(0, [np.zeros((5, 3, 2))] * 2, np.zeros((5, 2)))


def test_shifts_beyond_the_largest_that_was_tried_say_so():
    y = np.random.default_rng(3).normal(size=100)
    models = {
        "far": dist.Normal(jnp.full(100, 30.0), 1.0),
        "right": dist.Normal(jnp.zeros(100), 1.0),
    }
    text = str(jaxcal.compare(0, models, y, n_draws=99))
    assert re.search(r"far +above 1.6 +\[", text)
    assert "inf]" not in text
