"""Is the model calibrated? KCCSD: scores of the predictions, and a kernel on the predictions."""

from typing import Any, Unpack

from jax.sharding import Mesh

from jaxcal import checks, testing
from jaxcal.divergences.fisher import Fisher
from jaxcal.kernels.points import Gaussian
from jaxcal.nulls import Null, Wild
from jaxcal.preparation import SteinOptions, stein_specification
from jaxcal.quadratic import TILE
from jaxcal.results import Estimate, TestResult
from jaxcal.typing import KeyLike, Precondition
from jaxcal.whitening import Whitener


def kccsd_test(
    key: KeyLike,
    predictions: Any,
    targets: Any,
    *,
    divergence: Any = Fisher(),
    prediction_kernel: Any = Gaussian(),
    target_kernel: Any = Gaussian(),
    null: Null = Wild(),
    level: float = 0.05,
    base_measure: Any = None,
    n_nodes: int = 10,
    precondition: Precondition = None,
    standardize: bool = True,
    coordinates: bool = False,
    whiten: Whitener | None = None,
    tile: int = TILE,
    mesh: Mesh | None = None,
) -> TestResult:
    r"""Test that predictions are calibrated: that targets are draws from them.

    The null hypothesis is P(Y | prediction) = prediction. Densities may be unnormalized: only
    scores are used. ``predictions``: an `Unnormalized`, a numpyro distribution with batch shape
    [n], `Scores`, or a pytree with ``scores(ys)``. ``targets``: [n], [n, d] or [n, ...].

    ``divergence`` between predictions and a radial ``prediction_kernel`` on it; ``target_kernel``
    twice differentiable. Kernels without a bandwidth get the median heuristic. With
    ``standardize`` targets and scores are first brought to mean 0 and standard deviation 1 in each
    coordinate, so results do not depend on units; bandwidths given by hand are then in standard
    deviations. ``base_measure``: that of the Fisher distances as points [m, d] or a numpyro
    distribution, both in the units of the targets; by default ``n_nodes`` standard normal points
    in the units of the test.

    ``precondition``: "isotropic", "diagonal" or "full" puts each prediction on the scale of its
    own spread, by the kernel k(p, p') M_p^T M_p' with M_p the inverse root of a precision that is
    estimated from the scores at the base points. The mean stays 0 under calibration because M_p is
    a function of the prediction alone, well estimated or not: E[M_p (l s_p + grad l)] = M_p E[l s_p
    + grad l]. The level at finite n also needs that no few observations dominate. It gains power
    where predictions differ in width.

    ``whiten``: `jaxcal.whitening.Regression()`, `Landing()` or `Moments()` brings each target into
    the units of its prediction, u = M_p^-1 (y - c_p) with score M_p^T s_p, which the target kernel
    then sees: a wrong spread is the same fault in every prediction, sharp or wide. Centre and scale
    are functions of the prediction alone, and nothing but power depends on how good they are.
    u has no units, so ``standardize`` then only sets where base points lie and what divergences
    see; bandwidths given by hand, and the smallest shift, are in claimed standard deviations.
    With ``coordinates`` it takes ``form="diagonal"``.

    ``coordinates=True`` also says how far predictions lie too high in each target coordinate by
    itself, and splits the statistic into what each coordinate adds given the others, with p-values
    (`jaxcal.results.Coordinates`), at d times the cost. The first needs the covariances of the
    predictions: known for normal, Laplace and mixture distributions, else fitted to their scores at
    the base points, which takes ``n_nodes`` > d.

    ``null``: see `jaxcal.nulls`; the default wild bootstrap needs independent observations,
    `DependentWild` is for time series. ``level``: the probability of rejecting a calibrated model;
    ``result.verdict`` is "rejected", "not rejected" or, with a ``result.reason``, "cannot tell".

    Cost: n (m + 1) scores and n^2 (b + m d) multiplications for b draws; memory O(tile^2 + n b).
    NaN or infinite scores or targets give p = NaN and a sentence in ``result.warnings()``. Raises
    ValueError or TypeError for shapes and types, naming the argument.
    Source: Glaser, Widmann, Lindsten and Gretton (2023), Algorithm 1, eq. 9 and 10, App. A.
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
    )


def kccsd(
    key: KeyLike, predictions: Any, targets: Any, **options: Unpack[SteinOptions]
) -> Estimate:
    """Estimate the squared KCCSD without testing; arguments and units as in `kccsd_test`.

    The key draws base points, and from the predictions where the distance needs draws.
    Differentiable in predictions and targets, through units, preconditioner and bandwidths too, in
    every mode and order: the derivative is the slope of what is returned.
    In a loss, give the kernels bandwidths as numbers, or a network may lower the estimate by moving
    the medians instead of fitting better (`notebooks/calibration_as_penalty.py`).
    Cost: n (m + 1) scores and n^2 m d multiplications.
    """
    key = checks.key(key)
    ys = checks.targets(targets)
    predictions = checks.predictions(predictions, ys)
    return testing.estimate(key, predictions, ys, stein_specification(ys, **options))
