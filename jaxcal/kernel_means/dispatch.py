r"""Kernel means of predictions: :math:`\kappa_1(p, y) = E k(Z, y)` and
:math:`\kappa_2(p, q) = E k(Z, Z')` for independent Z ~ p, Z' ~ q.

Which formula serves is decided by the kernel and the distribution of the predictions. Adding a pair
is one function with the decorator `pair`.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxcal.kernels import points
from jaxcal.read import Draws, OwnUnits, Standardized, convert, counts
from jaxcal.read.families import Particles, distribution_of
from jaxcal.read.sampling import drawn, stratified
from jaxcal.typing import Features, KernelLike, KeyLike, PredictionsLike, Scalar


@runtime_checkable
class Formulas(Protocol):
    """kappa_1 and kappa_2 of slices of features; ``own`` is kappa_2 of each row with itself."""

    def first(self, rows: PyTree, ys: Array, /) -> Array: ...

    def second(self, rows: PyTree, cols: PyTree, /) -> Array: ...

    def own(self, features: PyTree, /) -> Array: ...


Averages = tuple[PyTree, Formulas]
Maker = Callable[[Any, Any], Averages]  # of a kernel and a distribution
OWN_COUNTS = 128  # in units of each prediction a pair costs the square of this
_PAIRS: dict[tuple[type, type], Maker] = {}
_LOOKED_UP: set[tuple[type, type]] = set()  # classes that compiled programs may have used


def pair(kernel: type, distribution: type) -> Callable[[Maker], Maker]:
    """Register how to average kernels of one class over distributions of one class.

    Args:
        kernel: Class of kernels; ``object`` stands for any. The nearest class wins, the kernel's
            first.
        distribution: Class of distributions (of closed forms, as of `distribution_of`).

    Returns:
        A decorator of a function of the kernel and the distribution. That function returns what
        is computed once a prediction (a pytree with a leading axis n) and an object with methods
        ``first(rows, ys)``, ``second(rows, cols)`` and ``own(features)`` that work on slices of
        it, as those of `KernelMeans`.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> from jaxcal.read.families import Particles
        >>> class Zero:
        ...     first = second = lambda self, rows, others: jnp.zeros((len(rows), len(others)))
        ...     own = lambda self, features: jnp.zeros(len(features))
        >>> class Nothing(jaxcal.kernels.Constant):
        ...     pass
        >>> @jaxcal.kernel_means.pair(Nothing, Particles)
        ... def average(kernel, distribution):
        ...     return distribution.points, Zero()
        >>> draws = jaxcal.Draws(jnp.ones((5, 8, 1)))
        >>> jaxcal.kernel_means.kernel_means(Nothing(), draws).own(jnp.ones((5, 8, 1))).shape
        (5,)
    """

    def add(make: Maker) -> Maker:
        _PAIRS[kernel, distribution] = make
        if any(issubclass(k, kernel) and issubclass(p, distribution) for k, p in _LOOKED_UP):
            jax.clear_caches()  # compiled programs hold what was registered before
        return make

    return add


def find(kernel: object, distribution: PyTree) -> Maker | None:
    """The function that averages this kernel over this distribution, or None."""
    _LOOKED_UP.add((type(kernel), type(distribution)))
    for above in type(kernel).__mro__:
        for under in type(distribution).__mro__:
            if (above, under) in _PAIRS:
                return _PAIRS[above, under]
    return None


def make(kernel: KernelLike, distribution: PyTree) -> Averages:
    """Features and formulas; TypeError where nothing averages this kernel over these."""
    maker = find(kernel, distribution)
    if maker is None:
        raise NoClosedForm(
            f"no kernel mean of {type(kernel).__name__} over {type(distribution).__name__} in "
            f"closed form"
        )
    return maker(kernel, distribution)


def own_by_second(formulas: PyTree, features: Features) -> Float[Array, " n"]:
    """kappa_2 of each prediction with itself, one at a time."""

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
        features: What is computed once a prediction: a pytree with a leading axis n.
        formulas: The formulas that turn features into averages.
    """

    kernel: KernelLike
    features: PyTree
    formulas: PyTree

    @property
    def route(self) -> str:
        """How the averages are taken, with the error where they are not exact.

        Errors are absolute, for kernels of height 1 in float64.
        """
        return ", ".join(dict.fromkeys(_routes(self.formulas))) or "closed form"

    @property
    def error(self) -> Scalar | float | None:
        """Absolute error of an average, for kernels of height 1 in float64.

        A bound for rules that state one, 0 for closed forms. Of random quantiles, whose averages
        are unbiased, the standard error of `first` at targets where they are likely. None for
        draws, whose averages are unbiased, and for given nodes.
        """
        errors = _errors(self.formulas)
        if any(error is None for error in errors):
            return None
        return functools.reduce(jnp.maximum, errors) if errors else 0.0

    def first(self, rows: Features, ys: Array) -> Float[Array, "r c"]:
        r""":math:`\kappa_1`: ``E k(Z_i, y_j)`` for Z_i ~ p_i.

        Args:
            rows: A slice of ``features``.
            ys: Targets, [c, d], or classes, [c].

        Returns:
            Averages, [r, c].
        """
        return self.formulas.first(rows, ys)

    def second(self, rows: Features, cols: Features) -> Float[Array, "r c"]:
        r""":math:`\kappa_2`: ``E k(Z_i, Z_j)`` for independent Z_i ~ p_i, Z_j ~ p_j.

        From draws, a prediction paired with itself here meets its own draws; in `own` it does not.

        Args:
            rows: A slice of ``features``.
            cols: Another one.

        Returns:
            Averages, [r, c].
        """
        return self.formulas.second(rows, cols)

    def own(self, features: Features) -> Float[Array, " n"]:
        """``E k(Z_i, Z_i')`` for independent Z_i, Z_i' ~ p_i: the diagonal of `second`.

        Args:
            features: A slice of ``features``.

        Returns:
            Averages, [n].
        """
        return self.formulas.own(features)

    def gram(self, ys: Array, others: Array) -> Float[Array, "r c"]:
        """Gram matrix ``[k(y_i, y_j)]`` of targets.

        Args:
            ys: Targets, [r, d], or classes, [r].
            others: Targets, [c, d], or classes, [c].

        Returns:
            The matrix, [r, c].
        """
        return gram(self.kernel, ys, others)

    def empty(self) -> "KernelMeans":
        """The same averages without the features, for those who carry these themselves."""
        return eqx.tree_at(lambda m: m.features, self, None, is_leaf=lambda x: x is None)


