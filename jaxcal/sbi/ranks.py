"""Rank parameters among draws of their posteriors, or among exchangeable candidates."""

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal.candidates import Candidates, Chains, Drawn, exchangeability_test
from jaxcal.candidates.exchangeability import uniformity
from jaxcal.candidates.ranks import coordinate, distance_to, ranks
from jaxcal.candidates.results import ExchangeabilityResult
from jaxcal.divergences.fisher import Fisher
from jaxcal.engine import LightJit
from jaxcal.entries.calibration import LEAST_DRAWS, calibration_test
from jaxcal.read import Draws, Units, checks, convert
from jaxcal.read.observations import finite_rows, n_repeated
from jaxcal.results import Result, Sentences, TestResult, recorded
from jaxcal.results.notes import of_a_chain
from jaxcal.results.notes import sentences as sentences_of
from jaxcal.sbi.adapters import paired
from jaxcal.sbi.diagnosis import Diagnosis, among_draws, diagnose, with_shapes
from jaxcal.sbi.pairs import ScoredPairs
from jaxcal.sbi.report_text import CHAINS, DRAWS, sentences
from jaxcal.typing import ArrayLike, Contents, Key, KeyLike, Names, Observations, Scalar

MOST_FEATURES = 50  # most features for which trends are tested
LEAST = 1e-6  # least distance of ranks from 0 and 1, which keeps normal scores finite


