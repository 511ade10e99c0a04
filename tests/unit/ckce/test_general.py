"""CKCE from kernel means, draws and scores, against NumPy, and as a way to rank forecasters."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import problems
import pytest

import jaxcal
from jaxcal.ckce import LowRank, ckce
from jaxcal.kernels import Constant, Gaussian

N = 40
KEYS = jax.random.split(jax.random.key(0), 3)
MEAN = jax.random.normal(KEYS[0], (N,))
YS = MEAN + jax.random.normal(KEYS[1], (N,))
OPTIONS = {"key": KEYS[2], "prediction_kernel": Gaussian(0.8)}


def by_hand(mean, sd, ys, ridge):
    """Normals in units of the targets, a Gaussian kernel on targets, one of 0.8 on (mean, sd)."""
    mean, ys = np.asarray(mean), np.asarray(ys)
    center, scale = np.mean(ys), np.std(ys)
    mean, ys = (mean - center) / scale, (ys - center) / scale
    sd = np.broadcast_to(sd / scale, mean.shape)
    gap = ys[:, None] - ys
    s2, v = np.median(np.abs(gap)[np.triu_indices(N, 1)]) ** 2, sd**2
    first = np.sqrt(s2 / (s2 + v))[:, None] * np.exp(
        -((mean[:, None] - ys) ** 2) / (2 * (s2 + v)[:, None])
    )
    total = s2 + v[:, None] + v
    second = np.sqrt(s2 / total) * np.exp(-((mean[:, None] - mean) ** 2) / (2 * total))
    d = np.exp(-(gap**2) / (2 * s2)) - first - first.T + second
    k = np.exp(-((mean[:, None] - mean) ** 2 + (sd[:, None] - sd) ** 2) / (2 * 0.8**2))
    return problems.trace_formula(k, d, ridge)


def test_normal_predictions_in_closed_form():
    sd = 0.5 + 0.1 * np.arange(1.0 * N) / N
    estimate = ckce(dist.Normal(MEAN, sd), YS, **OPTIONS)
    np.testing.assert_allclose(estimate.estimate, by_hand(MEAN, sd, YS, N**-0.25), rtol=1e-8)
    np.testing.assert_allclose(jnp.sum(estimate.contributions), estimate.estimate, rtol=1e-9)
    assert "CKCE, n = 40" in repr(estimate)


@pytest.mark.slow
def test_draws_come_near_the_closed_form():
    """Of a kernel that tells no predictions apart, as distances of draws are others."""
    options = {"key": 0, "prediction_kernel": Constant()}
    exact = ckce(dist.Normal(MEAN, 0.5), YS + 1, **options).estimate
    samples = MEAN[:, None] + 0.5 * jax.random.normal(KEYS[2], (N, 200))
    drawn = ckce(jaxcal.Draws(samples), YS + 1, **options).estimate
    np.testing.assert_allclose(drawn, exact, rtol=0.05)


def test_a_categorical_distribution_is_its_class_probabilities():
    q, y = problems.data(3, N)
    np.testing.assert_array_equal(ckce(dist.Categorical(q), y).estimate, ckce(q, y).estimate)


def unit(parameters, y):
    mean, sd = parameters
    return -jnp.sum(((y - mean) / sd) ** 2) / 2


def test_unnormalized_densities_are_ranked_by_scores():
    n = 150
    mean = 2 * jax.random.normal(KEYS[0], (n,))
    ys = mean + jax.random.normal(KEYS[1], (n,))

    def value(sd, shift):
        model = jaxcal.Unnormalized(unit, (mean + shift, jnp.full(n, sd)))
        return float(ckce(model, ys, **OPTIONS).estimate)

    right = value(1.0, 0.0)
    assert right < value(1.0, 0.7)
    assert right < value(0.6, 0.0)


def test_stein_products_are_those_of_the_stein_kernel():
    """Of claims with one width, whose own units are their means and that width."""
    sd = 1.3
    model = jaxcal.Unnormalized(unit, (MEAN, jnp.full(N, sd)))
    estimate = ckce(model, YS, key=0, ridge=0.1)
    z, l2 = np.asarray((YS - MEAN) / sd), 2 * (1 - 2 / 9) ** 3
    gap = z[:, None] - z
    stein = np.exp(-(gap**2) / (2 * l2)) * (np.outer(z, z) - gap**2 / l2 + 1 / l2 - gap**2 / l2**2)
    # scores differ by the difference of the means at every node
    mean = np.asarray(MEAN)
    apart = np.abs(mean[:, None] - mean)
    k = 1 + np.exp(-(apart**2) / (2 * np.median(apart[np.triu_indices(N, 1)]) ** 2))
    np.testing.assert_allclose(estimate.estimate, problems.trace_formula(k, stein, 0.1), rtol=1e-6)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"ridge": 0}, "ridge: wanted a positive"),
        ({"key": None}, "key: wanted a random key"),
        ({"given": YS}, "given: an option for class probabilities"),
        ({"target_kernel": np.eye(2)}, "target_kernel: an option for class probabilities"),
        ({"solver": LowRank(8)}, "solver: an option for class probabilities"),
    ],
)
def test_bad_input_is_named(option, message):
    with pytest.raises(ValueError, match=message):
        ckce(dist.Normal(MEAN, 1.0), YS, **{"key": 0} | option)
