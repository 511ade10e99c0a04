"""KCCSD: tests and estimates of calibration from scores, with a kernel on the predictions."""

from typing import Unpack

from jax.sharding import Mesh

from jaxcal import testing
from jaxcal.divergences.fisher import Fisher
from jaxcal.engine.quadratic import TILE
from jaxcal.fit import RandomFeatures, SteinOptions, stein_specification
from jaxcal.kernels.points import Gaussian
from jaxcal.nulls import Null, Wild
from jaxcal.read import checks
from jaxcal.results import Estimate, TestResult, recorded
from jaxcal.typing import (
    ArrayLike,
    BaseMeasure,
    DivergenceLike,
    KernelLike,
    KeyLike,
    Precondition,
    Predictions,
)
from jaxcal.whitening import Whitener


@recorded
def kccsd_test(
    key: KeyLike,
    predictions: Predictions,
    targets: ArrayLike,
    *,
    divergence: DivergenceLike = Fisher(),
    prediction_kernel: KernelLike = Gaussian(),
    target_kernel: KernelLike = Gaussian(),
    null: Null = Wild(),
    level: float = 0.05,
    base_measure: BaseMeasure | None = None,
    n_nodes: int = 10,
    precondition: Precondition = None,
    standardize: bool = True,
    coordinates: bool = False,
    whiten: Whitener | None = None,
    features: RandomFeatures | None = None,
    tile: int = TILE,
    mesh: Mesh | None = None,
) -> TestResult:
    """Test that predictions are calibrated, by their scores: the KCCSD test.

    The null hypothesis is P(Y | prediction) = prediction: targets are draws from their
    predictions. Only scores (gradients of log densities) are used, so densities may be
    unnormalized.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: n predictions: an `Unnormalized`, a numpyro distribution with batch shape
            [n], `Scores`, or a pytree with a method ``scores(ys)``.
        targets: Observed targets, shape [n], [n, d] or [n, ...].
        divergence: Distance between predictions that ``prediction_kernel`` acts on; see
            `jaxcal.divergences`.
        prediction_kernel: Radial kernel on the divergence. An unset bandwidth is set by the median
            heuristic.
        target_kernel: Kernel between targets, twice differentiable; bandwidth likewise.
        null: Distribution of the statistic under calibration; see `jaxcal.nulls`. The default
            wild bootstrap needs independent observations; `jaxcal.nulls.DependentWild` is for
            time series.
        level: Probability of rejecting a calibrated model; it determines ``result.verdict``.
        base_measure: Nodes at which the Fisher divergences compare scores: points [m, d]
            or a numpyro distribution, in the units of the targets. By default ``n_nodes``
            standard normal points in the units of the test.
        n_nodes: Number of nodes to draw.
        precondition: "isotropic", "diagonal" or "full" scales each prediction by its own spread
            with the kernel k(p, p') M_p^T M_p', where M_p is the inverse root of a precision
            estimated from the scores at the nodes. This increases power if predictions differ in
            width. M_p is a function of the prediction alone, so the mean under calibration is 0
            for any estimate of it: E[M_p (l s_p + grad l)] = M_p E[l s_p + grad l] = 0. The level
            at finite n also requires that no few observations dominate.
        standardize: Whether to standardize targets and scores to mean 0 and standard deviation 1
            in each coordinate first, so that results do not depend on units. Bandwidths that you
            set are then in standard deviations.
        coordinates: Whether to report shift and spread of each target coordinate by itself, and to
            split the statistic into contributions of each coordinate given the others, with
            p-values (`TestResult.coordinates`), at d times the cost. The first part is available
            and exact for Gaussian predictions: distributions, or densities whose scores at targets
            and nodes are linear, which needs ``n_nodes`` > d. Shifts are also available for
            predictions with known means: Laplace distributions, mixtures and independent
            coordinates of numpyro.
        whiten: `jaxcal.whitening.Regression()`, `Landing()` or `Moments()` transforms each target
            to the units of its prediction, u = M_p^-1 (y - c_p) with score M_p^T s_p, for the
            target kernel: a wrong spread is then the same error for sharp and wide predictions.
            Centre c_p and scale M_p are functions of the prediction alone; their quality affects
            power only. As u has no units, ``standardize`` then only affects nodes and divergences;
            bandwidths that you set, and the detectable shift, are in claimed standard deviations.
            With ``coordinates`` the statistic uses scores and gradients along the coordinates, in
            claimed standard deviations, D_p s_p instead of M_p^T s_p, which is equal for diagonal
            scales.
        features: `RandomFeatures(key, 100)` replaces the pairs by random features of the kernel, in
            linear time; with ``null=jaxcal.nulls.Eigenvalues()`` no draws are stored either.
        tile: Rows and columns of a block of pairs that is computed at a time.
        mesh: Devices that share the pairs; None for one device.

    Returns:
        `TestResult`. ``result.verdict`` is "rejected", "not rejected" or, with a
        ``result.reason``, "cannot tell". NaN or infinite scores or targets give p = NaN and a
        sentence in ``result.warnings()``.

    Cost: n (m + 1) scores and n^2 (b + m d) multiplications for m nodes and b draws of the
    null; memory O(tile^2 + n b).

    Source: Glaser, Widmann, Lindsten and Gretton (2023), Algorithm 1, eq. 9 and 10, App. A.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> def log_density(center, y):  # of one prediction, without its constant
        ...     return -jnp.sum((y - center) ** 2) / 2
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> predictions = jaxcal.Unnormalized(log_density, centers)
        >>> jaxcal.kccsd_test(1, predictions, centers + 0.8 + noise).verdict
        'rejected'
    """
    key = checks.key(key)
    checks.null(null)
    ys = checks.targets(targets)
    predictions = checks.predictions(predictions, ys)
    spec = stein_specification(
        ys,
        divergence=divergence,
        prediction_kernel=prediction_kernel,
        target_kernel=target_kernel,
        base_measure=base_measure,
        n_nodes=n_nodes,
        precondition=precondition,
        standardize=standardize,
        coordinates=coordinates,
        whiten=whiten,
    )
    return testing.run(
        key,
        predictions,
        ys,
        spec,
        null,
        test="KCCSD test",
        level=level,
        tile=tile,
        mesh=mesh,
        features=features,
    )


