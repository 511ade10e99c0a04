"""Tests of a posterior from its simulated pairs, composed of the tests of predictions."""

from functools import partial
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal import calibration, goodness_of_fit, nulls
from jaxcal.candidates import Chains
from jaxcal.candidates.proposals import Proposal
from jaxcal.coverage import Coverage
from jaxcal.entries import calibration_test
from jaxcal.moments import attribution
from jaxcal.moments.attribution import Claims
from jaxcal.read import Scores, checks
from jaxcal.read.standardized import Units
from jaxcal.results import TestResult, recorded
from jaxcal.sbi.diagnosis import Diagnosis, diagnose
from jaxcal.sbi.pairs import PairOptions, ScoredPairs, inputs_of, scored_pairs
from jaxcal.sbi.ranks import MOST_FEATURES, also_by, diagnosed, ranks_of
from jaxcal.sbi.report import PosteriorReport, PosteriorResult
from jaxcal.sbi.suspicions import exchange_evidence
from jaxcal.typing import (
    ArrayLike,
    Key,
    KeyLike,
    PosteriorLike,
)

SPLIT_UP_TO = 2000  # most pairs for which the statistic is split over parameters by default


@recorded
def kccsd_test(
    key: KeyLike,
    posterior: PosteriorLike | ScoredPairs,
    thetas: ArrayLike | None = None,
    xs: ArrayLike | None = None,
    *,
    null: nulls.Null = nulls.Wild(),
    level: float = 0.05,
    coordinates: bool | None = None,
    **options: Any,
) -> PosteriorResult:
    """Test from scores that the posterior is calibrated, on n simulated pairs.

    The kernel compares posteriors by their scores at draws of the prior. Neither draws from the
    posterior nor its constant are needed; bounded parameters are mapped to the whole line first.
    The prior itself passes this test: also use `kcsd_test`, or `check_posterior`.

    Args:
        key: Random key: typed, legacy or an integer.
        posterior: Anything that `score_pairs` takes, or a `ScoredPairs` alone.
        thetas: [n, d] parameters drawn from the prior.
        xs: [n, ...] observations simulated from them.
        null: Null distribution of the statistic.
        level: Level of the test.
        coordinates: Whether each parameter gets a p-value from the same kernel, at d times the
            cost; None does so up to 2000 pairs.
        **options: Those of `score_pairs` (``prior``, ``summaries`` and others) and of
            `jaxcal.kccsd_test`.

    Returns:
        `PosteriorResult` with the test and its diagnosis. NaN scores give p = NaN. Errors: as in
        `score_pairs`.

    Cost: n (n_nodes + 1) scores and n^2 kernel values.

    Source: Glaser et al. (2023), Section 3; for the prior as base measure Section 4.1.

    Example:
        >>> import jax, numpyro.distributions as dist
        >>> from jaxcal import sbi
        >>> prior = dist.Normal(jax.numpy.zeros(2), 1.0).to_event(1)
        >>> thetas = prior.sample(jax.random.key(0), (60,))
        >>> xs = thetas + jax.random.normal(jax.random.key(1), (60, 2))
        >>> def log_prob(theta, x):  # the exact posterior is N(x / 2, 1 / 2)
        ...     return -((theta - x / 2 - 1) ** 2).sum()
        >>> sbi.kccsd_test(2, log_prob, thetas, xs, prior=prior).test.verdict
        'rejected'
    """

    def test(key: Key, pairs: ScoredPairs, split: bool) -> TestResult:
        return calibration.kccsd_test(
            key, pairs.scores, pairs.thetas, null=null, level=level, coordinates=split, **options
        )

    key, level = checks.key(key), checks.level(level)
    pairs = scored_pairs(key, posterior, thetas, xs, **_of_pairs(options))
    return _tested(jax.random.fold_in(key, 1), pairs, test, level, coordinates, conditional=False)


