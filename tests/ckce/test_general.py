"""CKCE from kernel means, draws and scores, against NumPy, and as a way to rank forecasters."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import problems
import pytest

import jaxcal
from jaxcal.ckce import ckce, ckce_means, ckce_stein
from jaxcal.divergences import Wasserstein
from jaxcal.kernels import Gaussian

N = 40
KEYS = jax.random.split(jax.random.key(0), 3)
MEAN = jax.random.normal(KEYS[0], (N,))
YS = MEAN + jax.random.normal(KEYS[1], (N,))
FIXED = {
    "divergence": Wasserstein(),
    "prediction_kernel": Gaussian(0.8),
    "target_kernel": Gaussian(0.7),
    "standardize": False,
}


def by_hand(mean, sd, ys, ridge):
    """Normals, a Gaussian kernel of length 0.7 on targets, one of 0.8 on (mean, sd)."""
    mean, ys = np.asarray(mean), np.asarray(ys)
    sd = np.broadcast_to(sd, mean.shape)
    s2, v = 0.7**2, sd**2
    gap = ys[:, None] - ys
    first = np.sqrt(s2 / (s2 + v))[:, None] * np.exp(
        -((mean[:, None] - ys) ** 2) / (2 * (s2 + v)[:, None])
    )
    total = s2 + v[:, None] + v
    second = np.sqrt(s2 / total) * np.exp(-((mean[:, None] - mean) ** 2) / (2 * total))
    d = np.exp(-(gap**2) / (2 * s2)) - first - first.T + second
    k = np.exp(-((mean[:, None] - mean) ** 2 + (sd[:, None] - sd) ** 2) / (2 * 0.8**2))
    return problems.trace_formula(k, d, ridge)


def test_normal_predictions_in_closed_form():
    sd = 0.5 + 0.1 * jnp.arange(1.0 * N) / N
    estimate = ckce_means(KEYS[2], dist.Normal(MEAN, sd), YS, **FIXED)
    np.testing.assert_allclose(estimate.estimate, by_hand(MEAN, sd, YS, N**-0.25), rtol=1e-8)
    np.testing.assert_allclose(jnp.sum(estimate.contributions), estimate.estimate, rtol=1e-9)
    assert "CKCE, n = 40" in repr(estimate)


@pytest.mark.slow
def test_draws_come_near_the_closed_form():
    exact = ckce_means(KEYS[2], dist.Normal(MEAN, 0.5), YS, **FIXED).estimate
    drawn = ckce_means(KEYS[2], dist.Normal(MEAN, 0.5), YS, n_draws=200, **FIXED).estimate
    np.testing.assert_allclose(drawn, exact, rtol=0.1)


def test_classes_go_the_same_way():
    q, y = problems.data(3, N)
    estimate = ckce_means(KEYS[2], q, y, prediction_kernel=Gaussian(0.3), ridge=0.1).estimate
    wanted = ckce(q, y, prediction_kernel=Gaussian(0.3), ridge=0.1).estimate
    np.testing.assert_allclose(estimate, wanted, rtol=1e-8)


def unit(parameters, y):
    mean, sd = parameters
    return -jnp.sum(((y - mean) / sd) ** 2) / 2


def test_unnormalized_densities_are_ranked_by_scores():
    n = 150
    mean = 2 * jax.random.normal(KEYS[0], (n,))
    ys = mean + jax.random.normal(KEYS[1], (n,))
    options = {"target_kernel": Gaussian(1.0), "prediction_kernel": Gaussian(2.0)}

    def value(sd, shift):
        # in units of its own score, so that a width alone is no advantage
        model = jaxcal.Unnormalized(unit, (mean + shift, jnp.full(n, sd)))
        return float(
            ckce_stein(KEYS[2], model, ys, base_measure=jnp.zeros((1, 1))[0], **options).estimate
        )

    right = value(1.0, 0.0)
    assert right < value(1.0, 0.7)
    assert right < value(0.6, 0.0)


def test_stein_products_are_those_of_the_stein_kernel():
    model = jaxcal.Unnormalized(unit, (MEAN, jnp.ones(N)))
    base = jnp.asarray([0.0, 1.0])
    estimate = ckce_stein(
        KEYS[2],
        model,
        YS,
        base_measure=base,
        standardize=False,
        target_kernel=Gaussian(0.7),
        prediction_kernel=Gaussian(0.8),
        ridge=0.1,
    )
    y, score, l2 = np.asarray(YS), np.asarray(MEAN - YS), 0.7**2
    gap = y[:, None] - y
    kernel = np.exp(-(gap**2) / (2 * l2))
    stein = kernel * (
        score[:, None] * score + (score[:, None] - score) * gap / l2 + 1 / l2 - gap**2 / l2**2
    )
    # scores differ by the difference of the means at every base point
    mean = np.asarray(MEAN)
    k = np.exp(-((mean[:, None] - mean) ** 2) / (2 * 0.8**2))
    np.testing.assert_allclose(estimate.estimate, problems.trace_formula(k, stein, 0.1), rtol=1e-7)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="precondition: not served"):
        ckce_stein(KEYS[2], dist.Normal(MEAN, 1.0), YS, precondition="diagonal")
    with pytest.raises(ValueError, match="ridge: wanted a positive"):
        ckce_means(KEYS[2], dist.Normal(MEAN, 1.0), YS, ridge=0)
