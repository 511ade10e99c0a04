"""Linear time: the statistic of a test replaced by one of finite rank, by random features."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from jaxcal import checks
from jaxcal.divergences.simplex import TotalVariation
from jaxcal.divergences.vectors import is_euclidean
from jaxcal.kernel_means import KernelMeans
from jaxcal.kernel_means.waves import Wave
from jaxcal.kernels.classes import ClassGram
from jaxcal.kernels.frequencies import orthogonal_normals, precisions
from jaxcal.kernels.points import L1Laplace, Laplace
from jaxcal.models import Standardized
from jaxcal.models.families import Classes
from jaxcal.pairwise.finite_rank import (
    ClassWaves,
    FiniteRank,
    Frequencies,
    MeanWaves,
    SteinWaves,
    class_directions,
)
from jaxcal.pairwise.skce import Observed
from jaxcal.preparation.residuals import (
    Featured,
    MeanResidual,
    SteinResidual,
)
from jaxcal.preparation.specification import Specification
from jaxcal.preparation.views import View
from jaxcal.typing import DivergenceLike, DTypeLike, Features, KernelLike, Key, PredictionsLike


class RandomFeatures(eqx.Module):
    """Option ``features`` of the tests: random features of the joint kernel, for linear time.

    The kernel on predictions times the one on targets is replaced by ``n_features`` random waves
    of both, and the matrix H of all pairs by a product of n x p and p x n: p = n_features d numbers
    an observation of a Stein test with targets [d], p = n_features for `skce_test`. The test keeps
    its level for every number of features, as it is a test of its own; more features bring its
    power near that of all pairs (measured in `experiments/linear`).

    Args:
        key: Random key of the frequencies: the same key, the same features for every model.
        n_features: Number of features, half of them cosines and half sines; even.
        orthogonal: Frequencies orthogonal to each other in blocks, which lowers their error.

    Raises:
        ValueError: an odd or too small ``n_features``.
        TypeError: arguments of another type; in a test, a kernel without random features or a
            distance that is not one of vectors.

    Cost: of a test, n p (b + p) multiplications for b draws of the null.

    Source: Rahimi and Recht (2007); Yu et al. (2016) for orthogonal ones.

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


class Approximated(eqx.Module):
    """A residual whose statistic over pairs is replaced by one of random features."""

    inner: SteinResidual | MeanResidual
    options: RandomFeatures

    @property
    def needs_scores(self) -> bool:
        return self.inner.needs_scores

    @property
    def components(self) -> bool:
        return self.inner.components

    def needs_nodes(self, predictions: Standardized) -> bool:
        return self.inner.needs_nodes(predictions)

    def node_key(self, key: Key) -> Key:
        return self.inner.node_key(key)

    def divided(
        self, view: View, divergence: DivergenceLike, kernel: KernelLike
    ) -> tuple[PyTree, PyTree]:
        return self.inner.divided(view, divergence, kernel)

    def features(
        self,
        key: Key,
        view: View,
        predictions: PredictionsLike,
        target_kernel: KernelLike,
        described: Features,
    ) -> Featured:
        inner = self.inner
        if not isinstance(inner, MeanResidual) or isinstance(predictions, Classes):
            return inner.features(key, view, predictions, target_kernel, described)
        return inner.features(key, view, predictions, Wave(), described)

    def pairwise(
        self,
        featured: Featured,
        target_kernel: Any,
        prediction_kernel: Any,
        divergence: Any,
    ) -> FiniteRank:
        features = featured.features
        (residual,) = features.residuals
        vectors = _vectors(divergence, prediction_kernel)(features.predictions)
        kernel = prediction_kernel
        if isinstance(divergence, TotalVariation):  # half a sum of absolute differences
            kernel = L1Laplace(2 * prediction_kernel.bandwidth)
        count, dtype = self.options.n_features // 2, vectors.dtype
        keys = jax.random.split(self.options.key, 4)
        of_classes = _means(residual) and isinstance(residual.distribution, Classes)
        d = 0 if of_classes else residual.ys.shape[1]
        q = vectors.shape[1]
        draw = orthogonal_normals if self.options.orthogonal else _normals
        normals = draw(keys[0], count, q + d, dtype)
        first = precisions(kernel, keys[1], count, q, "prediction_kernel", dtype=dtype)
        nu = normals[:, :q] * jnp.sqrt(first.values)
        if of_classes:
            sizes = jnp.sqrt(first.height / count)
            m = residual.distribution.probabilities.shape[1]
            signs = jax.random.rademacher(keys[3], (count, m - 1), dtype)
            matrix = target_kernel.matrix if isinstance(target_kernel, ClassGram) else None
            waves = Frequencies(nu, jnp.zeros((count, 0), dtype), sizes)
            mapped = ClassWaves(waves, divergence, class_directions(signs, matrix))
            return FiniteRank(mapped, route=self._route())
        second = precisions(target_kernel, keys[2], count, d, "target_kernel", dtype=dtype)
        omega = normals[:, q:] * jnp.sqrt(second.values)
        waves = Frequencies(nu, omega, jnp.sqrt(first.height * second.height / count))
        if not _means(residual):
            components = self.inner.components
            mapped = SteinWaves(waves, divergence, components)
            return FiniteRank(mapped, d if components else 1, self._route())
        cosine = featured.means
        assert cosine is not None
        sine = _as_sine(cosine)
        route = self._route() + (f"; {cosine.route}" if cosine.route != "closed form" else "")
        return FiniteRank(MeanWaves(waves, divergence, cosine, sine), route=route)

    def _route(self) -> str:
        return f"{self.options.n_features} random features"


def with_random_features(spec: Specification, features: PyTree) -> Specification:
    """The test with random features in the place of its kernels.

    Raises TypeError for what is no `RandomFeatures`, or a statistic without random features.
    """
    if not isinstance(features, RandomFeatures):
        raise TypeError(
            f"features: wanted jaxcal.RandomFeatures(key, 100) or None, got {checks.say(features)}"
        )
    if not isinstance(spec.residual, (SteinResidual, MeanResidual)):
        raise TypeError("features: this statistic has no random features")
    return eqx.tree_at(lambda s: s.residual, spec, Approximated(spec.residual, features))


def _means(residual: Features) -> bool:
    return isinstance(residual, Observed)


def _normals(key: Key, count: int, d: int, dtype: DTypeLike) -> Array:
    return jax.random.normal(key, (count, d), dtype)


def _vectors(divergence: Any, kernel: Any) -> Callable[[Features], Array]:
    """The map from features of predictions to vectors whose distances the kernel sees."""
    if is_euclidean(divergence) or (
        isinstance(divergence, TotalVariation) and isinstance(kernel, Laplace)
    ):
        return divergence.vectors
    raise TypeError(
        f"features: random features want a distance between vectors, such as Fisher(), Wasserstein "
        f"of normals or Vectors(values), got {type(divergence).__name__}"
    )


def _as_sine(cosine: KernelMeans) -> KernelMeans:
    """The same averages of the sine: every formula holds its wave."""
    return jax.tree.map(
        lambda part: Wave(sine=True) if isinstance(part, Wave) else part,
        cosine,
        is_leaf=lambda part: isinstance(part, Wave),
    )
