"""Test calibration by the kernel calibration-conditional Stein discrepancy (KCCSD) or a moment.

The KCCSD needs only scores, the gradients of log densities. A moment is a function of a prediction
and a target, with mean zero if the target is drawn from the prediction.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack

import equinox as eqx
from jax.sharding import Mesh
from jax.tree_util import Partial

from jaxcal.divergences.fisher import Fisher
from jaxcal.engine.quadratic import TILE
from jaxcal.fit import testing
from jaxcal.fit.moment_residual import MomentResidual
from jaxcal.fit.options import SteinOptions, checked_base_measure, stein_specification
from jaxcal.fit.specification import RandomFeatures, Specification
from jaxcal.kernels import points
from jaxcal.kernels.points import Constant, Gaussian
from jaxcal.moments import Balance
from jaxcal.nulls import HadamardWild, Null, Wild
from jaxcal.read import checks, convert
from jaxcal.read.observations import densities, scored
from jaxcal.results import Estimate, TestResult, recorded, rows_in_one_order
from jaxcal.typing import (
    ArrayLike,
    BaseMeasure,
    DivergenceLike,
    KernelLike,
    KeyLike,
    Precondition,
    Predictions,
)
from jaxcal.whitening.contract import Whitener, checked

# a `jaxcal.moments.Moment`: a function of a log density, a target and optional arguments
if TYPE_CHECKING:
    MomentLike: TypeAlias = Callable[..., Any]
else:
    MomentLike = Any


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
    """Test calibration by the kernel calibration-conditional Stein discrepancy (KCCSD).

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
        prediction_kernel: Radial kernel on the divergence.
        target_kernel: Twice differentiable kernel between targets. Unset bandwidths of both kernels
            are set by the median heuristic.
        null: Distribution of the statistic under calibration; see `jaxcal.nulls`. The default
            wild bootstrap needs independent observations; `jaxcal.nulls.DependentWild` is for
            time series.
        level: Probability of rejecting a calibrated model; it determines ``result.verdict``.
        base_measure: Nodes at which the Fisher divergences compare scores: points [m, d]
            or a numpyro distribution, in the units of the targets. By default ``n_nodes``
            standard normal points in standardized units (see ``standardize``).
        n_nodes: Number of nodes to draw.
        precondition: "isotropic", "diagonal" or "full" increases power if predictions differ in
            width. The kernel becomes k(p, p') M_p^T M_p', where M_p is the inverse root of a
            precision matrix of p, estimated from its scores at the nodes. Poor estimates are
            allowed: for every M_p that depends on p alone, calibration implies
            E[M_p (l s_p + grad l)] = 0, with target kernel l and score s_p. But the level is
            inaccurate if a few observations dominate the statistic. Not with ``whiten``.
        standardize: Whether to standardize targets and scores to mean 0 and standard deviation 1
            in each coordinate first, so that results do not depend on units. Bandwidths that you
            set are then in standard deviations.
        coordinates: Whether to add `TestResult.coordinates`, at d times the cost: a p-value for
            each target coordinate given the others, and estimated errors of means, spreads and
            correlations. The errors are exact for Gaussian predictions. (A density counts as
            Gaussian if its scores are linear and ``n_nodes`` > d.) Errors of means are also exact
            for Laplace distributions, mixtures, and numpyro distributions with independent
            coordinates.
        whiten: `jaxcal.whitening.Regression()`, `Landing()` or `Moments()` standardizes each
            target by its prediction: u = M_p^-1 (y - c_p), with score M_p^T s_p. A wrong spread is
            then the same error for sharp and wide predictions. The centre c_p and scale M_p depend
            on the prediction alone; poor choices cost power but keep the level. The target kernel
            acts on u, so target bandwidths that you set are in units of u; ``standardize`` only
            affects nodes and divergences. With ``coordinates``, let D_p be the diagonal matrix of
            standard deviations of prediction p (the roots of the diagonal of M_p M_p^T). Scores and
            gradients are then multiplied by D_p, not M_p^T, so that their coordinates are those of
            the targets.
        features: `RandomFeatures(key, 100)` replaces the pairs by random features of the kernel, in
            linear time; with ``null=jaxcal.nulls.Eigenvalues()`` no draws are stored either.
        tile: Number of rows, and of columns, of each block of pairs that is computed at a time.
        mesh: Devices among which the pairs are divided; None for one device.

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
    key = convert.key(key)
    checks.null(null)
    ys = checks.targets(targets)
    predictions = scored(predictions, ys)
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
    return testing.run(key, predictions, ys, spec, null, "KCCSD test", level, tile, mesh, features)


@rows_in_one_order
def kccsd(
    key: KeyLike, predictions: Predictions, targets: ArrayLike, **options: Unpack[SteinOptions]
) -> Estimate:
    """Estimate the squared KCCSD, the calibration error of `kccsd_test`, without a test.

    Differentiable in predictions and targets, in every mode and order. Units, preconditioner and
    median bandwidths are differentiated too. In a loss, set the bandwidths to numbers: otherwise a
    network may lower the estimate by changing the median bandwidths, without a better fit
    (`notebooks/calibration_as_penalty.py`).

    Args:
        key: Random key for nodes, and for draws from the predictions if the divergence needs them.
        predictions: n predictions, as in `kccsd_test`.
        targets: Observed targets, shape [n], [n, d] or [n, ...].
        **options: ``divergence``, ``prediction_kernel``, ``target_kernel``, ``base_measure``,
            ``n_nodes``, ``precondition``, ``standardize`` and ``whiten`` of `kccsd_test`.

    Returns:
        `Estimate` of the square: ``unbiased`` (U-statistic) and ``biased`` (V-statistic), both [].

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
    key = convert.key(key)
    ys = checks.targets(targets)
    predictions = scored(predictions, ys)
    return testing.estimate(key, predictions, ys, stein_specification(ys, **options))


class MomentOptions(TypedDict, total=False):
    """Keyword options of `moment_test`, which explains them."""

    divergence: DivergenceLike
    prediction_kernel: KernelLike
    null: Null
    level: float
    base_measure: BaseMeasure | None
    n_nodes: int | None
    whiten: Whitener | None
    standardize: bool
    features: RandomFeatures | None
    tile: int
    mesh: Mesh | None


@recorded
def moment_test(
    key: KeyLike,
    predictions: Predictions,
    targets: ArrayLike,
    *,
    moment: MomentLike = Balance(),
    **options: Unpack[MomentOptions],
) -> TestResult:
    r"""Test calibration by a moment t(p, y), which has mean zero if y is drawn from p.

    The statistic is the mean of :math:`k(p_i, p_j) \langle t_i, t_j \rangle` over pairs, with
    :math:`t_i = t(p_i, y_i)`. Densities may be unnormalized. They may have a boundary if the moment
    needs no gradient.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: n log densities: an `Unnormalized`, or a numpyro distribution with batch shape
            [n].
        targets: Observed targets, shape [n], [n, d] or [n, ...].
        moment: `Balance`, `Exchangeable`, `Curvature` or `Score` of `jaxcal.moments`, or a function
            of a log density and a target that returns numbers (`jaxcal.moments.Moment`). The
            statistic is corrected for skewed values (`jaxcal.nulls.Sums.guarded`). If values are
            strongly skewed, small data sets are still rejected too often, and the result has a
            warning. (Example: by its score, a calibrated log gamma model of shape .3 is rejected
            at level .05 with probability .080 if n = 20.) If all values of your own function have
            one sign, the verdict is usually "cannot tell", as a rare event may have been missed. A
            verdict is given only if calibration would give one sign with probability <= .002.
        **options: Options of `jaxcal.kccsd_test`: ``divergence``, ``base_measure``, ``whiten``,
            ``standardize``, ``level``, ``features``, ``tile`` and ``mesh``. Also
            ``prediction_kernel``, by default a Gaussian kernel plus a constant, which detects
            errors common to all predictions; ``null``, by default `jaxcal.nulls.HadamardWild`; and
            ``n_nodes``, by default max(10, 2 d + 2).

    Returns:
        `TestResult`. One target of density 0 suffices to reject. If the moment is 0 everywhere or
        needs more derivatives than the densities have, p is NaN, and ``result.warnings()`` says so.

    Cost: The moment at n targets, n n_nodes scores, n^2 q products if the moment has q components,
    and n^2 additions for all draws of the null; with R random features n R q b for b draws.

    Source: Balance, Metropolis et al. (1953); scores, Stein (1972); curvature, the information
    matrix test of White (1982).

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> def log_density(center, y):
        ...     return -jnp.sum((y - center) ** 2) / 2
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 200))
        >>> predictions = jaxcal.Unnormalized(log_density, centers)
        >>> jaxcal.moment_test(1, predictions, centers + 1.5 * noise).verdict  # wrong spread
        'rejected'
        >>> def skewness(log_density, y):  # odd in the score of a prediction without skew
        ...     return jnp.tanh(jax.grad(log_density)(y))
        >>> result = jaxcal.moment_test(1, predictions, centers + noise, moment=skewness)
        >>> result.test
        'moment test (skewness)'
    """
    ready = _moment(moment)
    label = _label(ready)
    unknown = set(options) - set(MomentOptions.__annotations__)
    if unknown:
        raise TypeError(
            f"{min(unknown)}: no such option; there are {', '.join(MomentOptions.__annotations__)}"
        )
    key = convert.key(key)
    null = options.get("null", HadamardWild())
    checks.null(null)
    ys = checks.targets(targets)
    predictions = densities(predictions, ys)
    whiten = options.get("whiten")
    spec = Specification(
        checks.divergence(options.get("divergence", Fisher(zero_outside=True))),
        points.as_kernel(
            options.get("prediction_kernel", Gaussian() + Constant()), "prediction_kernel"
        ),
        Gaussian(),
        MomentResidual(ready, label),
        checked_base_measure(options.get("base_measure"), ys),
        checks.nodes(options.get("n_nodes"), ys[0].size),
        convert.flag(options.get("standardize", True), "standardize"),
        None if whiten is None else checked(whiten, "whiten"),
    )
    level, tile = options.get("level", 0.05), options.get("tile", TILE)
    mesh, features = options.get("mesh"), options.get("features")
    test = f"moment test ({label})"
    return testing.run(key, predictions, ys, spec, null, test, level, tile, mesh, features)


def _moment(value: object) -> Any:
    """Return the moment, with a function wrapped in a `Partial`; TypeError if it is no moment."""
    if isinstance(value, type) or not callable(value):
        raise TypeError(
            f"moment: wanted a moment such as jaxcal.moments.Balance(), or a function of a log "
            f"density and a target, got {convert.say(value)}"
        )
    return value if isinstance(value, eqx.Module | Partial) else Partial(value)


def _label(moment: object) -> str:
    if isinstance(moment, Partial):
        return getattr(moment.func, "__name__", "moment")
    return type(moment).__name__.lower()
