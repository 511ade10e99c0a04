"""A kernel on predictions times several residuals: each channel is the product, pair by pair."""

import jax.numpy as jnp
import numpy as np

from jaxcal.divergences import Vectors
from jaxcal.kernels import IMQ, Gaussian
from jaxcal.pairwise.stein import Stein, SteinFeatures
from jaxcal.pairwise.weighted import Inner, Weighted, WeightedFeatures


def test_every_channel_of_every_residual_is_weighed():
    rng = np.random.default_rng(0)
    phi, ys, scores, residuals = (jnp.asarray(rng.normal(size=(5, q))) for q in (3, 2, 2, 4))
    stein = Stein(Gaussian(1.0), dimension=2, components=True)
    pairwise = Weighted(IMQ(0.8), Vectors(phi[:0]), (Inner(), stein))
    features = WeightedFeatures(phi, (residuals, SteinFeatures(ys, scores)))
    assert pairwise.channels == 3
    k = (1 + np.sum((phi[:, None] - phi[None]) ** 2, axis=-1) / 0.8**2) ** -0.5
    alone = [residuals @ residuals.T, *stein.block(*[SteinFeatures(ys, scores)] * 2)]
    wanted = k[None] * np.stack(alone)
    np.testing.assert_allclose(pairwise.block(features, features), wanted, rtol=1e-12)
    diagonal = np.diagonal(wanted, axis1=1, axis2=2)
    np.testing.assert_allclose(pairwise.diagonal(features), diagonal, rtol=1e-12)
