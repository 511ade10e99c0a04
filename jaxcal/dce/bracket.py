r"""Bracket the true distance from calibration by lower and upper bounds, each with its source.

The true distance is the least mean of |v - u(x)| over calibrated functions u of the inputs x.
Predictions v and labels do not determine it: it is between the lower distance d and d + sqrt(8 d).
Each measure gives a bound; the bracket is the largest lower and the smallest upper bound.
Source: Blasiok et al. (2023), Theorems 6.2, 6.11, 7.3 and 8.5, eq. 5, with sharper constants.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, PyTree

from jaxcal.dce.binned import BinnedECE, binned_ece, ece
from jaxcal.dce.intervals import _best, _surrogate, smallest_width
from jaxcal.dce.lower import CELLS, bounds_of
from jaxcal.dce.population import Groups, label_free_groups, moved
from jaxcal.dce.predictions import Ordered, merged, ordered
from jaxcal.dce.smooth import _laplace, _smooth
from jaxcal.engine import LightJit
from jaxcal.numerics import at_least, at_most, largest, smallest
from jaxcal.read import convert
from jaxcal.typing import Scalar, Vector


class Bracket(NamedTuple):
    """Bounds of the true distance from calibration, with the data taken as the whole population.

    Attributes:
        low: The largest lower bound, []. Both ends are NaN if ``low`` exceeds ``high`` by more than
            rounding.
        high: The smallest upper bound, [].
        lower, upper: Each bound, [], by the name of the measure that gives it.
    """

    low: Scalar
    high: Scalar
    lower: dict[str, Scalar]
    upper: dict[str, Scalar]

    @property
    def sources(self) -> tuple[str, str]:
        """Return the names of the measures that give ``low`` and ``high``. Outside of jit only."""
        return (
            max(self.lower, key=lambda name: float(self.lower[name])),
            min(self.upper, key=lambda name: float(self.upper[name])),
        )


TRACED_CELLS = 64  # cells of the grid of `lower_distance` under jit and vmap
LOWER: tuple[str, ...] = (
    "half the smooth calibration error",
    "squared kernel calibration error",
    "mean residual",
    "lower distance",
)
UPPER: tuple[str, ...] = (
    "surrogate interval calibration error",
    "binned ECE + bin width",
    "unbinned ECE",
    "2 s + 4 sqrt(s), s the smooth error",
    "mean labels of groups",
    "d + sqrt(8 d), d the lower distance",
    "interval calibration error",  # absent for more than `INTERVALS_MOST` predictions
)
INTERVALS_MOST = 20_000  # most different predictions for which `_best` is called, at cost O(m^2)


class Measures(NamedTuple):
    """Measures of ordered data. ``mean``: absolute mean residual. ``ece``: unbinned ECE.
    ``groups``: mean of |v - mean label in the group of v|, for `label_free_groups`. ``lower``: two
    bounds of the lower distance, from below and from above. Other fields are calibration errors."""

    mean: Scalar
    ece: Scalar
    smooth: Scalar
    kernel: Scalar
    surrogate: Scalar
    binned: BinnedECE
    interval: Scalar | None
    groups: Scalar
    lower: tuple[PyTree, PyTree]

    def by_name(self) -> dict[str, Scalar]:
        """Return reported measures by name; "lower distance" is the mean of its two bounds."""
        names = {
            "ECE": self.binned.value,
            "smooth": self.smooth,
            "kernel": self.kernel,
            "surrogate interval": self.surrogate,
            "mean residual": self.mean,
        }
        if self.interval is not None:
            names["interval"] = self.interval
        return names | {"lower distance": jnp.asarray(sum(self.lower) / 2, self.smooth.dtype)}


def measures_of(data: Ordered, accuracy: float | int, bins: int) -> tuple[Measures, Vector]:
    """Return all measures of the data, and the witness of the smooth error, [n], in the original
    order (`SmoothCE`). ``accuracy`` and ``bins`` are as in `distance_from_calibration`."""
    traced = any(isinstance(leaf, Tracer) for leaf in data)
    bins = convert.integer(bins, "bins")
    distribution, atom = data, None
    if not traced:
        smaller, atom = merged(data)
        distribution = data if atom is None else ordered(smaller)
    cells = TRACED_CELLS if traced else CELLS
    groups = label_free_groups(data)
    measures, witness = _measured(distribution, groups, smallest_width(accuracy), bins, cells)
    return measures, witness if atom is None else data.back(witness[atom])


@partial(LightJit, static_argnums=(2, 3, 4))
def _measured(
    distribution: Ordered, groups: Groups, k_max: int, bins: int, cells: int
) -> tuple[Measures, Vector]:
    v, y, w = distribution[:3]
    smooth = _smooth(distribution)
    measures = Measures(
        mean=jnp.abs(jnp.sum(w * (y - v))),
        ece=ece(distribution),
        smooth=smooth.value,
        kernel=_laplace(distribution, jnp.ones((), v.dtype)).value,
        surrogate=_surrogate(distribution, k_max, False).value,
        binned=binned_ece(v, y, weights=w, edges=bins),
        interval=_best(distribution).value if v.size <= INTERVALS_MOST else None,
        groups=moved(groups, distribution),
        lower=bounds_of(distribution, cells)[:2],
    )
    return measures, smooth.witness


def bracket_of(measures: Measures, n: int) -> Bracket:
    """Return the `Bracket`. Its ends are NaN if low exceeds high by more than 16 n^1/2 eps."""
    low, high, lower, upper = _bounds(measures, n**0.5)
    # outside of jit, which would sort the names: of equal bounds the first is the source
    by_name = dict(zip(LOWER, lower, strict=True)), dict(zip(UPPER, upper, strict=False))
    return Bracket(low, high, *by_name)


@jax.jit
def _bounds(
    measures: Measures, root: Scalar | float
) -> tuple[Scalar, Scalar, tuple[Scalar, ...], tuple[Scalar, ...]]:
    ends = tuple(jnp.asarray(end, measures.smooth.dtype) for end in measures.lower)
    lower = measures.smooth / 2, measures.kernel**2, measures.mean, ends[0]
    upper = (
        measures.surrogate,
        measures.binned.bound,
        measures.ece,
        from_lower(2 * measures.smooth),
        measures.groups,
        from_lower(ends[1]),
    )
    if measures.interval is not None:
        upper = (*upper, measures.interval)
    low, high = largest(jnp.stack(lower)), smallest(jnp.stack(upper))
    # rounding may put a lower bound above an upper bound that equals it; others must not cross
    consistent = low <= high + 16 * jnp.finfo(low.dtype).eps * jnp.asarray(root, low.dtype)
    low, high = (jnp.where(consistent, end, jnp.nan) for end in (at_most(low, high), high))
    return low, high, lower, upper


def from_lower(d: Array) -> Array:
    r"""Return d + sqrt(8 d), at most 1: the largest true distance if the lower distance is d."""
    return at_most(d + 2 * jnp.sqrt(2 * at_least(d, 0)), 1)
