"""A kernel on predictions times a statistic of the targets: each channel is the product by pair."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxcal.divergences import Vectors
from jaxcal.kernels import IMQ, Gaussian
from jaxcal.statistics.stein import Stein, SteinFeatures
from jaxcal.statistics.weighted import Inner, Weighted, WeightedFeatures

RNG = np.random.default_rng(0)
PHI, YS, SCORES, RESIDUALS = (jnp.asarray(RNG.normal(size=(5, q))) for q in (3, 2, 2, 4))
STEIN = Stein(Gaussian(1.0), dimension=2, components=True)


@pytest.mark.parametrize(
    ("statistic", "residual", "channels"),
    [(Inner(), RESIDUALS, 1), (STEIN, SteinFeatures(YS, SCORES), 2)],
    ids=["inner", "stein"],
)
def test_every_channel_of_a_statistic_is_weighed(statistic, residual, channels):
    pairwise = Weighted(IMQ(0.8), Vectors(PHI[:0]), statistic)
    features = WeightedFeatures(PHI, residual)
    assert pairwise.channels == channels
    k = (1 + np.sum((PHI[:, None] - PHI[None]) ** 2, axis=-1) / 0.8**2) ** -0.5
    wanted = k[None] * statistic.block(residual, residual)
    np.testing.assert_allclose(pairwise.block(features, features), wanted, rtol=1e-12)
    diagonal = np.diagonal(wanted, axis1=1, axis2=2)
    np.testing.assert_allclose(pairwise.diagonal(features), diagonal, rtol=1e-12)


def test_a_statistic_is_an_inner_product_by_default():
    features = WeightedFeatures(PHI, RESIDUALS)
    pairwise = Weighted(IMQ(0.8), Vectors(PHI[:0]))
    k = (1 + np.sum((PHI[:, None] - PHI[None]) ** 2, axis=-1) / 0.8**2) ** -0.5
    wanted = k * (RESIDUALS @ RESIDUALS.T)
    np.testing.assert_allclose(pairwise.block(features, features)[0], wanted, rtol=1e-12)
