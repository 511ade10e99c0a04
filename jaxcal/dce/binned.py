r"""Compute the expected calibration error (ECE), by equal predictions or by bins of predictions.

Either ECE is discontinuous in the predictions, and binned ECE misses errors that cancel in a bin.
Binned ECE plus the average bin width is an upper bound of the true distance from calibration
(Blasiok et al. 2023, eq. 5); binned ECE alone is not.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxcal.dce.predictions import Binary, Ordered, ascending, binary, merged, residuals_of_atoms
from jaxcal.numerics import group_sums
from jaxcal.read import convert
from jaxcal.results import rows_in_one_order
from jaxcal.typing import ArrayLike, DTypeLike, Scalar, Vector


@rows_in_one_order
def unbinned_ece(
    predictions: ArrayLike, targets: ArrayLike, *, weights: ArrayLike | None = None
) -> Scalar:
    """Return the expected calibration error :math:`E|E[y | v] - v|`, grouping equal predictions.

    With distinct predictions this is the mean of |y - v|, which does not measure calibration.

    Args:
        predictions: Probabilities v of label 1, [n].
        targets: Labels y, 0 or 1, or means of labels, [n].
        weights: Weights of the observations, [n], >= 0.

    Returns:
        The error, [].

    Cost: two sorts, three if predictions tie.

    Source: Blasiok et al. (2023), Def. 1.1.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> predictions, targets = jnp.array([0.5, 0.5, 0.25]), jnp.array([0, 1, 1])
        >>> float(jaxcal.dce.unbinned_ece(predictions, targets))
        0.25
    """
    data = binary(predictions, targets, weights)
    traced = any(isinstance(leaf, Tracer) for leaf in data)
    return ece(data if traced else merged(data)[0])


def ece(data: Binary | Ordered) -> Scalar:
    """Return the unbinned ECE of validated data, []. Labels are sorted only if predictions tie."""
    return _ece(data, data.v if isinstance(data, Ordered) else ascending(data.v))


@jax.jit
def _ece(data: Binary | Ordered, values: Vector) -> Scalar:
    ties = jnp.any(values[1:] == values[:-1])
    residuals = jax.lax.cond(
        ties, residuals_of_atoms, lambda data: data.w * (data.y - data.v), data
    )
    return jnp.sum(jnp.abs(residuals))


class BinnedECE(NamedTuple):
    """Binned ECE, with the widths and contents of its bins.

    Attributes:
        value: Binned ECE, [].
        width: Mean over observations of the width of their bin, [].
        max_width: Largest width of the non-empty bins, [].
        bound: value + width, an upper bound of the true distance from calibration, [].
        edges: Edges of the bins, ascending, [b + 1].
        mass: Share of the total weight in each bin, [b].
        residual: E[(y - v) 1(v in bin)] of each bin, [b].
    """

    value: Scalar
    width: Scalar
    max_width: Scalar
    bound: Scalar
    edges: Float[Array, " e"]
    mass: Float[Array, " b"]
    residual: Float[Array, " b"]


@rows_in_one_order
def binned_ece(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    edges: ArrayLike = 15,
    shift: float | Scalar = 0.0,
    weights: ArrayLike | None = None,
) -> BinnedECE:
    r"""Return binned ECE :math:`\sum_j |E[(v - y) 1(v \in I_j)]|` with the widths of its bins.

    Each bin includes its left edge; the last bin also includes its right edge, 1.

    Args:
        predictions: Probabilities v of label 1, [n].
        targets: Labels y, 0 or 1, or means of labels, [n].
        edges: The number b of bins of equal width on [0, 1], or edges from 0 to 1, [b + 1].
        shift: Shift to the right of bins of equal width, in bin widths, in [0, 1). A shift other
            than 0 adds one bin, and raises ValueError if ``edges`` is an array.
        weights: Weights of the observations, [n], >= 0.

    Returns:
        `BinnedECE`.

    Cost: O(n log b) for b bins.

    Source: Blasiok et al. (2023), eq. 4 and Def. 6.1.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> result = jaxcal.dce.binned_ece(jnp.full(4, 0.7), jnp.array([0, 0, 1, 1]))
        >>> round(float(result.value), 3)
        0.2
    """
    data = binary(predictions, targets, weights)
    return _binned(data, _edges(edges, shift, data.v.dtype))


@jax.jit
def _binned(data: Binary, edges: Array) -> BinnedECE:
    b = edges.size - 1
    # for few bins, comparison with every edge is faster than bisection and compiles to one pass
    method = "compare_all" if b <= 64 else "scan"
    which = jnp.clip(jnp.searchsorted(edges, data.v, side="right", method=method) - 1, 0, b - 1)
    mass = group_sums(data.w, which, b)
    residual = group_sums(data.w * (data.y - data.v), which, b)
    wide = jnp.diff(edges)
    value, width = jnp.sum(jnp.abs(residual)), jnp.sum(mass * wide)
    widest = jnp.max(jnp.where(mass > 0, wide, 0))
    return BinnedECE(value, width, widest, value + width, edges, mass, residual)


def _edges(edges: ArrayLike, shift: ArrayLike, dtype: DTypeLike) -> Array:
    if isinstance(edges, int) or getattr(edges, "shape", None) == ():
        edges = convert.integer(edges, "edges")
        even = jnp.asarray(np.arange(edges + 1) / edges, dtype)  # division by XLA rounds some up
        if isinstance(shift, (int, float)) and shift == 0:
            return even
        shift = convert.number(shift, "shift", below=1)
        if not isinstance(shift, Tracer) and not float(shift) >= 0:
            raise ValueError(f"shift: wanted a part of a bin in [0, 1), got {shift}")
        return jnp.concatenate([even[:1], even[:-1] + shift / edges, even[-1:]])
    if isinstance(shift, Tracer) or shift != 0:
        raise ValueError("shift: is one of equal bins: move given edges, or pass a number of bins")
    places = convert.floats(edges, "edges").astype(dtype)
    if places.ndim != 1 or places.size < 2:
        raise ValueError(f"edges: wanted a number of bins, or edges from 0 to 1, got {edges!r}")
    if not isinstance(places, Tracer) and not (
        bool(jnp.all(jnp.diff(places) >= 0)) and places[0] == 0 and places[-1] == 1
    ):
        raise ValueError(f"edges: wanted ascending edges from 0 to 1, got {edges!r}")
    return places
