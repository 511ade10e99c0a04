"""The divergence of centres and log scales."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxcal.divergences.vectors import NodeScores, _Euclidean
from jaxcal.typing import Features, Key, Predictions
from jaxcal.whitening.contract import Whitener, checked
from jaxcal.whitening.densities import Regression


class LocationScale(_Euclidean, eqx.Module):
    r"""Divergence between predictions: how far apart their centres and log scales are.

    The Euclidean distance of vectors :math:`(c_p, \log D_p, R_p^{1/2})`, the last without its
    diagonal, with :math:`M_p = D_p R_p^{1/2}` by ``whitener``; centres in the units of the test.
    `Fisher` grows like 1 / width^4, so that the sharpest predictions rule its median or overflow;
    this grows like the logarithm of widths. Blind to all but location, scale and correlations.

    Args:
        whitener: `Regression`, `Landing` or `Moments`.

    Cost: that of the whitener.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> widths = jnp.exp(jax.random.normal(jax.random.key(0), (100,)))
        >>> targets = widths * (1 + jax.random.normal(jax.random.key(1), (100,)))
        >>> divergence = jaxcal.whitening.LocationScale()
        >>> predictions = dist.Normal(jnp.zeros(100), widths)
        >>> jaxcal.kccsd_test(2, predictions, targets, divergence=divergence).verdict
        'rejected'
    """

    whitener: Whitener = Regression()

    def __check_init__(self):
        checked(self.whitener, "whitener")

    @property
    def needs_nodes(self) -> bool:
        """Whether the whitener takes nodes."""
        return self.whitener.needs_nodes

    def features(self, key: Key, predictions: Predictions, at_nodes: NodeScores | None) -> Features:
        center, scale, _, _ = self.whitener.fit(predictions, at_nodes)
        deviations = jnp.sqrt(jnp.sum(scale**2, axis=2))
        i, j = np.triu_indices(center.shape[1], 1)
        roots = (scale / deviations[:, :, None])[:, i, j]
        return jnp.concatenate([center, jnp.log(deviations), roots], axis=1)
