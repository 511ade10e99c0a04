"""Every null keeps its level on calibrated data and sees a clear shift, judged by binomials."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from reference.nulls import Gamma, Multinomial, Spectrum

import jaxcal
from jaxcal.nulls import BlockNormal, DependentWild, HadamardWild, Wild

N, D = 50, 2
CALIBRATED, SHIFTED = 400, 50
QUICK = (Wild, DependentWild)
NULLS = [
    Wild(99),
    HadamardWild(99),
    DependentWild(99),
    Multinomial(99),
    Spectrum(99),
    Gamma(),
    BlockNormal(),
]


def density(params, y):
    mean, deviation = params
    return -jnp.sum(((y - mean) / deviation) ** 2) / 2


@pytest.mark.parametrize(
    ("null", "precondition"),
    [
        pytest.param(
            null,
            precondition,
            id=f"{type(null).__name__}-{precondition}",
            # the nulls on the same sums meet the published levels in test_skce.py too
            marks=[] if isinstance(null, QUICK) and precondition is None else pytest.mark.slow,
        )
        for null in NULLS
        for precondition in (None, "diagonal")
    ],
)
def test_level_and_power(null, precondition):
    """Gaussian predictions of different width; the targets of the last data sets are shifted."""

    def p_value(key, shift):
        x_key, width_key, y_key, test_key = jax.random.split(key, 4)
        mean = jax.random.normal(x_key, (N, D))
        width = jnp.exp(0.3 * jax.random.normal(width_key, (N, 1)))
        ys = mean + width * (jax.random.normal(y_key, (N, D)) + shift)
        predictions = jaxcal.Unnormalized(density, (mean, jnp.broadcast_to(width, (N, D))))
        return jaxcal.kccsd_test(
            test_key, predictions, ys, null=null, precondition=precondition
        ).p_value

    keys = jax.random.split(jax.random.key(11), CALIBRATED + SHIFTED)
    shifts = jnp.where(jnp.arange(len(keys)) < CALIBRATED, 0.0, 0.7)
    p = np.asarray(jax.jit(jax.vmap(p_value))(keys, shifts))
    # 5 to 39 of 400; the limit laws (multinomial, spectrum) are conservative at this n
    low, high = scipy.stats.binom.interval(0.9999, CALIBRATED, 0.05)
    assert low <= np.sum(p[:CALIBRATED] <= 0.05) <= high
    # the block test sees 93 % of these shifts, the others all
    least = scipy.stats.binom.ppf(1e-4, SHIFTED, 0.85 if isinstance(null, BlockNormal) else 0.97)
    assert np.sum(p[CALIBRATED:] <= 0.05) >= least


@pytest.mark.slow
@pytest.mark.parametrize("df", [1.0, 1.5, "half of them 8"])
def test_level_and_power_of_predictions_of_infinite_variance(df):
    """Student's t, whose centres and scales are estimated where moments are infinite."""

    def p_value(key, widened):
        center_key, width_key, y_key, test_key = jax.random.split(key, 4)
        center = 10 * jax.random.normal(center_key, (100,))
        width = jnp.exp(jax.random.normal(width_key, (100,)))
        freedom = jnp.where(jnp.arange(100) % 2 == 0, 1.5, 8.0) if isinstance(df, str) else df
        predictions = dist.StudentT(freedom, center, width)
        ys = center + widened * (predictions.sample(y_key) - center)
        return jaxcal.calibration_test(test_key, predictions, ys).p_value

    keys = jax.random.split(jax.random.key(12), CALIBRATED + SHIFTED)
    widened = jnp.where(jnp.arange(len(keys)) < CALIBRATED, 1.0, 2.0)
    p = np.asarray(jax.jit(lambda *all: jax.lax.map(lambda one: p_value(*one), all))(keys, widened))
    rejected = p <= 0.05
    low, high = scipy.stats.binom.interval(0.9999, CALIBRATED, 0.05)
    assert low <= rejected[:CALIBRATED].sum() <= high
    assert rejected[CALIBRATED:].mean() > 0.9
