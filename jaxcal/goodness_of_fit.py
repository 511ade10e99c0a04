"""Do targets follow the model at all? KSD for one density, KCSD for a density given each input."""

from typing import Any, Unpack

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array

from jaxcal import checks, testing
from jaxcal.divergences.vectors import Vectors
from jaxcal.kernels.points import Constant
from jaxcal.models import Unnormalized
from jaxcal.nulls import Null, Wild
from jaxcal.preparation import SteinOptions, stein_specification
from jaxcal.quadratic import TILE
from jaxcal.results import Estimate, TestResult
from jaxcal.typing import KeyLike


def kcsd_test(
    key: KeyLike,
    predictions: Any,
    targets: Any,
    inputs: Any,
    *,
    null: Null = Wild(),
    level: float = 0.05,
    coordinates: bool = False,
    tile: int = TILE,
    mesh: Mesh | None = None,
    **options: Unpack[SteinOptions],
) -> TestResult:
    """Test that each prediction is the distribution of its target GIVEN the input, the stronger
    question.

    A forecast that ignores part of the input can be calibrated and fail here. ``inputs``: vectors
    [n, q] (or learned features of the inputs), brought to standard units like the targets.
    Everything else as in `kccsd_test`; ``prediction_kernel`` then acts on the inputs.
    Source: Jitkrittum, Kanagawa and Schoelkopf (2020); Glaser et al. (2023), eq. 6.
    """
    checks.null(null)
    key = checks.key(key)
    predictions, ys, options = _conditional(predictions, targets, inputs, options)
    spec = stein_specification(ys, coordinates=coordinates, **options)
    return testing.run(
        key,
        predictions,
        ys,
        spec,
        null,
        test="KCSD test",
        level=level,
        tile=tile,
        mesh=mesh,
    )


def kcsd(
    key: KeyLike, predictions: Any, targets: Any, inputs: Any, **options: Unpack[SteinOptions]
) -> Estimate:
    """Estimate the squared KCSD without testing; arguments as in `kcsd_test`."""
    key = checks.key(key)
    predictions, ys, options = _conditional(predictions, targets, inputs, options)
    return testing.estimate(key, predictions, ys, stein_specification(ys, **options))


def ksd_test(
    key: KeyLike,
    model: Any,
    targets: Any,
    *,
    null: Null = Wild(),
    level: float = 0.05,
    coordinates: bool = False,
    tile: int = TILE,
    mesh: Mesh | None = None,
    **options: Unpack[SteinOptions],
) -> TestResult:
    """Test that targets are draws from ONE density, known up to its constant.

    ``model``: a function log_density(y), a numpyro distribution with empty batch shape,
    `Scores`, or anything with ``scores(ys)``. Everything else as in `kccsd_test`.
    Source: Chwialkowski, Strathmann and Gretton (2016); Liu, Lee and Jordan (2016).
    """
    checks.null(null)
    key = checks.key(key)
    predictions, ys, options = _single(model, targets, options)
    spec = stein_specification(ys, coordinates=coordinates, **options)
    return testing.run(
        key,
        predictions,
        ys,
        spec,
        null,
        test="KSD test",
        level=level,
        tile=tile,
        mesh=mesh,
    )


def ksd(key: KeyLike, model: Any, targets: Any, **options: Unpack[SteinOptions]) -> Estimate:
    """Estimate the squared KSD without testing; arguments as in `ksd_test`."""
    key = checks.key(key)
    predictions, ys, options = _single(model, targets, options)
    return testing.estimate(key, predictions, ys, stein_specification(ys, **options))


def _conditional(
    predictions: Any, targets: Any, inputs: Any, options: SteinOptions
) -> tuple[Any, Array, SteinOptions]:
    _refuse(options, ("divergence",), "KCSD compares inputs; compare predictions by kccsd_test")
    ys = checks.targets(targets)
    vectors = checks.rows(inputs, ys.shape[0], "inputs")
    return (
        checks.predictions(predictions, ys),
        ys,
        SteinOptions(divergence=Vectors(vectors)) | options,
    )


def _refuse(options: SteinOptions, names: tuple[str, ...], why: str) -> None:
    """TypeError for an option that would turn the test into another one."""
    for name in names:
        if name in options:
            raise TypeError(f"{name}: {why}")


def _single(model: Any, targets: Any, options: SteinOptions) -> tuple[Any, Array, SteinOptions]:
    one = "KSD has one model, and nothing to compare it with; leave it out"
    _refuse(options, ("divergence", "prediction_kernel"), one)
    ys = checks.targets(targets)
    plain = callable(model) and not isinstance(model, type)
    if plain and not hasattr(model, "log_prob") and not hasattr(model, "scores"):
        model = Unnormalized(_ignore_parameters(model), None, in_axes=None)
    nothing = Vectors(jnp.zeros((ys.shape[0], 1), ys.dtype))
    alone = SteinOptions(divergence=nothing, prediction_kernel=Constant())
    return checks.predictions(model, ys, "model"), ys, alone | options


class _ignore_parameters:
    """``log_density(y)`` as ``log_density(params, y)``; equal where the function is the same."""

    def __init__(self, log_density: Any):
        self.log_density = log_density

    def __call__(self, params: None, y: Array) -> Array:
        return self.log_density(y)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ignore_parameters) and other.log_density == self.log_density

    def __hash__(self) -> int:
        return hash(self.log_density)
