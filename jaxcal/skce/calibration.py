"""Test calibration, and estimate the calibration error, by kernel means (SKCE)."""

from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array

from jaxcal.divergences.gaussians import Wasserstein
from jaxcal.divergences.mmd import MMD
from jaxcal.divergences.vectors import Euclidean
from jaxcal.engine.quadratic import TILE
from jaxcal.fit import testing
from jaxcal.fit.options import Options, checked_base_measure, vector_kernel
from jaxcal.fit.redraws import samplable
from jaxcal.fit.residuals import MeanResidual
from jaxcal.fit.specification import RandomFeatures, Specification
from jaxcal.kernels import points
from jaxcal.kernels.classes import ClassGram, Delta, MatrixKernel
from jaxcal.kernels.points import Gaussian
from jaxcal.nulls import Null, Redrawn, Wild
from jaxcal.read import checks, convert
from jaxcal.read.families import Classes, Laplaces, Mixtures, Normals, distribution_of
from jaxcal.read.observations import check_parameters, observations
from jaxcal.read.sampling import lattice_size
from jaxcal.results import Estimate, TestResult, recorded, rows_in_one_order
from jaxcal.typing import (
    ArrayLike,
    BaseMeasure,
    DivergenceLike,
    KernelLike,
    KeyLike,
    PredictionsLike,
)
from jaxcal.whitening.contract import Whitener, checked

CLOSED = {Normals: Gaussian, Laplaces: points.L1Laplace, Mixtures: Gaussian}
DIVERGENCES = {Classes: Euclidean, Normals: Wasserstein, Laplaces: Wasserstein}

MOST_PRODUCTS = 10**8  # multiplications per draw of redrawn classes
MOST_REFITTED = 64  # observations with closed forms up to which `Redrawn` is the default


class MeanOptions(Options, total=False):
    """Keyword options of all tests and estimates with kernel means; `skce_test` explains them."""

    n_samples: int | None
    whiten: Whitener | None


def mean_specification(
    predictions: Any,
    targets: ArrayLike,
    *,
    divergence: Any = None,
    prediction_kernel: KernelLike = Gaussian(),
    target_kernel: KernelLike | None = None,
    base_measure: BaseMeasure | None = None,
    n_nodes: int = 10,
    n_samples: int | None = None,
    standardize: bool = True,
    whiten: Whitener | None = None,
) -> tuple[Any, Array, Specification]:
    """Return validated predictions, targets and `Specification`; errors name the argument."""
    predictions, ys = observations(predictions, targets)
    standardize = convert.flag(standardize, "standardize")
    n_samples = None if n_samples is None else convert.integer(n_samples, "n_samples", least=2)
    distribution = predictions if isinstance(predictions, Classes) else distribution_of(predictions)
    check_parameters(distribution)
    if divergence is None:
        default = DIVERGENCES.get(type(distribution))
        divergence = MMD(of_targets=True) if default is None else default()
    whiten = None if whiten is None else checked(whiten, "whiten")
    if isinstance(predictions, Classes):
        if whiten is not None:
            raise ValueError("whiten: class probabilities have no units to be brought into")
        kernel = _class_kernel(target_kernel, predictions.probabilities.shape[1])
    else:
        default = points.L1Laplace() if isinstance(distribution, Laplaces) else Gaussian()
        kernel = vector_kernel(default if target_kernel is None else target_kernel, ys)
        base_measure = checked_base_measure(base_measure, ys)
    specification = Specification(
        checks.divergence(divergence),
        points.as_kernel(prediction_kernel, "prediction_kernel"),
        kernel,
        MeanResidual(n_samples, lattice_size(predictions) if n_samples is None else None),
        base_measure,
        convert.integer(n_nodes, "n_nodes"),
        standardize,
        whiten,
    )
    return predictions, ys, specification


def default_null(predictions: Any, ys: Array, otherwise: Null, kernel: Any = None) -> Null:
    """Return `Redrawn` if its cost is small, or else ``otherwise``. ``kernel`` is the kernel on
    targets; None for the default one."""
    n = ys.shape[0]
    if isinstance(predictions, Classes):
        k = predictions.probabilities.shape[1] - 1
        return Redrawn() if k == 1 or n**2 * k <= MOST_PRODUCTS else otherwise
    means = distribution_of(predictions)
    closed = any(
        isinstance(means, family) and (kernel is None or isinstance(kernel, averaged))
        for family, averaged in CLOSED.items()
    )
    return Redrawn() if closed and n <= MOST_REFITTED and samplable(predictions, ys) else otherwise


