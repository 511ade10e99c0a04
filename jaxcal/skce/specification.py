"""The choices of a test with kernel means, with defaults by the kind of predictions."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxcal.divergences.gaussians import Wasserstein
from jaxcal.divergences.mmd import MMD
from jaxcal.divergences.simplex import Euclidean
from jaxcal.fit import (
    MeanResidual,
    Options,
    Specification,
    checked_base_measure,
    samplable,
    vector_kernel,
)
from jaxcal.kernels import points
from jaxcal.kernels.classes import ClassGram, Delta, MatrixKernel
from jaxcal.kernels.points import Gaussian
from jaxcal.nulls import Redrawn
from jaxcal.read import checks
from jaxcal.read.families import Classes, Laplaces, Mixtures, Normals, distribution_of
from jaxcal.read.observations import check_parameters, observations
from jaxcal.read.sampling import lattice_size
from jaxcal.typing import ArrayLike, BaseMeasure, KernelLike
from jaxcal.whitening.contract import Whitener, checked

CLOSED = {Normals: Gaussian, Laplaces: points.L1Laplace, Mixtures: Gaussian}
DIVERGENCES = {Classes: Euclidean, Normals: Wasserstein, Laplaces: Wasserstein}

Otherwise = TypeVar("Otherwise")
MOST_PRODUCTS = 10**8  # multiplications per draw of redrawn classes
MOST_REFITTED = 64  # observations with closed forms up to which each draw is refitted


class MeanOptions(Options, total=False):
    """Options by name of every test and estimate with kernel means; see `skce_test`."""

    n_draws: int | None
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
    n_draws: int | None = None,
    standardize: bool = True,
    whiten: Whitener | None = None,
) -> tuple[Any, Array, Specification]:
    """Return validated predictions, targets and choices; errors name the argument."""
    predictions, ys = observations(predictions, targets)
    standardize = checks.flag(standardize, "standardize")
    n_draws = None if n_draws is None else checks.integer(n_draws, "n_draws", least=2)
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
        MeanResidual(n_draws, lattice_size(predictions) if n_draws is None else None),
        base_measure,
        checks.integer(n_nodes, "n_nodes"),
        standardize,
        whiten,
    )
    return predictions, ys, specification


def default_null(
    predictions: Any, ys: Array, otherwise: Otherwise, kernel: Any = None
) -> Redrawn | Otherwise:
    """Return `Redrawn` if its cost is small, or else another null.

    ``kernel`` on targets; None is the default one.
    """
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
    if isinstance(kernel, (list, tuple, np.ndarray, jax.Array)):
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
    """Raise TypeError if the target kernel depends on the predictions too."""
    if isinstance(spec.target_kernel, MatrixKernel):
        raise TypeError("target_kernel: a function of two predictions is for skce_test and skce")
