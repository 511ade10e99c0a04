r"""Estimate the residual (confidence minus outcome) at a confidence by the mean over its bin.

Bins are :math:`(b_{m-1}, b_m]`, and 0 belongs to the first. Only scalar predictions have bins. The
debiased form subtracts the estimated variance of a bin's accuracy. Source: Gruber and Bach (2025),
eq. 10, 23, 24; for the debiased form Kumar, Liang and Ma (2019).
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal.numerics import group_sums
from jaxcal.read import convert
from jaxcal.squared_ce.functions import Factors, Setting
from jaxcal.squared_ce.reductions import Reduced

AS_RUN = tuple(range(5, 91, 5))  # numbers of bins in the authors' code; in the paper up to 100


def _counts(value: int | Sequence[int]) -> tuple[int, ...]:
    counts = tuple(value) if isinstance(value, (tuple, list, range, np.ndarray)) else (value,)
    if not counts:
        raise ValueError("counts: wanted at least one number of bins")
    return tuple(convert.integer(count, "counts") for count in counts)


def _edges(value: object) -> tuple[float, ...] | None:
    if value is None:
        return None
    edges = np.asarray(convert.floats(value, "edges"), np.float64)
    if edges.ndim != 1 or edges.size < 2 or edges[0] > 0 or edges[-1] < 1:
        raise ValueError(f"edges: wanted at least two, from 0 (or below) to 1, got {value!r}")
    if not np.all(np.diff(edges) > 0):
        raise ValueError(f"edges: wanted increasing numbers, got {value!r}")
    return tuple(edges.tolist())


class Bins(eqx.Module):
    """Estimate the residual (confidence minus outcome) by its mean in each bin of the confidence.

    Args:
        counts: Numbers of bins, to be tuned; ``Bins(15)`` is the usual fixed choice.
        equal_mass: Whether edges are quantiles of the training confidences, not equally spaced.
        edges: Fixed increasing edges from 0 to 1, instead of ``counts`` and ``equal_mass``.
        debiased: Whether products of two residuals in one bin are reduced by the variance of its
            accuracy a, a (1 - a) / (n - 1) for n outcomes. Squares may be < 0. For n = 1 products
            are 0.
        empty: Residual of bins without training data; by default the mean over all training rows.

    Cost: O(n) per candidate.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> p = jnp.linspace(0.05, 0.95, 100)
        >>> targets = jax.random.bernoulli(jax.random.key(0), p)
        >>> bins = jaxcal.squared_ce.Bins((2, 4), equal_mass=True)
        >>> report = jaxcal.calibration_error(1, p, targets, notion="binary", estimators=[bins])
        >>> report.best.grid
        [{'bins': 2.0}, {'bins': 4.0}]
    """

    counts: tuple[int, ...] = eqx.field(default=AS_RUN, static=True, converter=_counts)
    equal_mass: bool = eqx.field(default=False, static=True)
    edges: tuple[float, ...] | None = eqx.field(default=None, static=True, converter=_edges)
    debiased: bool = eqx.field(default=False, static=True)
    empty: float | None = eqx.field(default=None, static=True)

    @property
    def name(self) -> str:
        kind = "mass " if self.equal_mass else ""
        what = f"{len(self.edges) - 1} given " if self.edges is not None else ""
        number = f"{self.counts[0]} " if not what and len(self.counts) == 1 else ""
        return f"{'debiased ' if self.debiased else ''}{what or number}{kind}bins"

    def grid(self, problem: Reduced) -> list[Setting]:
        if self.edges is not None:
            return [{"bins": float(len(self.edges) - 1)}]
        return [{"bins": float(count)} for count in self.counts]

    def fit(self, train: Reduced, shared: list[object]) -> "FittedBins":
        if train.inputs.ndim != 2 or train.inputs.shape[1] != 1:
            raise ValueError(
                f"{self.name}: bins divide confidences, inputs of shape [n, 1], got "
                f"{train.inputs.shape}; the canonical error has no binned estimator here"
            )
        return _fit(self, train)


class BinSettings(NamedTuple):
    """Settings of c candidates with at most m bins: ``edges`` [c, m + 1], padded by inf; ``counts``
    [c], numbers of bins; ``residuals`` [c, m], means of bins; ``noise`` [c, m], for debiasing."""

    edges: Float[Array, "*c e"]
    counts: Int[Array, "*c"]
    residuals: Float[Array, "*c m"]
    noise: Float[Array, "*c m"]


class FittedBins(eqx.Module):
    """`Bins` fitted to one training set, for all candidate numbers of bins; implements `Fitted`."""

    settings: BinSettings
    debiased: bool = eqx.field(static=True)

    @property
    def is_product(self) -> bool:
        return not self.debiased

    def features(self, inputs: Float[Array, "n 1"]) -> Float[Array, " n"]:
        return inputs[:, 0]

    def factors(self, features: Float[Array, " n"], setting: BinSettings) -> Factors:
        which = bin_numbers(features, setting.edges, setting.counts)
        residual = jnp.where(jnp.isfinite(features), setting.residuals[which], jnp.nan)[:, None]
        if not self.debiased:
            return Factors(residual, residual)
        inside = jax.nn.one_hot(which, setting.residuals.shape[0], dtype=residual.dtype)
        left = jnp.concatenate([residual, inside], axis=1)
        return Factors(left, jnp.concatenate([residual, -inside * setting.noise[None]], axis=1))


def bin_numbers(
    confidences: Float[Array, " n"], edges: Float[Array, " e"], count: Array
) -> Int[Array, " n"]:
    """Return the index i < ``count`` of the bin (edges[i], edges[i + 1]] of each confidence."""
    which = jnp.searchsorted(edges, confidences, side="left") - 1
    return jnp.clip(which, 0, (count - 1).astype(which.dtype))


def _all_edges(bins: Bins, confidences: Float[Array, " n"]) -> tuple[Array, Array]:
    """Return edges of c candidates, [c, m + 1], padded by inf, and their numbers of bins, [c]."""
    if bins.edges is not None:
        rows = [jnp.asarray(bins.edges, confidences.dtype)]
    elif bins.equal_mass:
        rows = [_quantile_edges(confidences, count) for count in bins.counts]
    else:
        rows = [jnp.asarray(np.arange(m + 1) / m, confidences.dtype) for m in bins.counts]
    longest = max(row.size for row in rows)
    padded = [jnp.pad(row, (0, longest - row.size), constant_values=jnp.inf) for row in rows]
    return jnp.stack(padded), jnp.asarray([row.size - 1 for row in rows])


def _quantile_edges(confidences: Float[Array, " n"], count: int) -> Array:
    """Return edges of ``count`` bins whose sizes differ by at most 1; tied values share a bin."""
    places = np.maximum(confidences.size * np.arange(1, count) // count - 1, 0)
    ends = jnp.asarray([0.0, 1.0], confidences.dtype)
    return jnp.concatenate([ends[:1], jnp.sort(confidences)[places], ends[1:]])


@eqx.filter_jit
def _fit(bins: Bins, train: Reduced) -> FittedBins:
    confidences, outcomes = train.inputs[:, 0], train.outcomes[:, 0]
    edges, counts = _all_edges(bins, confidences)
    everything = jnp.mean(train.residuals)
    if bins.empty is not None:
        everything = jnp.asarray(bins.empty, everything.dtype)

    def one(edges: Array, count: Array) -> BinSettings:
        which = bin_numbers(confidences, edges, count)
        table = jnp.stack([jnp.ones_like(outcomes), train.residuals[:, 0], outcomes], axis=1)
        members, gaps, hits = group_sums(table, which, edges.size - 1).T
        some = jnp.maximum(members, 1)
        residuals = jnp.where(members > 0, gaps / some, everything)
        accuracy = hits / some
        noise = accuracy * (1 - accuracy) / jnp.maximum(members - 1, 1)
        # one observation gives no estimate of its noise: h is 0 in its bin
        noise = jnp.where(members == 1, residuals**2, noise)
        return BinSettings(edges, count, residuals, noise)

    return FittedBins(jax.vmap(one)(edges, counts), bins.debiased)
