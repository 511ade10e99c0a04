"""JKCE, which is SKCE with the kernels of CKCE: a baseline of Moskvichev and Sejdinovic.

`jaxcal.compare(.., measure="skce")` compares models by it.
"""

from functools import partial

import jax
import jax.numpy as jnp

from jaxcal.ckce import kernels
from jaxcal.ckce.inputs import checked, residuals
from jaxcal.ckce.kernels import simplex_kernel
from jaxcal.divergences.vectors import Vectors
from jaxcal.engine.quadratic import TILE, means, quadratic_sums
from jaxcal.statistics.weighted import Weighted, WeightedFeatures


@partial(jax.jit, static_argnames="tile")
def _means(q, labels, kernel, tile):
    kernel, _ = kernels.fill(kernel, q)
    pairwise = Weighted(kernel, Vectors(q[:0]))
    features = WeightedFeatures(q, residuals(q, labels))
    return means(quadratic_sums(pairwise, features, jnp.zeros((len(q), 0)), tile=tile))


def jkce(predictions, targets, *, prediction_kernel=None, tile=TILE):
    """Estimates with and without the products of observations with themselves (Section 4.3)."""
    q, labels = checked(predictions, targets)
    if len(q) < 2:
        raise ValueError("predictions: JKCE is a sum over pairs, got n=1")
    kernel = simplex_kernel() if prediction_kernel is None else prediction_kernel
    return _means(q, labels, kernel, tile)
