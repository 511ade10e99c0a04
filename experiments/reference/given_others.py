"""Shift and spread of each coordinate given the others, which accuse the innocent (`faults`)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.moments import attribution
from jaxcal.moments.attribution import _covariances, _positive, _pseudo_values
from jaxcal.results import Means
from jaxcal.typing import Points


class GivenOthers(NamedTuple):
    """`Means` of shifts in claimed conditional deviations, and of logarithms of claimed over actual
    ones, a coordinate each."""

    mean: Means
    spread: Means


def given_others(
    ys: Points, scores: Points, centers: Points, covariances: Float[Array, "n d d"]
) -> GivenOthers:
    """As `jaxcal.moments.attribution.faults`, with the diagonal of the precision in the place of
    the inverse variances: an error of one coordinate affects those correlated with it."""
    roots = jnp.sqrt(jnp.diagonal(jnp.linalg.inv(covariances), axis1=1, axis2=2))
    alone, others = -scores / roots, (ys - centers) * roots
    variance, changes = _positive(*_covariances(alone, others))
    spread = _pseudo_values(-jnp.log(variance) / 2, -changes / 2)
    return GivenOthers(attribution.means(-alone), attribution.means(spread))