def _routes(formulas: PyTree) -> list[str]:
    """The ``route`` of every part that says one: parts in closed form have none."""
    return [part.route for part in stated_rules(formulas)]


def _errors(formulas: PyTree) -> list[Any]:
    """The ``error`` of every part that has a route; None of draws."""
    return [getattr(part, "error", None) for part in stated_rules(formulas)]


def stated_rules(formulas: PyTree) -> list[Any]:
    """Every part of formulas that says its route."""
    if not isinstance(formulas, eqx.Module):
        return []
    inner = [rule for part in vars(formulas).values() for rule in stated_rules(part)]
    return [formulas, *inner] if hasattr(formulas, "route") else inner


def gram(kernel: Any, ys: Array, others: Array) -> Float[Array, "r c"]:
    """``[k(y_i, y_j)]``: one matrix product where the kernel is radial or one of classes."""
    if hasattr(kernel, "gram"):
        return kernel.gram(ys, others)
    radial = points.profile(kernel)
    if radial is not None:
        return radial(points.squared_distances(ys, others))
    lengths = getattr(kernel, "bandwidth", None)
    if points.is_radial(kernel) and lengths is not None:
        return kernel.shape(points.squared_distances(ys / lengths, others / lengths))
    return points.gram(kernel, ys, others)