class PosteriorRanks(Result):
    """Ranks of n parameter vectors theta, each among m draws of its posterior or m candidates.

    Attributes:
        ranks: [n, r] randomized ranks of r = 1 + d statistics, uniform on [0, 1] if the posterior
            is right.
        p_values: [r] p-values of "the ranks of the statistic are uniform", valid for every n.
        exchangeability: Result of `jaxcal.candidates.exchangeability_test` for the same candidates;
            None without log densities.
        diagnosis: `Diagnosis` from the normal scores of the ranks of parameters. For chains, which
            may stay near theta, it underestimates errors.
        statistics: Names of what is ranked: first "density" (coverage of highest-density regions)
            or "distance" to a draw of another posterior (TARP), then each parameter (SBC).
        source: "draws" of the posterior, or "chains" of candidates that start at theta.
        size: m, the number of draws or candidates.
        correlation: Lag-one correlation of the draws in their order, [] (`Draws.correlation`).
        repeated: Number of pairs equal to another pair, []; not counted (0) with log densities.
        moments: Result of `jaxcal.calibration_test` with the draws, and x as inputs; None with log
            densities or with fewer than 4 independent draws.
        level: Level of the band in the figure and of the printed errors.
    """

    _rows: ClassVar[tuple[str, ...]] = ("statistics", "p_values")
    _plots: ClassVar[tuple[str, ...]] = ("sbi.rank_bands",)
    _scalar: ClassVar[str] = "p_value"
    _long: ClassVar[tuple[str, ...]] = ("ranks",)

    ranks: Float[Array, "n r"]
    p_values: Float[Array, " r"]
    exchangeability: ExchangeabilityResult | None
    diagnosis: Diagnosis
    statistics: tuple[str, ...] = eqx.field(static=True)
    source: str = eqx.field(static=True)
    size: int = eqx.field(static=True)
    correlation: Scalar | float = 0.0
    repeated: Int[Array, ""] | int = 0
    moments: TestResult | None = None
    level: float = eqx.field(static=True, default=0.05)

    def _sentences(self) -> Sentences:
        lost = bool(np.any(np.isnan(np.asarray(self.p_values))))
        lag = float(np.max(np.asarray(self.correlation)))
        return [
            (
                "draws or thetas are NaN or infinite, so the p-value is NaN [nonfinite-draws]",
                lost,
            ),
            of_a_chain("a posterior", lag),
            *sentences_of({"repeated-rows": np.asarray(self.repeated)}),
        ]

    def to_datatree(self) -> Any:
        """Return an ``xarray.DataTree`` whose group ``prior_sbc`` holds the ranks, one variable per
        statistic, for ``arviz_plots.plot_ecdf_pit`` (ArviZ 1)."""
        import xarray  # pyright: ignore[reportMissingImports]

        ranks = np.asarray(self.ranks)[None]
        variables = {
            name: (("chain", "draw"), ranks[:, :, k]) for k, name in enumerate(self.statistics)
        }
        return xarray.DataTree.from_dict({"prior_sbc": xarray.Dataset(variables)})

    @property
    def uniformity(self) -> Scalar:
        """Combined p-value of ``p_values`` (Bonferroni), []; NaN if one of them is."""
        p = self.p_values
        return jnp.minimum(1.0, p.shape[-1] * jnp.min(p, axis=-1))

    @property
    def trend(self) -> Scalar | None:
        """Smallest Holm-adjusted p-value of trends of shift and spread along x; None without x."""
        d = self.diagnosis
        if d.shift_trend is None or d.spread_trend is None:
            return None
        return jnp.minimum(jnp.min(d.shift_trend.p_adjusted), jnp.min(d.spread_trend.p_adjusted))

    @property
    def p_value(self) -> Scalar:
        """Combined p-value of `uniformity`, `trend` and ``moments`` (Bonferroni), []."""
        trend = [] if self.trend is None else [self.trend]
        moments = [] if self.moments is None else [self.moments.p_value]
        each = jnp.stack(jnp.broadcast_arrays(self.uniformity, *trend, *moments))
        return jnp.minimum(1.0, len(each) * jnp.min(each, axis=0))

    def _contents(self) -> Contents:
        of_all = super()._contents() | {"p_value": self.p_value, "trend": self.trend}
        for name in ("exchangeability", "moments"):
            if (of := getattr(self, name)) is not None:
                of_all[name] = of.to_dict()
        return of_all

    def _lines(self) -> list[str]:
        n = self.ranks.shape[0]
        each = zip(self.statistics, np.asarray(self.p_values), strict=True)
        lines = [f"ranks among {self.size} {self.source}, n = {n}, p = {float(self.p_value):.2g}"]
        lines += [f"  {name:12} p = {p:.2g}" for name, p in each]
        if self.trend is not None and self.diagnosis.strongest is not None:
            k, j = (int(i) for i in np.asarray(self.diagnosis.strongest))
            where = f"strongest: {self.statistics[k + 1]} along x[{j}]"
            lines.append(f"  {'errors in x':12} p = {float(self.trend):.2g} ({where})")
        if (of := self.moments) is not None and of.parts is not None:
            strongest = of.parts.names[int(of.parts.winner)]
            lines.append(f"  {'moments':12} p = {float(of.p_value):.2g} (strongest: {strongest})")
        return lines + self._sizes()

    def _sizes(self) -> list[str]:
        """Return a line per significant error; [] for chains, and if `p_value` > `level`."""
        if not float(self.p_value) <= self.level or self.source != DRAWS:
            return []
        said = sentences(self.diagnosis, self.statistics[1:], self.level, by_ranks=True)
        return [f"  - {text}" for text in said]


def ranks_of(
    key: Key,
    pairs: ScoredPairs,
    draws: Any,
    n_samples: int,
    chains: Any,
    level: float,
) -> PosteriorRanks | None:
    """Return ranks among ``draws`` (of original parameters) if given, else ``n_samples`` draws by
    ``pairs.sampler``, else candidates of the proposal ``chains``; None if all three are None."""
    draw_key, rank_key = jax.random.split(key)
    n, d = pairs.thetas.shape
    if draws is not None:
        array = paired(draws, pairs.thetas, pairs.names)[0]
        if array.shape[0] != n or array.shape[2] != d or array.shape[1] < 2:
            raise ValueError(
                f"draws: wanted m >= 2 draws of each of the n={n} posteriors tested, shape "
                f"({n}, m, {d}), got {array.shape} (without prior= some pairs are base points)"
            )
        free = pairs.space.free(array.astype(pairs.thetas.dtype))
    elif pairs.sampler is not None:
        free = pairs.sample(draw_key, n_samples)
    else:
        free = None
    features = pairs.features if pairs.features.shape[1] <= MOST_FEATURES else None
    if pairs.predictions is None:
        if free is None:
            return None
        return rank_draws(rank_key, free, pairs.thetas, features, pairs.names, level=level)
    if free is None and chains is None:
        return None
    if isinstance(chains, Chains) and chains.nodes is None:
        chains = replace(chains, nodes=pairs.prior_draws)
    proposal = chains if free is None else Drawn(free)
    data = pairs.predictions, pairs.thetas, features, pairs.names
    return rank_densities(rank_key, *data, proposal=proposal, level=level)


