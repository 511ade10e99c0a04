r"""Groups of predictions chosen without looking at labels, and the distance they certify.

The mean labels of groups are calibrated, in any population whose groups they are, so

.. math:: dCE \le \sum_j E|v - \bar y_j| 1(v \in I_j) \le binnedECE + E|v - \bar v_j|

for every partition. It is no wider than binned ECE plus bin width and needs no best partition. With
few groups it says how far predictions are from one another, with many how noisy labels are. Chosen
are the intervals of the least expectation for calibrated predictions, which depends on predictions
alone: given these, the partition is fixed and the labels are noise. Source of the bound: Blasiok et
al. (2023), eq. 1 and Lemma 4.7.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxcal.dce.predictions import Binary, Ordered
from jaxcal.dce.prefix_sums import sums
from jaxcal.typing import Scalar, Vector

CELLS = 128  # runs of predictions that are joined to groups


class Groups(NamedTuple):
    """``edges`` [k]: the last prediction of each run of predictions, ascending. ``group`` [k] of
    each run. ``rate`` [k]: the mean label of the run's group, NaN where no prediction is."""

    edges: Float[Array, " k"]
    group: Int[Array, " k"]
    rate: Float[Array, " k"]

    def of(self, v: Array) -> Array:
        """The run of any predictions; below the first edge the first, above the last the last."""
        # of equal edges the first one has the predictions
        last = jnp.searchsorted(self.edges, self.edges[-1])
        return jnp.minimum(jnp.searchsorted(self.edges, v), last)


def runs(v: Vector, w: Vector) -> Float[Array, " k"]:
    """Last of ascending predictions of at most 128 runs of about equal mass, ties kept together.

    Where several quantiles agree, the same edge is repeated.
    """
    below = sums(w)
    levels = (jnp.arange(CELLS, dtype=v.dtype) + 1) / CELLS
    at = jnp.searchsorted(below, levels * below[-1] * (1 - 1e-9))
    return v[jnp.minimum(at, v.size - 1)]


def label_free_groups(data: Ordered) -> Groups:
    r"""The contiguous groups of runs with the least
    :math:`\sum_j p_j (\tfrac34 Var_j(v) + \tfrac2\pi s_j^2)^{1/2}`, with their mean labels.

    s_j^2 is the variance of the mean label of calibrated predictions; the root is about
    E|v - mean label|, for uniform predictions and for equal ones. Cost: O(n log 128) and 128^2.
    """
    edges = runs(data.v, data.w)
    # predictions ascend, so a run is where the edges before it end
    ends = jnp.searchsorted(data.v, edges, side="right")
    run = jnp.cumsum(jnp.zeros(data.v.size, jnp.int32).at[ends[:-1]].add(1, mode="drop"))
    group = _best(run, data)
    return Groups(edges, group, _rates(run, group, data))


def _rates(run: Array, group: Array, data: Ordered) -> Array:
    of = group[run]
    mass, ones = (jax.ops.segment_sum(x, of, CELLS) for x in (data.w, data.w * data.y))
    return (ones / jnp.where(mass > 0, mass, jnp.nan))[group]


def _best(run: Array, data: Ordered) -> Array:
    noise = data.w**2 * data.v * (1 - data.v)

    def prefix(x: Array) -> Array:
        total = jnp.cumsum(jax.ops.segment_sum(x, run, CELLS))
        return jnp.concatenate([jnp.zeros(1, x.dtype), total])

    centred = data.v - jnp.sum(data.w * data.v)
    mass, first, second, noise = map(prefix, (data.w, data.w * centred, data.w * centred**2, noise))
    starts = jnp.arange(CELLS)

    def extend(least: Array, j: Array) -> tuple[Array, Array]:
        # the last group holds the runs i, .., j
        p, m, s, e = (x[j + 1] - x[:-1] for x in (mass, first, second, noise))
        spread = jnp.maximum(p * s - m**2, 0)
        cost = least[:-1] + jnp.sqrt(0.75 * spread + 2 / jnp.pi * e)
        cost = jnp.where(starts <= j, cost, jnp.inf)
        i = jnp.argmin(cost)
        return least.at[j + 1].set(cost[i]), i

    _, begin = jax.lax.scan(extend, jnp.zeros(CELLS + 1, data.v.dtype), starts)

    def back(start: Array, j: Array) -> tuple[Array, Array]:
        inside = jnp.where(j < start, begin[j], start)
        return inside, j == inside

    _, new = jax.lax.scan(back, jnp.asarray(CELLS), starts, reverse=True)
    return jnp.cumsum(new.astype(jnp.int32)) - 1


def moved(groups: Groups, data: Binary | Ordered) -> Scalar:
    """Mean distance of predictions to the mean labels of their groups."""
    return jnp.sum(data.w * jnp.abs(data.v - groups.rate[groups.of(data.v)]))
