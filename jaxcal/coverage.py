r"""Compute the coverage of highest-density regions, also for unnormalized densities.

For a prediction of density f, the region of level q is :math:`\{y : f(y) \ge c\}` of probability q.
It contains a target y if :math:`P(f(Z) > f(y)) \le q` for draws Z of the prediction, so draws, and
densities up to a constant, suffice. If draws have the same density as the target (as for counts),
no region has exactly the probability q, and a random number of these draws counts as higher.
"""

from dataclasses import replace
from functools import partial
from typing import ClassVar, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxcal.mcmc.results import McmcDraws
from jaxcal.numerics import at_least, at_most, largest
from jaxcal.read import Draws, LogDensities, Unnormalized, checks, convert
from jaxcal.read.observations import densities, n_repeated
from jaxcal.read.scores import log_densities_at
from jaxcal.results import Result, Sentences, counted, recorded
from jaxcal.results.notes import sentences
from jaxcal.typing import ArrayLike, PredictionsLike, Scalar

__all__ = ["coverage"]

TIES = 0x7165  # seed of the random ranks among equal densities
RowNumber: TypeAlias = int | Int[Array, ""]
__dir__ = __all__.copy  # completion shows the public names


class Coverage(Result):
    """Share of n targets that lie in the highest-density regions of each level.

    Under calibration the expected share equals the level.

    Attributes:
        levels: Probabilities of the regions, [q].
        observed: Share of targets inside, [q].
        counts: Number of targets of each rank 0, .., m, [m + 1]. The rank is the number of
            ``draws`` with a higher density, plus a random part of those with the same density.
            Counts of data sets with the same number of draws can be added.
        p_uniform: P-value [] of the hypothesis that the expected share equals the level, at every
            level. Calibration implies this. Valid for every n.
        p_conservative: P-value [] of the hypothesis that the expected share is at least the level,
            at every level. A small value means that regions are too small. Valid for every n.
        unknown: Number [] of targets for which the density of target or draw is NaN; p is then NaN.
        draws: Number m of draws from each prediction.
        level: Level of tests by these p-values, and of `band`.
        repeated: Number [] of observations that repeat an earlier target and its prediction. If
            almost all targets occur several times, the number that repeat an earlier target.
    """

    _rows: ClassVar[tuple[str, ...]] = ("levels", "observed")
    _plots: ClassVar[tuple[str, ...]] = ("reliability.coverage",)
    _scalar: ClassVar[str] = "p_uniform"
    _long: ClassVar[tuple[str, ...]] = ("counts",)

    levels: Float[Array, " q"]
    observed: Float[Array, " q"]
    counts: Int[Array, " m1"]
    p_uniform: Scalar
    p_conservative: Scalar
    unknown: Int[Array, ""]
    draws: int = eqx.field(static=True)
    level: float = eqx.field(static=True, default=0.05)
    repeated: Int[Array, ""] | int = 0

    @property
    def n(self) -> int:
        """Number of targets."""
        return int(np.sum(np.asarray(self.counts).reshape(-1, self.draws + 1)[0]))

    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the pointwise band of shares under calibration, with confidence 1 - ``level``.

        Returns its lower and its upper ends, each [q]: binomial quantiles over n.
        """
        import scipy.stats

        n = self.n
        low, high = scipy.stats.binom.interval(1 - self.level, n, np.asarray(self.levels))
        return low / n, high / n

    def _sentences(self) -> Sentences:
        unknown, n = int(np.sum(np.asarray(self.unknown))), self.n
        return [
            (
                counted(
                    "{} {target|targets} met a density that is NaN, at the target or at a draw, so "
                    "there is no verdict: does the density reach all targets? [nonfinite-density]",
                    unknown,
                ),
                unknown > 0,
            ),
            *sentences({"repeated-rows": np.asarray(self.repeated)}),
            (f"only {n} targets: even a gross excess could be chance [few-observations]", n < 30),
        ]

    def _batch_lines(self) -> list[str]:
        p, n = np.asarray(self.p_conservative), self.n
        small = f"p (conservative) <= {self.level:g} in {int(np.sum(p <= self.level))}"
        return [f"{p.size} results of coverage, n = {n}, {small}"]

    def _lines(self) -> list[str]:
        lines = [
            f"coverage of highest-density regions, n = {self.n}, {self.draws} draws each",
            "  level     inside",
        ]
        for wanted in (0.5, 0.8, 0.9, 0.95):
            k = int(np.argmin(np.abs(np.asarray(self.levels) - wanted)))
            lines.append(f"  {float(self.levels[k]):.3f}     {float(self.observed[k]):.3f}")
        lines += [
            f"  p-value   {float(self.p_uniform):.3g}   (each level holds its share)",
            f"  p-value   {float(self.p_conservative):.3g}   (each level holds at least its share)",
        ]
        return list(dict.fromkeys(lines))


@recorded
def coverage(
    predictions: PredictionsLike,
    targets: ArrayLike | None = None,
    draws: ArrayLike | None = None,
    *,
    level: float = 0.05,
) -> Coverage:
    """Return the shares of targets inside their predictions' highest-density regions, by level.

    If r of m draws have a higher density than the target, the target is in the region of level
    k / (m + 1) if r < k. Of draws with the same density, as for counts, a random number counts as
    higher (seeded by row, so repeated calls agree). Under calibration r is uniform on 0, .., m, so
    each share is unbiased for every m. Conservative regions do not imply calibration.

    P-values are upper bounds by Massart (1990), valid for every n. ``p_uniform`` is
    2 exp(-2 n gap^2), where gap is the largest of |share - level|. ``p_conservative`` is
    exp(-2 n gap^2), where gap is the largest level - share. Both are at most 1. Not differentiable.

    Args:
        predictions: An `Unnormalized` or a numpyro distribution with batch shape [n]; or
            `LogDensities` at targets and draws, without the arguments ``targets`` and ``draws``.
            For posteriors of torch: `jaxcal.sbi.predictions`.
        targets: Observed targets, shape [n] or [n, ...].
        draws: m draws from each prediction, as `Draws`, `McmcDraws` or an array [n, m, ...]. They
            must be independent (thin a Markov chain until its effective size is m), or the shares
            at levels near 0 and 1 are too large.
        level: Level of tests by the p-values; the band of `Coverage` has confidence 1 - level.

    Returns:
        `Coverage`. Densities that are NaN give NaN shares and p-values.

    Cost: n (m + 1) densities.

    Source: Glaser et al. (2023), Definition 5.1 and Proposition 5.1.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> predictions = dist.Normal(jax.numpy.zeros(100), 1.0)  # overconfident
        >>> draws = predictions.sample(jax.random.key(0), (19,)).T
        >>> targets = 3 * jax.random.normal(jax.random.key(1), (100,))
        >>> bool(jaxcal.coverage.coverage(predictions, targets, draws).p_conservative < 0.01)
        True
    """
    level = checks.level(level)
    ranks, unknown, m = ranks_of(predictions, targets, draws)
    if isinstance(predictions, LogDensities):
        here, there = _precomputed(predictions)
        repeated = n_repeated(here, there.T)
    else:
        repeated = n_repeated(checks.targets(targets), predictions)
    return replace(_counted(ranks, jnp.sum(unknown), m), level=level, repeated=repeated)


def ranks_of(
    predictions: PredictionsLike,
    targets: ArrayLike | None,
    draws: ArrayLike | None,
    first: int = 0,
    least: int = 2,
) -> tuple[Int[Array, " n"], Bool[Array, " n"], int]:
    """Return ranks of targets (see `Coverage.counts`), [n]; whether a density, at the target or a
    draw, is NaN, [n]; and the number of draws. ``first``: row number of the first target, for
    `among`; ``least``: minimum number of targets. Other arguments as in `coverage`."""
    if isinstance(predictions, LogDensities):
        if targets is not None or draws is not None:
            raise TypeError(
                "targets and draws: LogDensities are already those at targets and draws"
            )
        here, there = _precomputed(predictions)
        return *_above(here, there, first), len(there)
    ys = checks.targets(targets, least=least)
    if isinstance(predictions, Unnormalized):
        predictions = predictions.arrays_only()
    predictions = densities(predictions, ys)
    drawn = draws.draws if isinstance(draws, McmcDraws) else draws
    array = convert.floats(drawn.samples if isinstance(drawn, Draws) else drawn, "draws")
    n, event = ys.shape[0], ys.shape[1:]
    if array.ndim == 3 and not event and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim != ys.ndim + 1 or (array.shape[0], *array.shape[2:]) != (n, *event):
        raise ValueError(
            f"draws: wanted m draws of each prediction, shape ({n}, m"
            f"{''.join(f', {e}' for e in event)}), got {array.shape}"
        )
    if array.shape[1] < 1:
        raise ValueError("draws: wanted at least 1 draw of each prediction, got none")
    return *_ranks(predictions, ys, array, first), array.shape[1]


def _precomputed(logs: LogDensities) -> tuple[Array, Array]:
    here = convert.floats(logs.at_targets, "LogDensities.at_targets")
    there = convert.floats(logs.at_draws, "LogDensities.at_draws")
    if here.ndim != 1 or not here.size or there.ndim != 2 or len(there) != len(here):
        raise ValueError(
            f"LogDensities: wanted at_targets [n] and at_draws [n, m], got shapes {here.shape} and "
            f"{there.shape}"
        )
    if not there.shape[1]:
        raise ValueError("LogDensities.at_draws: wanted at least 1 draw of each prediction")
    return here, jnp.swapaxes(there, 0, 1).astype(here.dtype)


@jax.jit
def _ranks(
    predictions: PredictionsLike, ys: Array, draws: Array, first: RowNumber
) -> tuple[Int[Array, " n"], Bool[Array, " n"]]:
    # in one loop: equal points get equal densities, to the last bit
    points = jnp.concatenate([ys[None], jnp.moveaxis(draws, 1, 0).astype(ys.dtype)])
    logs = jax.lax.map(lambda z: log_densities_at(predictions, z), points).astype(ys.dtype)
    return _above(logs[0], logs[1:], first)


@jax.jit
def _above(
    here: Float[Array, " n"], there: Float[Array, "m n"], first: RowNumber
) -> tuple[Int[Array, " n"], Bool[Array, " n"]]:
    """Return ranks of targets among their draws, and whether a log density at either is NaN."""
    unknown = jnp.isnan(here) | jnp.any(jnp.isnan(there), axis=0)
    higher, equal = (jnp.sum(f(there, here[None]), axis=0) for f in (jnp.greater, jnp.equal))
    return higher + among(equal, here, first), unknown


def among(
    equal: Int[Array, " n"], values: Float[Array, " n"], first: RowNumber = 0
) -> Int[Array, " n"]:
    """Return a random integer, from 0 to ``equal`` inclusive, for each row; see `by_row`."""
    uniform = by_row(values, first) * (equal + 1).astype(values.dtype)
    return jnp.minimum(jnp.floor(uniform).astype(equal.dtype), equal)


@jax.jit
def by_row(values: Float[Array, " n"], first: RowNumber = 0) -> Float[Array, " n"]:
    """Return a uniform random number from 0 to 1 for each row. It is determined by the value and
    the number of the row; ``first`` is the number of the first row."""
    bits = jax.lax.bitcast_convert_type(values.astype(jnp.float32), jnp.uint32)
    rows = first + jnp.arange(len(bits))

    def one(row: Array, bits: Array) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(TIES), row), bits)
        return jax.random.uniform(key, (), values.dtype)

    return jax.vmap(one)(rows, bits)


@partial(jax.jit, static_argnames="m")
def _counted(ranks: Int[Array, " n"], unknown: Int[Array, ""], m: int) -> Coverage:
    return of_counts(jnp.bincount(ranks, length=m + 1), unknown)


def of_counts(counts: Int[Array, " m1"], unknown: Int[Array, ""]) -> Coverage:
    """Return the `Coverage` from the number of targets of each rank 0, .., m."""
    m = counts.size - 1
    levels = jnp.arange(1, m + 1, dtype=float) / (m + 1)
    n = jnp.sum(counts).astype(levels.dtype)
    shares = jnp.cumsum(counts)[:-1].astype(levels.dtype) / n
    observed = jnp.where(unknown > 0, jnp.nan, shares)
    gaps = observed - levels
    return Coverage(
        levels=levels,
        observed=observed,
        counts=counts,
        p_uniform=massart(largest(jnp.abs(gaps)), n, sides=2),
        p_conservative=massart(largest(-gaps), n, sides=1),
        unknown=unknown,
        draws=m,
    )


def massart(gap: Scalar, n: int | Array, *, sides: int) -> Scalar:
    r"""Return the p-value min(1, sides :math:`e^{-2 n\,gap^2}`) of the largest gap between the
    empirical distribution function of n independent values and the true one.

    ``sides``: 1 for the largest gap in one direction, 2 for that in either direction. Valid for
    every n and every distribution, and close to exact for continuous ones. Source: Massart (1990),
    the tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality."""
    p = sides * jnp.exp(-2 * n * at_least(gap, 0) ** 2)
    return at_most(p, 1.0)
