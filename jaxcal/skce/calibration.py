"""Is the model calibrated? SKCE: kernel means of the predictions in the place of their scores."""

from typing import Any, Unpack

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array

from jaxcal import checks, testing
from jaxcal.kernels.points import Gaussian
from jaxcal.nulls import Null, Wild
from jaxcal.quadratic import TILE
from jaxcal.results import Estimate, TestResult
from jaxcal.skce.specification import MeanOptions, mean_specification
from jaxcal.typing import KeyLike
from jaxcal.whitening import Whitener


def skce_test(
    key: KeyLike,
    predictions: Any,
    targets: Any,
    *,
    divergence: Any = None,
    prediction_kernel: Any = Gaussian(),
    target_kernel: Any = None,
    null: Null = Wild(),
    level: float = 0.05,
    base_measure: Any = None,
    n_nodes: int = 10,
    n_draws: int | None = None,
    standardize: bool = True,
    whiten: Whitener | None = None,
    tile: int = TILE,
    mesh: Mesh | None = None,
) -> TestResult:
    r"""Test that predictions are calibrated: that targets are draws from them.

    The null hypothesis is P(Y | prediction) = prediction. ``predictions``: a numpyro distribution
    with batch shape [n] (Normal, MultivariateNormal, Laplace and mixtures of these in closed form,
    Categorical and Bernoulli; any other through draws), class probabilities [n, m], probabilities
    [n] of class 1, or `jaxcal.Draws`. ``targets``: [n], [n, d] or [n, ...]; integer classes
    0, .., m - 1 for class probabilities.

    The kernel is ``prediction_kernel`` on a ``divergence`` of the predictions times
    ``target_kernel``; open bandwidths follow the median heuristic. By default the distance is
    2-Wasserstein for normals, Euclidean for class probabilities, and the distance of the kernel
    means (MMD with the target kernel) for all others; the target kernel is Gaussian, for
    one-dimensional Laplace predictions the Laplace kernel, for classes `Delta`; a Gram matrix
    [m, m] of the classes will do too. With ``standardize`` targets are first brought to standard
    deviation 1 in each coordinate, and bandwidths given by hand are in standard deviations.

    ``base_measure`` and ``n_nodes``: for distances of scores, as in `jaxcal.kccsd_test`.
    ``n_draws`` takes kernel means from that many draws of each prediction instead of a closed
    form. Draws that were given (`jaxcal.Draws`) are divided: half of them serve the distance, half
    the kernel means, as the weight of a pair must not depend on the errors of its means.

    ``whiten``: `jaxcal.whitening.Moments()`, or another way, brings targets and predictions into
    the units of each prediction, as in `jaxcal.kccsd_test`, for what the target kernel sees; those
    of draws come from the half that serves the divergence. Not for classes.

    The kernel of the paper's experiments is ``standardize=False, target_kernel=Gaussian(1.0),
    prediction_kernel=Laplace(1.0)``. ``null``: see `jaxcal.nulls`; ``level`` decides the verdict.

    Cost: n^2 (b + d) multiplications for b draws of the null and closed forms, memory
    O(tile^2 + n b). NaN or infinite parameters or targets give p = NaN and a sentence in
    ``result.warnings()``. Raises ValueError or TypeError for shapes, types, probabilities and
    classes, naming the argument.
    Source: Widmann, Lindsten and Zachariah (2021), Sections 3 and 4.
    """
    key = checks.key(key)
    checks.null(null)
    predictions, ys, spec = mean_specification(
        predictions,
        targets,
        divergence=divergence,
        prediction_kernel=prediction_kernel,
        target_kernel=target_kernel,
        base_measure=base_measure,
        n_nodes=n_nodes,
        n_draws=n_draws,
        standardize=standardize,
        whiten=whiten,
    )
    return testing.run(
        key,
        predictions,
        ys,
        spec,
        null,
        test="SKCE test",
        level=level,
        tile=tile,
        mesh=mesh,
    )


def skce(key: KeyLike, predictions: Any, targets: Any, **options: Unpack[MeanOptions]) -> Estimate:
    """Estimate the squared kernel calibration error; arguments and units as in `skce_test`.

    The key is used where draws are needed only. Differentiable in predictions and targets, through
    units and bandwidths too, in every mode and order. Cost O(n^2).
    """
    key = checks.key(key)
    predictions, ys, spec = mean_specification(predictions, targets, **options)
    return testing.estimate(key, predictions, ys, spec)


def kce(key: KeyLike, predictions: Any, targets: Any, **options: Unpack[MeanOptions]) -> Array:
    """Estimate the kernel calibration error: the square root of the biased SKCE, shape [].

    Its derivative at 0 is 0. Where rounding takes the biased SKCE of kernels of height 1 below 0 it
    is 0 too; NaN where it is negative beyond that, which positive definite kernels exclude.
    """
    biased = skce(key, predictions, targets, **options).biased
    none = (biased <= 0) & (biased > -100 * jnp.finfo(biased.dtype).eps)
    return jnp.where(none, 0.0, jnp.sqrt(jnp.where(none, 1.0, biased)))
