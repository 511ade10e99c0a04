r"""Kernel means of predictions: :math:`\kappa_1(p, y) = E k(Z, y)` and
:math:`\kappa_2(p, q) = E k(Z, Z')` for independent Z ~ p, Z' ~ q.

The classes of the kernel and of the distribution select the formula. The decorator `pair` registers
a function for a new combination.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxcal.kernels import points
from jaxcal.numerics import full_precision
from jaxcal.read import Draws, OwnUnits, Standardized, convert, sampling
from jaxcal.read.families import Particles, distribution_of
from jaxcal.read.predictions import in_units_of_data
from jaxcal.read.sampling import drawn, stratified
from jaxcal.typing import Features, KernelLike, KeyLike, PredictionsLike, Scalar


@runtime_checkable
class Formulas(Protocol):
    """Protocol of formulas of kernel means, with the methods of `KernelMeans`."""

    def first(self, rows: PyTree, ys: Array, /) -> Array: ...

    def second(self, rows: PyTree, cols: PyTree, /) -> Array: ...

    def own(self, features: PyTree, /) -> Array: ...


Averages = tuple[PyTree, Formulas]  # features of n predictions, and formulas
Maker = Callable[[Any, Any], Averages]  # takes a kernel and a distribution
OWN_COUNTS = 128  # most counts if each prediction has its own units: a pair costs its square
_PAIRS: dict[tuple[type, type], Maker] = {}
_LOOKED_UP: set[tuple[type, type]] = set()  # classes that compiled programs may have used


def pair(kernel: type, distribution: type) -> Callable[[Maker], Maker]:
    """Return a decorator that registers how a class of kernels is averaged over distributions.

    Args:
        kernel: Class of kernels; ``object`` for any. Nearest base classes take precedence, those of
            the kernel first.
        distribution: Class of distributions, as `distribution_of` returns them.

    Returns:
        A decorator of a function of the kernel and the distribution. That function returns features
        (a pytree with leading axis n, computed once per prediction) and an object with methods
        ``first(rows, ys)``, ``second(rows, cols)`` and ``own(features)`` on slices of the features,
        as in `KernelMeans`.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> from jaxcal.kernels.means.dispatch import kernel_means, pair
        >>> from jaxcal.read.families import Particles
        >>> class Zero:
        ...     first = second = lambda self, rows, others: jnp.zeros((len(rows), len(others)))
        ...     own = lambda self, features: jnp.zeros(len(features))
        >>> class Nothing(jaxcal.kernels.Constant):
        ...     pass
        >>> @pair(Nothing, Particles)
        ... def average(kernel, distribution):
        ...     return distribution.points, Zero()
        >>> draws = jaxcal.Draws(jnp.ones((5, 8, 1)))
        >>> kernel_means(Nothing(), draws).own(jnp.ones((5, 8, 1))).shape
        (5,)
    """

    def add(make: Maker) -> Maker:
        _PAIRS[kernel, distribution] = make
        if any(issubclass(k, kernel) and issubclass(p, distribution) for k, p in _LOOKED_UP):
            jax.clear_caches()  # compiled programs contain earlier registrations
        return make

    return add


def find(kernel: object, distribution: PyTree) -> Maker | None:
    """Return the function that `pair` registered for these classes or their bases, or None."""
    _LOOKED_UP.add((type(kernel), type(distribution)))
    for above in type(kernel).__mro__:
        for under in type(distribution).__mro__:
            if (above, under) in _PAIRS:
                return _PAIRS[above, under]
    return None


def make(kernel: KernelLike, distribution: PyTree) -> Averages:
    """Return features and formulas (see `pair`); raise `NoClosedForm` if none are registered."""
    maker = find(kernel, distribution)
    if maker is None:
        raise NoClosedForm(
            f"no kernel mean of {type(kernel).__name__} over {type(distribution).__name__} in "
            f"closed form"
        )
    return maker(kernel, distribution)


def own_by_second(formulas: PyTree, features: Features) -> Float[Array, " n"]:
    """Return ``second(p, p)`` of each of n predictions p, at the cost of n pairs."""

    def one(single: Features) -> Array:
        alone = jax.tree.map(lambda leaf: leaf[None], single)
        return formulas.second(alone, alone)[0, 0]

    return jax.vmap(one)(features)


class KernelMeans(eqx.Module):
    """Averages of a kernel over n predictions.

    In the methods, ``rows`` and ``cols`` are slices of ``features``; targets are [c, d], or
    classes [c].

    Attributes:
        kernel: The kernel k.
        features: Values computed once per prediction: a pytree with leading axis n.
        formulas: The formulas from features to averages.
    """

    kernel: KernelLike
    features: PyTree
    formulas: PyTree

    @property
    def route(self) -> str:
        """Method by which averages are computed, with its error if it is not exact.

        Errors are absolute, for kernels of height 1 in float64.
        """
        routes = [part.route for part in stated_rules(self.formulas)]
        return ", ".join(dict.fromkeys(routes)) or "closed form"

    @property
    def error(self) -> Scalar | float | None:
        """Absolute error of an average, for kernels of height 1 in float64.

        Closed forms: 0. Sums over counts and mixtures of kernels: an upper bound. Random quantiles:
        the standard error of `first` at likely targets. Draws, and nodes from the user: None.
        """
        errors: list[Any] = [getattr(p, "error", None) for p in stated_rules(self.formulas)]
        if any(error is None for error in errors):
            return None
        return functools.reduce(jnp.maximum, errors) if errors else 0.0

    def first(self, rows: Features, ys: Array) -> Float[Array, "r c"]:
        r"""Return :math:`\kappa_1`: ``E k(Z_i, y_j)`` for Z_i ~ p_i, [r, c]."""
        return self.formulas.first(rows, ys)

    def second(self, rows: Features, cols: Features) -> Float[Array, "r c"]:
        r"""Return :math:`\kappa_2`: ``E k(Z_i, Z_j)`` for independent Z_i ~ p_i, Z_j ~ p_j, [r, c].

        With draws, the diagonal is biased, as it pairs draws with themselves; use `own` instead.
        """
        return self.formulas.second(rows, cols)

    def own(self, features: Features) -> Float[Array, " n"]:
        """Return ``E k(Z_i, Z_i')`` for independent Z_i, Z_i' ~ p_i, [n]: kappa_2's diagonal."""
        return self.formulas.own(features)

    def gram(self, ys: Array, others: Array) -> Float[Array, "r c"]:
        """Return the Gram matrix ``[k(y_i, y_j)]`` of targets, [r, c]."""
        return gram(self.kernel, ys, others)

    def empty(self) -> "KernelMeans":
        """Return this object without its features, for callers that store features themselves."""
        return eqx.tree_at(lambda m: m.features, self, None, is_leaf=lambda x: x is None)


def stated_rules(formulas: PyTree) -> list[Any]:
    """List ``formulas`` and its nested formulas, except closed forms, which have no ``route``."""
    if not isinstance(formulas, eqx.Module):
        return []
    inner = [rule for part in vars(formulas).values() for rule in stated_rules(part)]
    return [formulas, *inner] if hasattr(formulas, "route") else inner


def gram(kernel: Any, ys: Array, others: Array) -> Float[Array, "r c"]:
    """Return ``[k(y, other)]``: by ``kernel.gram`` if it exists, by a matrix product for radial
    kernels, otherwise pair by pair."""
    if hasattr(kernel, "gram"):
        return kernel.gram(ys, others)
    radial = points.profile(kernel)
    if radial is not None:
        return radial(points.squared_distances(ys, others))
    lengths = getattr(kernel, "bandwidth", None)
    if points.is_radial(kernel) and lengths is not None:
        return kernel.shape(points.squared_distances(ys / lengths, others / lengths))
    return points.gram(kernel, ys, others)


@full_precision
def kernel_means(
    kernel: KernelLike,
    predictions: PredictionsLike,
    *,
    key: KeyLike | None = None,
    n_samples: int | None = None,
    n_counts: int | None = None,
) -> KernelMeans:
    """Average a kernel over n predictions, by the first method that applies.

    - All draws of `jaxcal.Draws`.
    - A closed form for this kernel: ``Normal``, ``MultivariateNormal``,
      ``LowRankMultivariateNormal`` and ``Laplace``, their affine transforms (``AffineTransform``),
      mixtures of one of these, and classes.
    - Finite sums for any kernel over counts: ``Poisson``, ``Binomial``, ``BetaBinomial``,
      ``NegativeBinomial2``, ``Geometric``, ``ZeroInflatedPoisson``, their mixtures, and any other
      numpyro distribution of one integer at or above 0.
    - For any other one-dimensional distribution and any kernel, 64 random quantiles
      (`jaxcal.read.sampling`): unbiased, with a standard error of a few thousandths.
    - m draws of each prediction: unbiased, with a standard error of at most 1 / m^1/2 for kernels
      bounded by 1.

    ``to_event`` (independent coordinates), ``expand`` and ``mask`` do not change the method.

    Args:
        kernel: A kernel with a bandwidth.
        predictions: A numpyro distribution with batch shape [n], class probabilities as
            `jaxcal.read.families.Classes`, or `jaxcal.Draws`; each possibly inside a
            `jaxcal.read.Standardized`.
        key: Random key, needed for random quantiles and draws.
        n_samples: Number of draws of each prediction. If given, draws replace all other methods. By
            default 64 draws are used for vectors without a closed form.
        n_counts: Counts are summed over 0, .., n_counts - 1; averages are NaN if the probability of
            these counts is not near 1. By default, a number up to 2048 that covers all but 1e-9 of
            the probability; if none does, or JAX traces values, random quantiles are used.

    Returns:
        `KernelMeans`; its ``route`` names the method, its ``error`` states the accuracy.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> from jaxcal.kernels.means.dispatch import kernel_means
        >>> kernel, predictions = jaxcal.kernels.Gaussian(1.0), dist.Normal(jnp.zeros(3), 1.0)
        >>> means = kernel_means(kernel, predictions)
        >>> round(float(means.first(means.features, jnp.zeros((1, 1)))[0, 0]), 3)  # 2^-1/2
        0.707
    """
    if points.needs_bandwidth(kernel):
        raise ValueError(
            f"kernel: {kernel} has no bandwidth yet, and its averages need one: give it one"
        )
    if n_counts is not None:
        n_counts = convert.integer(n_counts, "n_counts")
    original = in_units_of_data(predictions)
    if isinstance(original, Draws):
        anyhow = convert.key(0 if key is None else key)  # existing draws are taken in order
        distribution = Particles(drawn(anyhow, predictions, n_samples))
        return KernelMeans(kernel, *make(kernel, distribution))
    distribution = None
    if n_samples is None:
        distribution = distribution_of(predictions)
        distribution = _summed(predictions, n_counts) if distribution is None else distribution
    if distribution is not None and find(kernel, distribution) is not None:
        try:
            return KernelMeans(kernel, *make(kernel, distribution))
        except NoClosedForm:
            pass
    if key is None:
        raise TypeError(
            f"key: the average of {type(kernel).__name__} over {type(original).__name__} has no "
            f"closed form here and is taken from draws: give a key"
        )
    key = convert.key(key)
    distribution = stratified(key, original) if n_samples is None else None
    if distribution is None:
        distribution = Particles(drawn(key, predictions, 64 if n_samples is None else n_samples))
    else:
        distribution = _in_units_of(predictions, distribution)
    return KernelMeans(kernel, *make(kernel, distribution))


def _summed(predictions: PredictionsLike, n_counts: int | None) -> PyTree | None:
    """Return predictions of counts as a `Lattice`; None for others, or if it would be too large."""
    standardized = isinstance(predictions, Standardized)
    original = predictions.predictions if standardized else predictions
    size = sampling.lattice_size(original) if n_counts is None else n_counts
    if size is None or not sampling.is_count(original):
        return None
    if standardized and isinstance(predictions.units, OwnUnits) and size > OWN_COUNTS:
        return None
    return _in_units_of(predictions, sampling.lattice(original, size))


def _in_units_of(predictions: PredictionsLike, distribution: PyTree) -> PyTree:
    """Return a distribution in the units of the predictions, if these are `Standardized`."""
    if not isinstance(predictions, Standardized):
        return distribution
    return distribution_of(Standardized(distribution, predictions.units, predictions.event))


class NoClosedForm(TypeError):
    """Error for a kernel and distribution without a closed form; `kernel_means` then uses draws.
    Functions registered by `pair` raise it for unsupported parameters."""


def check_dimension(ys: Array, d: int) -> None:
    """Raise ValueError if targets and predictions differ in dimension."""
    if ys.ndim != 2 or ys.shape[1] != d:
        raise ValueError(f"targets: wanted shape [c, {d}] to match the predictions, got {ys.shape}")