def kccsd(
    key: KeyLike, predictions: Predictions, targets: ArrayLike, **options: Unpack[SteinOptions]
) -> Estimate:
    """Estimate the squared KCCSD, a calibration error from scores, without testing.

    Differentiable in predictions and targets, in every mode and order, including units,
    preconditioner and bandwidths. In a loss, set the bandwidths to numbers; otherwise a network may
    lower the estimate by changing the medians, not by a better fit
    (`notebooks/calibration_as_penalty.py`).

    Args:
        key: Random key for nodes, and for draws from the predictions if the divergence needs them.
        predictions: n predictions, as in `kccsd_test`.
        targets: Observed targets, shape [n], [n, d] or [n, ...].
        **options: ``divergence``, ``prediction_kernel``, ``target_kernel``, ``base_measure``,
            ``n_nodes``, ``precondition``, ``standardize`` and ``whiten`` of `kccsd_test`.

    Returns:
        `Estimate` of the square: ``unbiased`` and ``biased``, both [].

    Cost: n (m + 1) scores and n^2 m d multiplications for m nodes.

    Source: Glaser et al. (2023), eq. 9 and 10.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> good = jaxcal.kccsd(1, dist.Normal(centers, 1.0), centers + noise)
        >>> shifted = jaxcal.kccsd(1, dist.Normal(centers, 1.0), centers + 0.8 + noise)
        >>> bool(good.unbiased < shifted.unbiased)
        True
    """
    key = checks.key(key)
    ys = checks.targets(targets)
    predictions = checks.predictions(predictions, ys)
    return testing.estimate(key, predictions, ys, stein_specification(ys, **options))
