"""Distance between Laplace predictions in closed form."""

import equinox as eqx
import jax.numpy as jnp

from jaxcal.divergences.vectors import NodeScores, _Euclidean
from jaxcal.models import Standardized
from jaxcal.models.families import Laplaces, distribution_of
from jaxcal.models.sampling import check_batch
from jaxcal.typing import Features, Key, PredictionsLike


class LaplaceWasserstein(_Euclidean, eqx.Module):
    r"""2-Wasserstein distance of Laplace predictions with independent coordinates.

    :math:`\sum_q (\mu_q - \mu'_q)^2 + 2 (\beta_q - \beta'_q)^2`, a distance of vectors
    :math:`[\mu; \sqrt2 \beta]`, in the units of the test.

    Raises:
        TypeError: When used, predictions are no Laplace distributions.

    Cost: O(n d).

    Source: Widmann, Lindsten and Zachariah (2021), App. D.2.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> predictions = dist.Laplace(centers, 1.0)
        >>> divergence = jaxcal.divergences.LaplaceWasserstein()
        >>> jaxcal.skce_test(1, predictions, centers + 1 + noise, divergence=divergence).verdict
        'rejected'
    """

    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Features:
        original = predictions.predictions if isinstance(predictions, Standardized) else predictions
        check_batch(original)
        distribution = distribution_of(predictions)
        if not isinstance(distribution, Laplaces):
            raise TypeError(
                f"this distance has a closed form for numpyro Laplace predictions only, got "
                f"{type(original).__name__}"
            )
        return jnp.concatenate([distribution.loc, 2**0.5 * distribution.scale], axis=-1)
