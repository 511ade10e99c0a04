"""Validate options of tests and return them as a `Specification`."""

import dataclasses
import math
from typing import Any, TypedDict

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, PyTree

from jaxcal.divergences.fisher import Fisher
from jaxcal.fit.residuals import SteinResidual
from jaxcal.fit.specification import RandomFeatures, Specification
from jaxcal.kernels import points
from jaxcal.kernels.classes import ClassGram, Delta
from jaxcal.kernels.points import Gaussian
from jaxcal.read import Units, checks, convert
from jaxcal.read.scores import is_distribution
from jaxcal.statistics.stein import check_smooth
from jaxcal.typing import BaseMeasure, DivergenceLike, KernelLike, Precondition
from jaxcal.whitening.contract import Whitener, checked


class Options(TypedDict, total=False):
    """Keyword arguments of every test and estimate over pairs; see `kccsd_test`."""

    divergence: DivergenceLike
    prediction_kernel: KernelLike
    target_kernel: KernelLike
    base_measure: BaseMeasure | None
    n_nodes: int
    standardize: bool


class SteinOptions(Options, total=False):
    """Keyword arguments of every Stein test and estimate."""

    precondition: Precondition
    whiten: Whitener | None


def stein_specification(
    ys: Array,
    *,
    divergence: DivergenceLike = Fisher(),
    prediction_kernel: KernelLike = Gaussian(),
    target_kernel: KernelLike = Gaussian(),
    base_measure: BaseMeasure | None = None,
    n_nodes: int = 10,
    precondition: Precondition = None,
    standardize: bool = True,
    coordinates: bool = False,
    whiten: Whitener | None = None,
) -> Specification:
    """Return the options as a `Specification`; ValueError or TypeError names a bad argument."""
    standardize = convert.flag(standardize, "standardize")
    coordinates = convert.flag(coordinates, "coordinates")
    target_kernel = vector_kernel(target_kernel, ys)
    prediction_kernel = points.as_kernel(prediction_kernel, "prediction_kernel")
    smooth = points.smoothness(target_kernel)
    if smooth is False:
        raise ValueError(
            "target_kernel: a Stein test differentiates it twice, and Laplace has no derivative "
            "at 0; use Matern52 or a smoother kernel"
        )
    if smooth is None and not isinstance(ys, Tracer):
        rows = np.asarray(ys).reshape(ys.shape[0], -1)
        rows = rows[np.all(np.isfinite(rows), axis=1)]
        units = Units.of(jnp.asarray(rows)) if standardize and len(rows) else None
        if len(rows):
            some = jnp.asarray(rows[:3]) if units is None else units.points(jnp.asarray(rows[:3]))
            size = 1.0 if units else float(np.std(rows)) or 1.0
            ready = points.with_bandwidth(target_kernel, jnp.asarray(size, some.dtype))
            check_smooth(ready, some, size)
    convert.choice(precondition, "precondition", (None, "isotropic", "diagonal", "full"))
    whiten = None if whiten is None else checked(whiten, "whiten")
    if whiten is not None and precondition is not None:
        raise ValueError(
            "precondition: whiten= brings each prediction into its own units already; leave one out"
        )
    if precondition == "full" and coordinates:
        raise ValueError(
            "coordinates=True with precondition='full' would mix the coordinates it keeps apart: "
            "use 'diagonal'"
        )
    return Specification(
        checks.divergence(divergence),
        prediction_kernel,
        target_kernel,
        SteinResidual(precondition, coordinates),
        checked_base_measure(base_measure, ys),
        convert.integer(n_nodes, "n_nodes"),
        standardize,
        whiten,
    )


def vector_kernel(kernel: KernelLike, ys: Array) -> KernelLike:
    """Return ``kernel`` as a target kernel; TypeError or ValueError if it cannot compare ``ys``."""
    kernel = points.as_kernel(kernel, "target_kernel")
    if isinstance(kernel, Delta | ClassGram):
        raise TypeError(
            f"target_kernel: {type(kernel).__name__} compares classes, and these targets are "
            f"vectors: use jaxcal.kernels.Gaussian() or another kernel on vectors"
        )
    for lengths in points.lengths(kernel):
        if lengths.size != (d := ys[0].size):
            raise ValueError(
                f"target_kernel: a bandwidth of {lengths.size} lengths for targets of {d} "
                f"coordinates"
            )
    return kernel


def checked_base_measure(value: Any, ys: Array) -> BaseMeasure | None:
    """Return the validated base measure: None, points [m, *event], or a distribution."""
    checks.of_jax(value, "base_measure")
    if isinstance(value, type):
        raise TypeError(f"base_measure: got the class {value.__name__}; pass an instance of it")
    if value is None:
        return value
    if is_distribution(value):
        shape = (*value.batch_shape, *value.event_shape)
        if math.prod(shape) != math.prod(ys.shape[1:]):
            raise ValueError(
                f"base_measure: wanted a distribution of points of shape {ys.shape[1:]}, got "
                f"{shape}"
            )
        return value
    nodes = convert.floats(value, "base_measure")
    if nodes.ndim == 0 or nodes.shape[0] < 1 or nodes.shape[1:] != ys.shape[1:]:
        raise ValueError(
            f"base_measure: wanted points of shape [m{''.join(f', {e}' for e in ys.shape[1:])}] in "
            f"the units of the targets, or a distribution, got shape {nodes.shape}"
        )
    return nodes


def with_random_features(spec: Specification, features: PyTree) -> Specification:
    """Return ``spec`` with random features; TypeError unless ``features`` is `RandomFeatures`."""
    checks.instance(features, RandomFeatures, "features", "jaxcal.RandomFeatures(key, 100)")
    return dataclasses.replace(spec, random_features=features)
