"""Test goodness of fit by kernel Stein discrepancies: KSD for one density, KCSD given inputs."""

from dataclasses import dataclass
from typing import Any, Unpack

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array

from jaxcal.divergences.vectors import Vectors
from jaxcal.engine.quadratic import TILE
from jaxcal.fit import testing
from jaxcal.fit.options import SteinOptions, stein_specification
from jaxcal.fit.specification import RandomFeatures
from jaxcal.kernels.points import Constant
from jaxcal.nulls import Null, Wild
from jaxcal.read import Unnormalized, checks, convert
from jaxcal.read.observations import scored
from jaxcal.results import Estimate, TestResult, recorded, rows_in_one_order
from jaxcal.typing import ArrayLike, KeyLike, Predictions


@recorded
def kcsd_test(
    key: KeyLike,
    predictions: Predictions,
    targets: ArrayLike,
    inputs: ArrayLike,
    *,
    null: Null = Wild(),
    level: float = 0.05,
    coordinates: bool = False,
    features: RandomFeatures | None = None,
    tile: int = TILE,
    mesh: Mesh | None = None,
    **options: Unpack[SteinOptions],
) -> TestResult:
    """Test that each prediction is the distribution of its target GIVEN its input: the KCSD test.

    This is stronger than calibration: a forecast that ignores part of the input can be calibrated
    and fail here.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: n predictions, as in `jaxcal.kccsd_test`.
        targets: Observed targets, shape [n], [n, d] or [n, ...].
        inputs: Input vectors [n, q] (or learned features of the inputs) that ``prediction_kernel``
            compares; standardized like the targets unless ``standardize=False``.
        null: As in `jaxcal.kccsd_test`.
        level: Probability of rejecting correct predictions.
        coordinates: As in `jaxcal.kccsd_test`.
        features: As in `jaxcal.kccsd_test`.
        tile: As in `jaxcal.kccsd_test`.
        mesh: As in `jaxcal.kccsd_test`.
        **options: Other options of `jaxcal.kccsd_test`, except ``divergence``.

    Returns:
        `TestResult`, as from `jaxcal.kccsd_test`.

    Cost: n scores and n^2 (b + d) multiplications for b draws of the null.

    Source: Jitkrittum, Kanagawa and Schoelkopf (2020); Glaser et al. (2023), eq. 6.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> x, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> ignores_x = dist.Normal(0.0, 2**0.5).expand([100])  # calibrated: Var(x + noise) = 2
        >>> jaxcal.kcsd_test(1, ignores_x, x + noise, x).verdict
        'rejected'
    """
    checks.null(null)
    key = convert.key(key)
    predictions, ys, options = _conditional(predictions, targets, inputs, options)
    spec = stein_specification(ys, coordinates=coordinates, **options)
    return testing.run(key, predictions, ys, spec, null, "KCSD test", level, tile, mesh, features)


@rows_in_one_order
def kcsd(
    key: KeyLike,
    predictions: Predictions,
    targets: ArrayLike,
    inputs: ArrayLike,
    **options: Unpack[SteinOptions],
) -> Estimate:
    """Estimate the squared KCSD between targets and predictions given inputs, without testing.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: n predictions, as in `jaxcal.kccsd_test`.
        targets: Observed targets, shape [n], [n, d] or [n, ...].
        inputs: Input vectors [n, q].
        **options: Options of `jaxcal.kccsd`, except ``divergence``.

    Returns:
        `Estimate` of the square: ``unbiased`` and ``biased``, both [].

    Cost: n scores and n^2 d multiplications.

    Source: Jitkrittum, Kanagawa and Schoelkopf (2020).

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> x, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> ignores_x = jaxcal.kcsd(1, dist.Normal(0.0, 2**0.5).expand([100]), x + noise, x)
        >>> uses_x = jaxcal.kcsd(1, dist.Normal(x, 1.0), x + noise, x)
        >>> bool(uses_x.unbiased < ignores_x.unbiased)
        True
    """
    key = convert.key(key)
    predictions, ys, options = _conditional(predictions, targets, inputs, options)
    return testing.estimate(key, predictions, ys, stein_specification(ys, **options))