def rank_densities(
    key: Key,
    predictions: Any,
    thetas: Float[Array, "n d"],
    features: Float[Array, "n q"] | None,
    names: tuple[str, ...],
    *,
    proposal: Any = Chains(),
    level: float,
) -> PosteriorRanks:
    """Return `PosteriorRanks` among the candidates of a proposal, with the exchangeability test."""
    test_key, fold_key = jax.random.split(key)
    drawn, lag = isinstance(proposal, Drawn), jnp.zeros(())
    if drawn:
        draws, lag = Draws(proposal.draws).unsorted().thinned()
        proposal = Drawn(draws.samples)
    result = exchangeability_test(
        test_key,
        predictions,
        thetas,
        proposal=proposal,
        divergence=Fisher(zero_outside=True),
        level=level,
    )
    size = proposal.draws.shape[1] if drawn else int(getattr(proposal, "n_candidates", 0))
    return PosteriorRanks(
        result.ranks,
        result.rank_p_values,
        result,
        diagnosed(fold_key, result.ranks[:, 1:], features, level, size if drawn else None),
        ("density", *names),
        DRAWS if drawn else CHAINS,
        size,
        lag,
        level=level,
    )


def rank_draws(
    key: Key,
    draws: Float[Array, "n m d"],
    thetas: Float[Array, "n d"],
    features: Float[Array, "n q"] | None,
    names: tuple[str, ...],
    *,
    level: float,
) -> PosteriorRanks:
    """Return `PosteriorRanks` among draws; ``moments`` is None for < 4 independent draws."""
    fold_key, rank_key = jax.random.split(key)
    independent, lag = Draws(draws).unsorted().thinned()
    points, m = independent.samples, independent.samples.shape[1] - 1
    standing = ranks_among_draws(rank_key, points, thetas)
    diagnosis, moments = diagnosed(fold_key, standing[:, 1:], features, level, m), None
    if m + 1 >= LEAST_DRAWS:
        test_key = jax.random.fold_in(key, 2)
        options = {"inputs": features, "names": names, "level": level}
        moments = calibration_test(test_key, Draws(draws), thetas, **options)  # thins them alike
        if moments.table is not None:
            diagnosis = with_shapes(moments.table, diagnosis, level)
    return PosteriorRanks(
        standing,
        jax.vmap(uniformity, in_axes=1)(standing),
        None,
        diagnosis,
        ("distance", *names),
        DRAWS,
        m,
        lag,
        n_repeated(thetas, draws if features is None else features),
        moments,
        level,
    )


@jax.jit
def ranks_among_draws(key: Key, draws: Array, thetas: Array) -> Float[Array, "n r"]:
    """Return randomized ranks of theta in [0, 1] among all draws but the last: by distance to a
    reference point, then by each of the d parameters; r = 1 + d. The reference point of a pair is
    the last draw of a random other pair."""
    points = jnp.concatenate([thetas[:, None], draws[:, :-1]], axis=1)
    same = jnp.full(points.shape[:2], 1 / points.shape[1], points.dtype)
    among = Candidates(points, same, same, jnp.ones((), points.dtype))
    order = jax.random.permutation(jax.random.fold_in(key, 1 + thetas.shape[1]), len(thetas))
    references = jnp.zeros_like(thetas, draws.dtype).at[order].set(draws[jnp.roll(order, 1), -1])
    statistics = [distance_to(references), *map(coordinate, range(thetas.shape[1]))]
    keys = jax.random.split(key, len(statistics))
    each = [ranks(k, among, f) for k, f in zip(keys, statistics, strict=True)]
    return jnp.stack(each, axis=1)