def _class_kernel(kernel: KernelLike | ArrayLike | None, m: int) -> Any:
    if kernel is None:
        return Delta()
    if isinstance(kernel, (list, tuple)) or hasattr(kernel, "__array__"):
        kernel = ClassGram(kernel)
    if isinstance(kernel, (Delta, ClassGram)):
        return kernel
    one = jax.ShapeDtypeStruct((m,), jnp.result_type(float))
    try:
        matrix = MatrixKernel(kernel)  # pyright: ignore[reportArgumentType]
        shape = jax.eval_shape(matrix.function, one, one).shape
    except Exception as error:
        raise _no_class_kernel(kernel, m) from error
    if shape != (m, m):
        raise _no_class_kernel(kernel, m)
    return matrix


def _no_class_kernel(kernel: Any, m: int) -> TypeError:
    return TypeError(
        f"target_kernel: classes need jaxcal.kernels.Delta(), a Gram matrix [{m}, {m}], or a "
        f"function of two predictions [{m}] that returns one, got {type(kernel).__name__}"
    )


def of_targets_alone(spec: Specification) -> None:
    """Raise TypeError if the target kernel also depends on the predictions."""
    if isinstance(spec.target_kernel, MatrixKernel):
        raise TypeError("target_kernel: a function of two predictions is for skce_test and skce")


@recorded
def skce_test(
    key: KeyLike,
    predictions: PredictionsLike,
    targets: ArrayLike,
    *,
    divergence: DivergenceLike | None = None,
    prediction_kernel: KernelLike = Gaussian(),
    target_kernel: KernelLike | None = None,
    null: Null | None = None,
    level: float = 0.05,
    base_measure: BaseMeasure | None = None,
    n_nodes: int = 10,
    n_samples: int | None = None,
    standardize: bool = True,
    whiten: Whitener | None = None,
    features: RandomFeatures | None = None,
    tile: int = TILE,
    mesh: Mesh | None = None,
) -> TestResult:
    """Test that predictions are calibrated, by kernel means: the kernel calibration error (SKCE).

    The null hypothesis is P(Y | prediction) = prediction: targets are draws from their predictions.
    The kernel is ``prediction_kernel`` on a ``divergence`` of the predictions times
    ``target_kernel``. The paper's experiments use ``standardize=False,
    target_kernel=Gaussian(1.0), prediction_kernel=Laplace(1.0)``.

    With ``divergence=jaxcal.divergences.Vectors(x)`` the null hypothesis is P(Y | x) = prediction,
    for any inputs x [n, q]. With `jaxcal.Draws` this is ACMMD, with the mean over all draws of a
    prediction instead of one draw; for sequences use the kernels `jaxcal.kernels.Hamming` and
    `jaxcal.kernels.Spectrum`, with ``standardize=False``.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: A numpyro distribution with batch shape [n] (Normal, MultivariateNormal,
            Laplace and mixtures of these in closed form, Categorical and Bernoulli; any other
            through draws), class probabilities [n, m], probabilities [n] of class 1, or
            `jaxcal.Draws`. Draws are split: one half is for the divergence, the other half for the
            kernel means, so that errors of the two are independent.
        targets: Observed targets, shape [n], [n, d] or [n, ...]; integer classes 0, .., m - 1 for
            class probabilities.
        divergence: Distance between predictions. By default 2-Wasserstein for normals and Laplace
            distributions, Euclidean for class probabilities, and the distance of the kernel means
            (MMD with the target kernel) for all others; see `jaxcal.divergences`.
        prediction_kernel: Radial kernel on the divergence. An unset bandwidth is set by the median
            heuristic.
        target_kernel: Kernel between targets. By default Gaussian; the product of Laplace kernels
            over coordinates for Laplace predictions; `jaxcal.kernels.Delta` for classes. For
            classes also a Gram matrix [m, m], or a function K(p, q) of two predictions [m] that
            returns the matrix [m, m] of a joint kernel k((p, y), (q, y')) over classes y and y'
            (with ``prediction_kernel=jaxcal.kernels.Constant()``). An unset bandwidth is set by
            the median heuristic.
        null: Distribution of the statistic under calibration; see `jaxcal.nulls`. By default
            `jaxcal.nulls.Redrawn`, which is exact for every n, if its cost is small: for two
            classes, for m classes up to n^2 (m - 1) = 10^8, and for normals, Laplace distributions
            and their mixtures up to n = 64 with a target kernel that has closed forms (Gaussian;
            for Laplace distributions `L1Laplace`). Otherwise, and with ``features`` or K(p, q),
            `jaxcal.nulls.Wild`. Wild gives no verdict if the statistic depends mainly on targets so
            rare that fewer than 10 of them are expected.
        level: Probability of rejecting a calibrated model; it determines ``result.verdict``.
        base_measure: Nodes of divergences that need scores, as in `jaxcal.kccsd_test`.
        n_nodes: Number of these nodes to draw, as in `jaxcal.kccsd_test`.
        n_samples: Number of draws of each prediction for kernel means. By default closed forms,
            sums or quantiles are used, or else 64 draws.
        standardize: Whether to divide targets by their standard deviation in each coordinate first;
            bandwidths that you set are then in standard deviations.
        whiten: `jaxcal.whitening.Moments()`, or another whitener, standardizes each target by its
            prediction, as in `jaxcal.kccsd_test`. The target kernel then acts on these values. For
            `jaxcal.Draws` centre and scale are from the half for the divergence. Not for classes.
        features: `RandomFeatures(key, 100)` replaces pairs by random features, in linear time.
            ``null=jaxcal.nulls.Eigenvalues()`` then stores no draws of the null.
        tile: Rows and columns of a block of pairs that is computed at a time.
        mesh: Devices that share the pairs; None for one device.

    Returns:
        `TestResult`. NaN or infinite parameters or targets give p = NaN and a sentence in
        ``result.warnings()``.

    Cost with closed forms: n^2 (b + d) multiplications for b draws of the null; memory
    O(tile^2 + n b).

    Source: Widmann, Lindsten and Zachariah (2021), Sections 3 and 4; ACMMD: Glaser et al. (2024).

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> jaxcal.skce_test(1, dist.Normal(centers, 1.0), centers + 0.8 + noise).verdict
        'rejected'
    """
    key = convert.key(key)
    if null is not None:
        checks.null(null)
    predictions, ys, spec = mean_specification(
        predictions,
        targets,
        divergence=divergence,
        prediction_kernel=prediction_kernel,
        target_kernel=target_kernel,
        base_measure=base_measure,
        n_nodes=n_nodes,
        n_samples=n_samples,
        standardize=standardize,
        whiten=whiten,
    )
    if null is None:
        costly = features is not None or isinstance(spec.target_kernel, MatrixKernel)
        null = Wild() if costly else default_null(predictions, ys, Wild(), spec.target_kernel)
    return testing.run(key, predictions, ys, spec, null, "SKCE test", level, tile, mesh, features)