@recorded
def ksd_test(
    key: KeyLike,
    model: Predictions,
    targets: ArrayLike,
    *,
    null: Null = Wild(),
    level: float = 0.05,
    coordinates: bool = False,
    features: RandomFeatures | None = None,
    tile: int = TILE,
    mesh: Mesh | None = None,
    **options: Unpack[SteinOptions],
) -> TestResult:
    """Test that targets are draws from ONE density, known up to its constant: the KSD test.

    Args:
        key: Random key: typed, legacy or an integer seed.
        model: A function ``log_density(y)``, a numpyro distribution with empty batch shape,
            `Scores`, or anything with a method ``scores(ys)``.
        targets: Observed targets, shape [n], [n, d] or [n, ...].
        null: As in `jaxcal.kccsd_test`.
        level: Probability of rejecting the true density.
        coordinates: As in `jaxcal.kccsd_test`.
        features: As in `jaxcal.kccsd_test`.
        tile: As in `jaxcal.kccsd_test`.
        mesh: As in `jaxcal.kccsd_test`.
        **options: Other options of `jaxcal.kccsd_test`, except ``divergence`` and
            ``prediction_kernel``, as there is only one model.

    Returns:
        `TestResult`, as from `jaxcal.kccsd_test`.

    Cost: n scores and n^2 (b + d) multiplications for b draws of the null.

    Source: Chwialkowski, Strathmann and Gretton (2016); Liu, Lee and Jordan (2016).

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> targets = 0.8 + jax.random.normal(jax.random.key(0), (100, 2))
        >>> jaxcal.ksd_test(1, lambda y: -jnp.sum(y**2) / 2, targets).verdict
        'rejected'
    """
    checks.null(null)
    key = convert.key(key)
    predictions, ys, options = _single(model, targets, options)
    spec = stein_specification(ys, coordinates=coordinates, **options)
    return testing.run(key, predictions, ys, spec, null, "KSD test", level, tile, mesh, features)


@rows_in_one_order
def ksd(
    key: KeyLike, model: Predictions, targets: ArrayLike, **options: Unpack[SteinOptions]
) -> Estimate:
    """Estimate the squared KSD between the targets and one density, without testing.

    Args:
        key: Random key: typed, legacy or an integer seed.
        model: One density or its scores, as in `ksd_test`.
        targets: Observed targets, shape [n], [n, d] or [n, ...].
        **options: Options of `jaxcal.kccsd`, except ``divergence`` and ``prediction_kernel``.

    Returns:
        `Estimate` of the square: ``unbiased`` and ``biased``, both [].

    Cost: n scores and n^2 d multiplications.

    Source: Chwialkowski, Strathmann and Gretton (2016); Liu, Lee and Jordan (2016).

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> targets = jax.random.normal(jax.random.key(0), (100,))
        >>> right, shifted = (jaxcal.ksd(1, dist.Normal(m, 1.0), targets) for m in (0.0, 1.0))
        >>> bool(right.unbiased < shifted.unbiased)
        True
    """
    key = convert.key(key)
    predictions, ys, options = _single(model, targets, options)
    return testing.estimate(key, predictions, ys, stein_specification(ys, **options))


def _conditional(
    predictions: Predictions, targets: ArrayLike, inputs: ArrayLike, options: SteinOptions
) -> tuple[Any, Array, SteinOptions]:
    _refuse(options, ("divergence",), "KCSD compares inputs; compare predictions by kccsd_test")
    ys = checks.targets(targets)
    vectors = checks.rows(inputs, ys.shape[0], "inputs")
    return (
        scored(predictions, ys),
        ys,
        SteinOptions(divergence=Vectors(vectors)) | options,
    )


def _refuse(options: SteinOptions, names: tuple[str, ...], why: str) -> None:
    """Raise TypeError, with the reason ``why``, if an option in ``names`` was passed."""
    for name in names:
        if name in options:
            raise TypeError(f"{name}: {why}")


def _single(
    model: Predictions, targets: ArrayLike, options: SteinOptions
) -> tuple[Any, Array, SteinOptions]:
    why = "KSD has one model, and nothing to compare it with; leave it out"
    _refuse(options, ("divergence", "prediction_kernel"), why)
    ys = checks.targets(targets)
    is_function = callable(model) and not isinstance(model, type)
    if is_function and not hasattr(model, "log_prob") and not hasattr(model, "scores"):
        model = Unnormalized(_WithoutParameters(model), None, in_axes=None)
    zeros = Vectors(jnp.zeros((ys.shape[0], 1), ys.dtype))
    unweighted = SteinOptions(divergence=zeros, prediction_kernel=Constant())
    return scored(model, ys, "model"), ys, unweighted | options


@dataclass(frozen=True)
class _WithoutParameters:
    """Callable (params, y) that returns ``log_density(y)``; equal if ``log_density`` is equal."""

    log_density: Any

    def __call__(self, params: None, y: Array) -> Array:
        return self.log_density(y)