@partial(LightJit, static_argnames="m")
def diagnosed(
    key: Key,
    of_parameters: Float[Array, "n d"],
    features: Array | None,
    level: float | Scalar,
    m: int | None = None,
) -> Diagnosis:
    """Return the diagnosis of ranks in [0, 1] from their normal scores, which are N(0, 1) if the
    posterior is right. Without ``features`` there are no trends. Sizes are corrected for the number
    ``m`` of draws (`among_draws`); None, for chains and weighted points, means no correction."""
    z = jax.scipy.stats.norm.ppf(jnp.clip(of_parameters, LEAST, 1 - LEAST))
    n, d = z.shape
    predictors = jnp.zeros((n, 1), z.dtype) if features is None else features.astype(z.dtype)
    unit = jnp.broadcast_to(jnp.eye(d, dtype=z.dtype), (n, d, d))
    diagnosis = diagnose(
        key,
        z,
        -z,
        predictors,
        None if features is None else predictors,
        level=level,
        covariances=unit,
    )
    # scores of dependent parameters are dependent, so a claimed correlation of 0 would be wrong
    diagnosis = replace(diagnosis, correlation=None)
    return diagnosis if m is None else among_draws(diagnosis, n, m)


@recorded
def check_draws(
    key: KeyLike,
    draws: ArrayLike,
    thetas: ArrayLike,
    xs: Observations | None = None,
    *,
    names: Names | None = None,
    level: float = 0.05,
) -> PosteriorRanks:
    """Test ranks (SBC), coverage (TARP) and moments of parameters among draws of their posteriors.

    Moments are tested by `jaxcal.calibration_test` with the draws, and x as inputs. If there are
    also densities or scores, use `check_posterior` with these ``draws``.

    Args:
        key: Random key: typed, legacy or an integer.
        draws: Independent draws of each posterior, in one of the forms below. If successive draws
            are correlated, they are thinned until their correlation is below .1.

            - An array or tensor [n, m, d], or [n, m] for one parameter. sbi's ``sample_batched``
              gives [m, n, d]: transpose the first two axes.
            - A dict of arrays [n, m] or [n, m, k], as BayesFlow samples.
            - A list of n dicts of columns [m] or [m, ..], or n data frames, one per observation:
              ``fit.stan_variables()`` or ``fit.draws_pd()`` of cmdstanpy.
            - A list of n ``InferenceData`` of ArviZ (since ArviZ 1 ``DataTree``), one per
              observation, whose chains are thinned to their effective size.
        thetas: [n, d] parameters from the prior; for named draws also a dict of [n] or [n, k].
        xs: [n, q] observations or summaries of them, along which trends are tested; or None.
        names: Names of the d parameters, in the order of the columns of ``thetas``; named draws are
            put into this order. Required if draws have several names and thetas is an array.
        level: Limits and the band of the figure have confidence 1 - level; errors with p <= level
            are printed.

    Returns:
        `PosteriorRanks`, with p-values of the ranks, of trends along x and of moments (for at least
        4 independent draws), and their combined p-value.

    Source: Talts et al. (2018) for the ranks; Lemos et al. (2023) for TARP; for the moments see
    `jaxcal.calibration_test`.

    Example:
        >>> import jax
        >>> from jaxcal import sbi
        >>> thetas, noise = jax.random.normal(jax.random.key(0), (2, 200, 1))
        >>> draws = 0.6 * jax.random.normal(jax.random.key(1), (200, 20, 1))  # too narrow
        >>> bool(sbi.check_draws(2, {"slope": draws}, thetas).p_value < 0.01)
        True
    """
    key, level = convert.key(key), checks.level(level)
    with jax.enable_x64(True):  # centred before float32 rounds the differences of large numbers
        array, values, words = paired(draws, thetas, names)
        n, m, d = array.shape
        if values.shape != (n, d) or m < 2:
            swapped = ": transpose the first two axes?" if (m, d) == values.shape else ""
            raise ValueError(
                f"draws: wanted m >= 2 draws for each of thetas of shape {values.shape}, got "
                f"{array.shape}{swapped}"
            )
        units = Units.of(values)  # distances are in units of the parameters' spread
        among, standing = units.points(array.astype(values.dtype)), units.points(values)
    kind = jax.dtypes.canonicalize_dtype(values.dtype)
    words = checks.names(words, d) or tuple(f"theta_{k + 1}" for k in range(d))
    features = None if xs is None else finite_rows(xs, n, "xs").astype(kind)
    return rank_draws(key, among.astype(kind), standing.astype(kind), features, words, level=level)
