"""Tests by a moment that has mean zero under every prediction."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack

import equinox as eqx
from jax.sharding import Mesh
from jax.tree_util import Partial

from jaxcal import testing
from jaxcal.divergences.fisher import Fisher
from jaxcal.engine.quadratic import TILE
from jaxcal.fit import MomentResidual, RandomFeatures, Specification, checked_base_measure
from jaxcal.kernels import points
from jaxcal.kernels.points import Constant, Gaussian
from jaxcal.moments import Balance
from jaxcal.nulls import HadamardWild, Null
from jaxcal.read import checks
from jaxcal.read.observations import densities
from jaxcal.results import TestResult, recorded
from jaxcal.typing import ArrayLike, BaseMeasure, DivergenceLike, KernelLike, KeyLike, Predictions
from jaxcal.whitening.contract import Whitener, checked

if (
    TYPE_CHECKING
):  # a `jaxcal.moments.Moment`: a function of a log density, a target and optional arguments
    MomentLike: TypeAlias = Callable[..., Any]
else:
    MomentLike = Any


class MomentOptions(TypedDict, total=False):
    """Options of tests by moments, by name; see `moment_test`."""

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
    r"""Test that a moment with mean zero under every prediction has mean zero over the targets.

    The statistic is the mean of :math:`k(p_i, p_j) \langle t_i, t_j \rangle` over pairs, with
    :math:`t_i = t(p_i, y_i)` the moment. Densities may be unnormalized, and may have a boundary if
    the moment needs no gradient.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: n log densities: an `Unnormalized`, or a numpyro distribution with batch shape
            [n].
        targets: Observed targets, shape [n], [n, d] or [n, ...].
        moment: `Balance`, `Exchangeable`, `Curvature` or `Score` of
            `jaxcal.moments`, or a function from a log density and a target to numbers
            (`jaxcal.moments.Moment`). For skewed values the statistic is corrected
            (`jaxcal.nulls.Sums.guarded`). Strongly skewed values still reject too often in small
            data sets (scores of log gamma variables of shape .3: .080 at level .05 and .034 at .01
            for n = 20), and the result warns. If all values of a user's function have one sign, as
            if a rare event did not occur, there is no verdict unless that is improbable.
        **options: ``prediction_kernel`` is by default a Gaussian, for errors that vary with the
            prediction, plus a constant, for a common error; ``null`` is by default
            `jaxcal.nulls.HadamardWild`; ``n_nodes`` by default max(10, 2 d + 2), as covariances
            from scores need more nodes than dimensions; ``divergence``, ``base_measure``,
            ``whiten``, ``standardize``, ``level``, ``features``, ``tile`` and ``mesh`` as in
            `jaxcal.kccsd_test`.

    Returns:
        `TestResult`. A target at which its prediction has density 0 leads to rejection by itself.
        If the moment is 0 everywhere or needs more derivatives than the densities have, there is no
        p-value but a sentence in ``result.warnings()``.

    Cost: The moment at n targets, n n_nodes scores, and n^2 q products for q numbers of the moment
    plus n^2 additions for all draws of the null; with R random features n R q b for b draws.

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
    ready = _moment(moment, "moment")
    residual = MomentResidual(ready, _label(ready))
    return _run(key, predictions, targets, residual, f"moment test ({_label(ready)})", options)


def _run(
    key: KeyLike,
    predictions: Predictions,
    targets: ArrayLike,
    residual: MomentResidual,
    test: str,
    options: MomentOptions,
) -> TestResult:
    unknown = set(options) - set(MomentOptions.__annotations__)
    if unknown:
        raise TypeError(f"{min(unknown)}: no such option; there are {', '.join(_NAMES)}")
    key = checks.key(key)
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
        residual,
        checked_base_measure(options.get("base_measure"), ys),
        checks.nodes(options.get("n_nodes"), ys[0].size),
        checks.flag(options.get("standardize", True), "standardize"),
        None if whiten is None else checked(whiten, "whiten"),
    )
    return testing.run(
        key,
        predictions,
        ys,
        spec,
        null,
        test=test,
        level=options.get("level", 0.05),
        tile=options.get("tile", TILE),
        mesh=options.get("mesh"),
        features=options.get("features"),
    )


_NAMES = tuple(MomentOptions.__annotations__)


def _moment(value: object, name: str) -> Any:
    """Return a moment as a pytree; a plain function belongs to the program."""
    if isinstance(value, type) or not callable(value):
        raise TypeError(
            f"{name}: wanted a moment such as jaxcal.moments.Balance(), or a function of a log "
            f"density and a target, got {checks.say(value)}"
        )
    return value if isinstance(value, eqx.Module | Partial) else Partial(value)


def _label(moment: object) -> str:
    """Return the class of a moment or the name of a function as words."""
    if isinstance(moment, Partial):
        return getattr(moment.func, "__name__", "moment")
    return type(moment).__name__.lower()