def kernel_means(
    kernel: KernelLike,
    predictions: PredictionsLike,
    *,
    key: KeyLike | None = None,
    n_draws: int | None = None,
    n_counts: int | None = None,
) -> KernelMeans:
    """Average a kernel over n predictions.

    The first of these that there is:

    - all draws of `jaxcal.Draws`;
    - a closed form for this kernel, of ``Normal``, ``MultivariateNormal``,
      ``LowRankMultivariateNormal`` and ``Laplace``, their affine transforms (``AffineTransform``),
      mixtures of one of these, and classes;
    - finite sums for any kernel over counts: ``Poisson``, ``Binomial``, ``BetaBinomial``,
      ``NegativeBinomial2``, ``Geometric``, ``ZeroInflatedPoisson``, mixtures of them, and any other
      numpyro distribution of one whole number at or above 0;
    - for any other distribution of one number, and any kernel, 64 points at random that are spread
      as evenly as quantiles (`jaxcal.read.sampling`): unbiased, with a standard error of some
      thousandths;
    - m draws of each prediction: unbiased, with a standard error of at most 1 / m^1/2 for kernels
      bounded by 1.

    `KernelMeans.route` says which way was taken, `KernelMeans.error` how far off the averages are.
    Independent coordinates (``to_event``), ``expand`` and ``mask`` change nothing of this.

    Args:
        kernel: A kernel with a bandwidth.
        predictions: A numpyro distribution with batch shape [n], class probabilities as
            `jaxcal.read.families.Classes`, or `jaxcal.Draws`; each possibly inside a
            `jaxcal.read.Standardized`.
        key: Random key, needed where draws are made.
        n_draws: Number of draws of each prediction; all other ways are then passed over. By
            default 64, of vectors without a closed form.
        n_counts: Over counts, sum over 0, .., n_counts - 1. By default as many as hold all but
            1e-9 of the probability, up to 2048; where that is not enough, and where values are
            traced by JAX and nothing is said here, points are taken at random. Where the counts
            leave probability out, averages are NaN.

    Returns:
        `KernelMeans`.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> kernel, predictions = jaxcal.kernels.Gaussian(1.0), dist.Normal(jnp.zeros(3), 1.0)
        >>> means = jaxcal.kernel_means.kernel_means(kernel, predictions)
        >>> round(float(means.first(means.features, jnp.zeros((1, 1)))[0, 0]), 3)  # 2^-1/2
        0.707
    """
    if points.needs_bandwidth(kernel):
        raise ValueError(
            f"kernel: {kernel} has no bandwidth yet, and its averages need one: give it one"
        )
    if n_counts is not None:
        n_counts = convert.integer(n_counts, "n_counts")
    original = predictions.predictions if isinstance(predictions, Standardized) else predictions
    if isinstance(original, Draws):
        anyhow = convert.key(0 if key is None else key)  # given draws are taken in order
        distribution = Particles(drawn(anyhow, predictions, n_draws))
        return KernelMeans(kernel, *make(kernel, distribution))
    distribution = None
    if n_draws is None:
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
    distribution = stratified(key, original) if n_draws is None else None
    if distribution is None:
        distribution = Particles(drawn(key, predictions, 64 if n_draws is None else n_draws))
    else:
        distribution = _in_units_of(predictions, distribution)
    return KernelMeans(kernel, *make(kernel, distribution))


def _summed(predictions: PredictionsLike, n_counts: int | None) -> PyTree | None:
    """Counts in the units of the predictions; None where they are none, or too many."""
    standardized = isinstance(predictions, Standardized)
    original = predictions.predictions if standardized else predictions
    size = counts.lattice_size(original) if n_counts is None else n_counts
    if size is None or not counts.is_count(original):
        return None
    if standardized and isinstance(predictions.units, OwnUnits) and size > OWN_COUNTS:
        return None
    return _in_units_of(predictions, counts.lattice(original, size))


def _in_units_of(predictions: PredictionsLike, distribution: PyTree) -> PyTree:
    """A closed form or points of the predictions, seen in the units that these are seen in."""
    if not isinstance(predictions, Standardized):
        return distribution
    return distribution_of(Standardized(distribution, predictions.units, predictions.event))


class NoClosedForm(TypeError):
    """Raised by a pair function for parameters it cannot serve: draws are taken instead."""


def check_dimension(ys: Array, d: int) -> None:
    """ValueError where targets and predictions differ in dimension."""
    if ys.ndim != 2 or ys.shape[1] != d:
        raise ValueError(f"targets: wanted shape [c, {d}] to match the predictions, got {ys.shape}")
