"""Random features: a finite-rank statistic in linear time instead of all pairs."""

from collections.abc import Callable

import equinox as eqx
from jaxtyping import Array

from jaxcal.divergences.simplex import TotalVariation
from jaxcal.divergences.vectors import is_euclidean
from jaxcal.kernels.points import Constant, L1Laplace, Laplace
from jaxcal.read import checks
from jaxcal.statistics.finite_rank import Draw, FiniteRank, in_waves
from jaxcal.statistics.weighted import Weighted, WeightedFeatures
from jaxcal.typing import DivergenceLike, Features, KernelLike, Key, Pairwise


class RandomFeatures(eqx.Module):
    """Option ``features`` of the tests: random features of the joint kernel, for linear time.

    The product of the kernels on predictions and targets is replaced by ``n_features`` random
    waves of both, and the matrix H of all pairs by a product of n x p and p x n matrices:
    p = n_features d for a Stein test with targets [d], p = n_features for `skce_test`. The level
    holds for every number of features; power approaches that of all pairs as the number grows
    (measured in `experiments/linear`).

    Kernels of other packages need a method ``frequencies(key, count, d)`` that draws from their
    spectral density, or ``precisions(key, count)`` (`jaxcal.kernels.frequencies`). Statistics of
    targets need one of the two methods named in `of`, distances between predictions
    ``vectors(features)`` and ``euclidean = True``. TypeError otherwise.

    Args:
        key: Random key of the frequencies: one key gives the same features for every model.
        n_features: Number of features, half of them cosines and half sines; even.
        orthogonal: Whether to draw frequencies orthogonal in blocks, which lowers their error.

    Cost: n p (b + p) multiplications per test with b draws of the null.

    Source: Rahimi and Recht (2007); Yu et al. (2016) for orthogonal frequencies.

    Example:
        >>> import jax, numpyro.distributions as dist
        >>> from jaxcal import RandomFeatures, kccsd_test
        >>> from jaxcal.nulls import Eigenvalues
        >>> x, noise = jax.random.normal(jax.random.key(0), (2, 10_000))
        >>> result = kccsd_test(1, dist.Normal(x, 1.0), x + 1.2 * noise,
        ...                     features=RandomFeatures(2, 50), null=Eigenvalues())
        >>> result.verdict
        'rejected'
    """

    key: Key = eqx.field(converter=checks.key)
    n_features: int = eqx.field(default=100, static=True)
    orthogonal: bool = eqx.field(default=True, static=True)

    def __check_init__(self):
        if checks.integer(self.n_features, "n_features", least=2) % 2:
            raise ValueError(
                f"n_features: a cosine and a sine share a frequency, so their number is even; got "
                f"{self.n_features}"
            )
        checks.flag(self.orthogonal, "orthogonal")

    def of(
        self,
        weighted: Pairwise,
        features: WeightedFeatures,
        target_kernel: KernelLike = Constant(),
    ) -> FiniteRank:
        """Return a kernel on predictions times a statistic of the targets as random features.

        Args:
            weighted: A `jaxcal.statistics.weighted.Weighted` whose statistic has a method
                ``vectors(features)``, [channels, q, n], with the statistic as inner product, or
                ``waves(draw, features)`` (`jaxcal.statistics.finite_rank.HasWaves`).
            features: Features of the observations.
            target_kernel: Kernel on targets, with its bandwidth, for a statistic with waves.

        Returns:
            The finite-rank statistic, with the same features; its mean over keys is the statistic
            of all pairs.
        """
        if not isinstance(weighted, Weighted):
            raise TypeError(
                f"features: random features are those of a kernel on predictions times a statistic "
                f"of targets, jaxcal.statistics.weighted.Weighted, not of {type(weighted).__name__}"
            )
        vectors, kernel = _vectors(weighted.divergence, weighted.prediction_kernel)
        along = vectors(features.predictions)
        draw = Draw(
            self.key,
            kernel,
            target_kernel,
            self.n_features // 2,
            along.shape[1],
            self.orthogonal,
            along.dtype,
        )
        route = f"{self.n_features} random features"
        if weighted.route not in ("", "closed form"):
            route = f"{route}; {weighted.route}"
        return FiniteRank(in_waves(weighted, features, draw), weighted.channels, route)


def _vectors(
    divergence: DivergenceLike, kernel: KernelLike
) -> tuple[Callable[[Features], Array], KernelLike]:
    """Return the map from features of predictions to vectors, and the kernel on these vectors."""
    if is_euclidean(divergence):
        return divergence.vectors, kernel
    if isinstance(divergence, TotalVariation) and isinstance(kernel, Laplace):
        assert kernel.bandwidth is not None
        # the distance is half a sum of absolute differences
        return divergence.vectors, L1Laplace(2 * kernel.bandwidth)
    raise TypeError(
        f"features: random features want a distance between vectors, such as Fisher(), Wasserstein "
        f"of normals or Vectors(values), got {type(divergence).__name__}"
    )
