"""Tests by moments: one of them, or several beside KCCSD in one call that names the fault."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack

import equinox as eqx
from jax.sharding import Mesh
from jax.tree_util import Partial

from jaxcal import checks, testing
from jaxcal.divergences.fisher import Fisher
from jaxcal.kernels import points
from jaxcal.kernels.points import Constant, Gaussian
from jaxcal.models import Unnormalized
from jaxcal.moments import Balance, Curvature, Exchangeable, KernelStein, Score
from jaxcal.nulls import HadamardWild, Null
from jaxcal.preparation import MomentsResidual, RandomFeatures, Specification, checked_base_measure
from jaxcal.quadratic import TILE
from jaxcal.results import TestResult, recorded
from jaxcal.scores import is_distribution
from jaxcal.typing import ArrayLike, BaseMeasure, DivergenceLike, KernelLike, KeyLike, Predictions
from jaxcal.whitening.contract import Whitener, checked

if (
    TYPE_CHECKING
):  # a `jaxcal.moments.Moment`: a function of a log density, a target and perhaps more
    MomentLike: TypeAlias = Callable[..., Any] | KernelStein
else:
    MomentLike = Any

PARTS = (KernelStein(), Score(marginal=True), Balance(), Curvature("correlation"), Exchangeable())


class MomentOptions(TypedDict, total=False):
    """Options of tests by moments, by name; `moment_test` explains them."""

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
    :math:`t_i = t(p_i, y_i)` the moment. Densities may be unnormalized, and may end where the
    moment needs no gradient.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: n log densities: an `Unnormalized`, or a numpyro distribution with batch shape
            [n].
        targets: Observed targets, shape [n], [n, d] or [n, ...].
        moment: `Balance`, `Exchangeable`, `Jumps`, `Curvature`, `Linear` or `Score` of
            `jaxcal.moments`, or a function from a log density and a target to numbers
            (`jaxcal.moments.Moment`). Where its values are skewed and their sum lies on the other
            side, the sum counts less (`jaxcal.nulls.Sums.guarded`): enough at level .05, not at
            .01, where strongly skewed ones reject too often in small data sets (at n = 50
            exponential values .013, gamma(.3) .027, Pareto(3) .035; at 20 .019, .029, .041). A
            function of your own whose values all lie on one side, as where a rare event did not
            come, has no verdict unless that is improbable.
        **options: ``prediction_kernel`` is by default a Gaussian, for errors that vary with the
            prediction, plus a constant, for the same error everywhere; ``null`` is by default
            `jaxcal.nulls.HadamardWild`; ``n_nodes`` by default max(10, 2 d + 2), as covariances
            that come from scores take more nodes than dimensions; ``divergence``,
            ``base_measure``, ``whiten``, ``standardize``, ``level``, ``features``, ``tile`` and
            ``mesh`` as in `jaxcal.kccsd_test`.

    Returns:
        `TestResult`. A target where its prediction has density 0 is a rejection of its own. There
        is no p-value, but a sentence in ``result.warnings()``, where the moment is 0 throughout or
        asks for more derivatives than the densities have.

    Raises:
        ValueError: Shapes or values are wrong; the message names the argument.
        TypeError: An argument is of the wrong type, or there is no such option.

    Cost: The moment at n targets, n n_nodes scores, and n^2 q products for q numbers of the moment;
    with R random features n R q b for b draws of the null, which else cost n^2 additions together.

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
    residual = MomentsResidual((ready,), (_label(ready),))
    return _run(key, predictions, targets, residual, f"moment test ({_label(ready)})", options)


@recorded
def calibration_test(
    key: KeyLike,
    predictions: Predictions,
    targets: ArrayLike,
    *,
    parts: Mapping[str, MomentLike] | Sequence[MomentLike] | None = None,
    **options: Unpack[MomentOptions],
) -> TestResult:
    r"""Test that predictions are calibrated: shift, spread, correlation, weights, shape at once.

    From log densities up to their constants alone. Each part is a statistic of its own,
    :math:`k(p_i, p_j) \langle t_i, t_j \rangle`; all share one pass over pairs and the signs of one
    null. Each is divided by the standard deviation of its own draws, and their soft maximum
    :math:`\log \sum_c e^{z_c}` is compared with that of each draw. A sum against the skewness of
    its values counts less (`jaxcal.nulls.Sums.guarded`).

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: n log densities: an `Unnormalized`, or a numpyro distribution with batch shape
            [n].
        targets: Observed targets, shape [n], [n, d] or [n, ...].
        parts: Moments and `jaxcal.moments.KernelStein`, in a sequence or by name in a mapping. By
            default KCCSD (shape), the marginal `Score` (shift), `Balance` (spread), the
            correlations of `Curvature`, and `Exchangeable` (weights of modes), all of
            `jaxcal.moments`. A moment with several named groups of numbers is a part for each.
        **options: As in `moment_test`.

    Returns:
        `TestResult`. Printed, it names the strongest part; ``result.parts`` holds the p-value of
        each. Parts that are right only where densities reach everywhere are left out, by name,
        where a density is 0 at a node or at a moved target (`jaxcal.moments.support.edges`), or a
        distribution says that it ends; curvature where a density has kinks.

    Raises:
        ValueError: Shapes or values are wrong; the message names the argument.
        TypeError: An argument is of the wrong type, or there is no such option.

    Cost: About 80 log densities, 6 gradients and d + 2 Hessian-vector products a target, n_nodes
    gradients a prediction, and n^2 additions for each part.

    Source: Westfall and Young (1993) for several statistics with draws in common; the parts name
    theirs.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> def log_density(center, y):
        ...     return -jnp.sum((y - center) ** 2) / 2
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 200, 2))
        >>> predictions = jaxcal.Unnormalized(log_density, centers)
        >>> result = jaxcal.calibration_test(1, predictions, centers + 0.6 * noise)
        >>> result.verdict
        'rejected'
    """
    named = _named(PARTS if parts is None else parts)
    residual = MomentsResidual(tuple(named.values()), tuple(named), apart=True)
    return _run(key, predictions, targets, residual, "calibration test", options)


def _run(
    key: KeyLike,
    predictions: Predictions,
    targets: ArrayLike,
    residual: MomentsResidual,
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
    if not (isinstance(predictions, Unnormalized) or is_distribution(predictions)):
        raise TypeError(
            f"predictions: moments need log densities, which {type(predictions).__name__} does not "
            f"give; pass a jaxcal.Unnormalized or a numpyro distribution with batch shape [n]"
        )
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
        checks.predictions(predictions, ys),
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
    """A moment as a pytree; a plain function becomes part of the program."""
    if isinstance(value, type) or not (callable(value) or isinstance(value, KernelStein)):
        raise TypeError(
            f"{name}: wanted a moment such as jaxcal.moments.Balance(), or a function of a log "
            f"density and a target, got {checks.say(value)}"
        )
    return value if isinstance(value, eqx.Module | Partial) else Partial(value)


def _label(moment: object) -> str:
    """The class of a moment, or the name of a function, in words."""
    if isinstance(moment, Partial):
        return getattr(moment.func, "__name__", "moment")
    return {"KernelStein": "KCCSD"}.get(type(moment).__name__, type(moment).__name__.lower())


def _named(
    parts: Mapping[str, MomentLike] | Sequence[MomentLike],
) -> dict[str, MomentLike]:
    if isinstance(parts, Mapping):
        named = {str(name): _moment(part, "parts") for name, part in parts.items()}
    elif isinstance(parts, Sequence) and not isinstance(parts, str):
        named = {}
        for part in parts:
            ready = _moment(part, "parts")
            label = _label(ready)
            times = sum(name.partition(" (")[0] == label for name in named)
            named[label if not times else f"{label} ({times + 1})"] = ready
    else:
        raise TypeError(f"parts: wanted a list or a mapping of moments, got {checks.say(parts)}")
    if not named:
        raise ValueError("parts: wanted at least one")
    return named