@recorded
def kcsd_test(
    key: KeyLike,
    posterior: PosteriorLike | ScoredPairs,
    thetas: ArrayLike | None = None,
    xs: ArrayLike | None = None,
    *,
    null: nulls.Null = nulls.Wild(),
    level: float = 0.05,
    coordinates: bool | None = None,
    **options: Any,
) -> PosteriorResult:
    """Test from scores that the posterior is right given x, a stronger hypothesis.

    The kernel compares observations; errors that change along their features are tested as well.

    Args:
        key: Random key: typed, legacy or an integer.
        posterior: Anything that `score_pairs` takes, or a `ScoredPairs` alone.
        thetas: [n, d] parameters drawn from the prior.
        xs: [n, ...] observations simulated from them.
        null: Null distribution of the statistic.
        level: Level of the test.
        coordinates: As in `kccsd_test`.
        **options: Those of `score_pairs` (``prior``, ``summaries`` and others) and of
            `jaxcal.kcsd_test`.

    Returns:
        `PosteriorResult` with the test and its diagnosis. NaN scores give p = NaN. Errors: as in
        `score_pairs`.

    Cost: n (n_nodes + 1) scores and n^2 kernel values.

    Source: Jitkrittum et al. (2020); Glaser et al. (2023), Section 2.

    Example:
        >>> import jax, numpyro.distributions as dist
        >>> from jaxcal import sbi
        >>> prior = dist.Normal(jax.numpy.zeros(2), 1.0).to_event(1)
        >>> thetas = prior.sample(jax.random.key(0), (60,))
        >>> xs = thetas + jax.random.normal(jax.random.key(1), (60, 2))
        >>> def log_prob(theta, x):  # that of the prior, which ignores x
        ...     return -(theta**2).sum() / 2
        >>> sbi.kcsd_test(2, log_prob, thetas, xs, prior=prior).test.verdict
        'rejected'
    """

    def test(key: Key, pairs: ScoredPairs, split: bool) -> TestResult:
        judged = {"null": null, "level": level, "coordinates": split}
        features = pairs.features.astype(pairs.thetas.dtype)
        return goodness_of_fit.kcsd_test(
            key, pairs.scores, pairs.thetas, features, **judged, **options
        )

    key, level = checks.key(key), checks.level(level)
    pairs = scored_pairs(key, posterior, thetas, xs, **_of_pairs(options))
    return _tested(jax.random.fold_in(key, 2), pairs, test, level, coordinates, conditional=True)


@recorded
def check_posterior(
    key: KeyLike,
    posterior: PosteriorLike | ScoredPairs,
    thetas: ArrayLike | None = None,
    xs: ArrayLike | None = None,
    *,
    draws: ArrayLike | None = None,
    n_draws: int = 99,
    chains: Proposal | None = Chains(),
    null: nulls.Null = nulls.HadamardWild(),
    level: float = 0.05,
    coordinates: bool | None = None,
    coverage: Coverage | None = None,
    **options: Unpack[PairOptions],
) -> PosteriorReport:
    """Check a posterior on simulated pairs: test it, and report its errors by parameter and region.

    The tests depend on what the posterior offers. With log densities: the aggregated
    `jaxcal.calibration_test`, and ranks (SBC) and coverage among exchangeable candidates. These are
    draws if they are cheap, otherwise chains that start at the parameter and need no burn-in. The
    same test with x as ``inputs`` tests whether the posterior is right given x. With scores only:
    `kccsd_test` and `kcsd_test`.

    Args:
        key: Random key: typed, legacy or an integer.
        posterior: Anything that `score_pairs` takes, or a `ScoredPairs` alone.
        thetas: [n, d] parameters drawn from the prior.
        xs: [n, ...] observations simulated from them.
        draws: [n, m, d] independent draws of each posterior, or what `as_draws` takes.
        n_draws: Number of draws of each posterior, if these are cheap.
        chains: Proposal of candidates without draws: a `jaxcal.candidates.Chains`, which uses draws
            of the prior as nodes if it has none, or any other; None omits ranks and coverage.
        null: Null distribution of the statistics.
        level: Level of the verdict, which combines all p-values, and of limits.
        coordinates: As in `kccsd_test`, for scores given x.
        coverage: A result of `jaxcal.coverage.coverage` to include in the verdict.
        **options: Those of `score_pairs`: ``prior``, ``bounds``, ``summaries`` (needed for images
            and long series), ``names`` of the parameters, ``n_nodes``, ``exclude_invalid_x``.

    Returns:
        `PosteriorReport`, which prints the errors in words; `jaxcal.plots.posterior_figure` draws
        it. Errors: as in `score_pairs`.

    Cost per pair: about 380 log densities, n_nodes + 12 gradients and 10 d Hessian-vector products;
    n_draws log densities with gradients more, or 384 and 200 gradients for the chains, and 5 d
    Hessian-vector products. Linear in n.

    Source: as of `jaxcal.calibration_test`, `candidates.exchangeability_test` and `kcsd_test`.

    Example:
        >>> import jax, numpyro.distributions as dist
        >>> from jaxcal import sbi
        >>> prior = dist.Normal(jax.numpy.zeros(2), 1.0).to_event(1)
        >>> thetas = prior.sample(jax.random.key(0), (100,))
        >>> xs = thetas + jax.random.normal(jax.random.key(1), (100, 2))
        >>> def log_prob(theta, x):  # twice as narrow as the exact posterior, N(x / 2, 1 / 2)
        ...     return -4 * ((theta - x / 2) ** 2).sum()
        >>> report = sbi.check_posterior(2, log_prob, thetas, xs, prior=prior, names=["a", "b"])
        >>> report.verdict()
        'not calibrated, so not the posterior given x either'
        >>> [text.split(":")[0] for text in report.findings()]
        ['a is overconfident (too narrow) by itself', 'b is overconfident (too narrow) by itself']
    """
    key, level = checks.key(key), checks.level(level)
    if coverage is not None and not isinstance(coverage, Coverage):
        raise TypeError(
            f"coverage: wanted a result of jaxcal.coverage.coverage, got {checks.say(coverage)}"
        )
    n_draws = checks.integer(n_draws, "n_draws")
    plain = isinstance(chains, type) or not hasattr(type(chains), "__dataclass_fields__")
    if chains is not None and (plain or not isinstance(chains, Proposal)):
        raise TypeError(
            f"chains: wanted a module such as jaxcal.candidates.Chains(), got {checks.say(chains)}"
        )
    pairs = scored_pairs(key, posterior, thetas, xs, **options)
    given_x = _given_x(key, pairs, null, level, coordinates)
    calibrated = _calibrated(key, pairs, null, level)
    ranks = ranks_of(jax.random.fold_in(key, 3), pairs, draws, n_draws, chains, level)
    exchanged = (
        None
        if pairs.predictions is None
        else exchange_evidence(pairs.predictions, pairs.thetas, pairs.space)
    )
    return PosteriorReport(calibrated, given_x, coverage, ranks, exchanged)