@rows_in_one_order
def skce(
    key: KeyLike, predictions: PredictionsLike, targets: ArrayLike, **options: Unpack[MeanOptions]
) -> Estimate:
    """Estimate the squared kernel calibration error (SKCE) without testing.

    Differentiable in predictions and targets, in every mode and order. Derivatives include
    the effect on standard deviations (``standardize``) and on default bandwidths.

    Args:
        key: Random key, used only where draws are needed.
        predictions: As in `skce_test`.
        targets: As in `skce_test`.
        **options: ``divergence``, ``prediction_kernel``, ``target_kernel``, ``base_measure``,
            ``n_nodes``, ``n_samples``, ``standardize`` and ``whiten`` of `skce_test`.

    Returns:
        `Estimate` of the SKCE: ``unbiased`` (U-statistic) and ``biased`` (V-statistic), both [].

    Cost: n^2 d multiplications with closed forms.

    Source: Widmann, Lindsten and Zachariah (2021), Section 3.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> predictions, targets = jnp.full(40, 0.5), jnp.arange(40) < 30
        >>> estimate = jaxcal.skce.skce(0, predictions, targets.astype(int))
        >>> round(float(estimate.biased), 3)  # 2 (0.75 - 0.5)^2
        0.125
    """
    key = convert.key(key)
    predictions, ys, spec = mean_specification(predictions, targets, **options)
    return testing.estimate(key, predictions, ys, spec)


@rows_in_one_order
def kce(
    key: KeyLike, predictions: PredictionsLike, targets: ArrayLike, **options: Unpack[MeanOptions]
) -> Array:
    """Estimate the kernel calibration error (KCE): the square root of the biased SKCE.

    The derivative is 0 where the estimate is 0. A biased SKCE between -100 eps and 0 (rounding)
    gives 0. A lower value gives NaN; positive definite kernels with k(x, x) = 1 exclude this.

    Args:
        key: Random key, used only where draws are needed.
        predictions: As in `skce_test`.
        targets: As in `skce_test`.
        **options: As in `jaxcal.skce.skce`.

    Returns:
        The estimate, [].

    Cost: that of `jaxcal.skce.skce`.

    Source: Widmann, Lindsten and Zachariah (2021), Section 3.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> predictions, targets = jnp.full(40, 0.5), jnp.arange(40) < 30
        >>> round(float(jaxcal.kce(0, predictions, targets.astype(int))), 3)
        0.354
    """
    biased = skce(key, predictions, targets, **options).biased
    none = (biased <= 0) & (biased > -100 * jnp.finfo(biased.dtype).eps)
    return jnp.where(none, 0.0, jnp.sqrt(jnp.where(none, 1.0, biased)))