def _calibrated(key: Key, pairs: ScoredPairs, null: nulls.Null, level: float) -> PosteriorResult:
    """Return the aggregated test if there are log densities, else the test of scores."""
    if pairs.predictions is None:
        return kccsd_test(key, pairs, null=null, level=level, coordinates=False)
    test = partial(_of_densities, null=null, level=level)
    return _tested(jax.random.fold_in(key, 1), pairs, test, level, None, conditional=False)


def _given_x(
    key: Key, pairs: ScoredPairs, null: nulls.Null, level: float, coordinates: bool | None
) -> PosteriorResult:
    """Return the test given x: `calibration_test` with x as inputs, or `kcsd_test` of scores."""
    if pairs.predictions is None:
        return kcsd_test(key, pairs, null=null, level=level, coordinates=coordinates)
    test = partial(_of_densities, null=null, level=level, inputs=inputs_of(pairs))
    return _tested(jax.random.fold_in(key, 2), pairs, test, level, None, conditional=True)


def _of_densities(key: Key, pairs: ScoredPairs, split: bool, **options: Any) -> TestResult:
    assert pairs.predictions is not None
    return calibration_test(key, pairs.predictions, pairs.thetas, names=pairs.names, **options)


def _tested(
    key: Key,
    pairs: ScoredPairs,
    test: Any,
    level: float,
    coordinates: bool | None,
    *,
    conditional: bool,
) -> PosteriorResult:
    """Return the result and diagnosis of a test of the pairs, ``test(key, pairs, split)``."""
    test_key, split_key = jax.random.split(key)
    result = test(test_key, pairs, _split(coordinates, pairs))
    by_ranks = None
    if conditional and result.ranks is not None:
        searched = pairs.features if pairs.features.shape[1] <= MOST_FEATURES else None
        by_ranks = diagnosed(split_key, result.ranks[:, 1:], searched, level)
        by_ranks = by_ranks if result.table is None else also_by(result.table, by_ranks)
    return PosteriorResult(
        result,
        _diagnose(split_key, pairs, level, conditional=conditional),
        by_ranks,
        pairs.features,
        "conditional" if conditional else "calibrated",
        pairs.names,
        pairs.notes,
    )


def _of_pairs(options: dict[str, Any]) -> PairOptions:
    """Remove the options of `score_pairs`, and return them."""
    return PairOptions(
        **{k: options.pop(k) for k in [*options] if k in PairOptions.__annotations__}
    )


def _split(coordinates: bool | None, pairs: ScoredPairs) -> bool:
    if coordinates is None:
        return len(pairs.thetas) <= SPLIT_UP_TO
    return checks.flag(coordinates, "coordinates")


def _diagnose(key: Key, pairs: ScoredPairs, level: float, *, conditional: bool) -> Diagnosis:
    n, q = pairs.features.shape
    features = pairs.features.astype(pairs.thetas.dtype)
    predictors: Array = pairs.scores.at_nodes.reshape(n, -1)
    if conditional:  # the posterior is a function of x, so both may be conditioned on
        predictors = jnp.concatenate([predictors, features], axis=1)
    searched = features if q <= MOST_FEATURES else None
    claims = _claims(pairs.thetas, pairs.scores)
    return diagnose(
        key,
        pairs.thetas,
        pairs.scores.at_targets,
        predictors,
        searched,
        conditional=conditional,
        level=level,
        covariances=None if claims is None else claims.covariances,
        claimed_centers=None if claims is None else claims.centers,
        exact=True if claims is None else claims.exact,
    )


@jax.jit
def _claims(thetas: Array, scores: Scores) -> Claims | None:
    """Return centres and covariances of the posteriors from their scores, computed in units of the
    pairs."""
    units = Units.of(thetas)
    nodes, at_nodes = units.points(scores.nodes), units.scores(scores.at_nodes)
    at_targets = units.scores(scores.at_targets)
    fitted = attribution.claims(None, nodes, at_nodes, units.points(thetas), at_targets)
    if fitted is None:
        return None
    square = units.scale[:, None] * units.scale[None]
    centers = units.original(fitted.centers)
    return fitted._replace(centers=centers, covariances=fitted.covariances * square[None])
