"""Tests of a posterior from its simulated pairs: each arrow composed, nothing new computed."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal import calibration, checks, goodness_of_fit, nulls
from jaxcal.coverage import Coverage
from jaxcal.models import Scores
from jaxcal.models.standardized import Units
from jaxcal.moments import marginal_means
from jaxcal.sbi.diagnosis import Diagnosis, diagnose
from jaxcal.sbi.pairs import ScoredPairs, score_pairs
from jaxcal.sbi.report import PosteriorReport, PosteriorResult
from jaxcal.typing import Key, KeyLike

SPLIT_UP_TO = 2000  # pairs, unless asked for
MOST_FEATURES = 50  # more than these are not searched for trends


def kccsd_test(
    key: KeyLike,
    posterior: Any,
    thetas: Any = None,
    xs: Any = None,
    *,
    prior: Any = None,
    bounds: Any = None,
    names: Any = None,
    n_nodes: int = 10,
    null: nulls.Null = nulls.Wild(),
    level: float = 0.05,
    coordinates: bool | None = None,
    **options: Any,
) -> PosteriorResult:
    """Is the posterior calibrated? From n pairs (theta from the prior, x simulated from theta).

    ``posterior``, ``thetas``, ``xs``, ``prior``, ``bounds``, ``names``, ``n_nodes``: see
    `score_pairs`; or a `ScoredPairs` alone, whose scores are known. The kernel compares posteriors
    by their scores at draws of the prior; ``options`` are those of `jaxcal.kccsd_test`. Needs no
    draws from the posterior and no constant: n (n_nodes + 1) scores. Parameters with bounds are
    brought to the whole line first. ``coordinates``: p-values of each parameter from the same
    kernel, at d times the cost; None does so up to 2000 pairs. The prior itself passes this test:
    ask `kcsd_test` too, or `check_posterior`. Errors as in `score_pairs`; NaN scores give p = NaN.
    Source: Glaser et al. (2023), Section 3; for the prior as base measure Section 4.1.
    """
    key, level = checks.key(key), checks.level(level)
    pairs = _pairs(posterior, thetas, xs, key, prior, bounds, None, names, n_nodes)
    test_key, split_key = jax.random.split(jax.random.fold_in(key, 1))
    result = calibration.kccsd_test(
        test_key,
        pairs.scores,
        pairs.thetas,
        null=null,
        level=level,
        coordinates=_split(coordinates, pairs),
        **options,
    )
    diagnosis = _diagnose(split_key, pairs, level, conditional=False)
    return PosteriorResult(
        result, diagnosis, pairs.features, "calibrated", pairs.names, pairs.notes
    )


def kcsd_test(
    key: KeyLike,
    posterior: Any,
    thetas: Any = None,
    xs: Any = None,
    *,
    summaries: Any = None,
    prior: Any = None,
    bounds: Any = None,
    names: Any = None,
    n_nodes: int = 10,
    null: nulls.Null = nulls.Wild(),
    level: float = 0.05,
    coordinates: bool | None = None,
    **options: Any,
) -> PosteriorResult:
    """Is it the posterior given x? The stronger question; the kernel compares observations.

    ``summaries`` [n, q]: learned or chosen features of xs; images and long series want them.
    Everything else as in `kccsd_test`. Also looks for trends of the errors along each feature.
    Source: Jitkrittum et al. (2020); Glaser et al. (2023), Section 2.
    """
    key, level = checks.key(key), checks.level(level)
    pairs = _pairs(posterior, thetas, xs, key, prior, bounds, summaries, names, n_nodes)
    test_key, split_key = jax.random.split(jax.random.fold_in(key, 2))
    result = goodness_of_fit.kcsd_test(
        test_key,
        pairs.scores,
        pairs.thetas,
        pairs.features.astype(pairs.thetas.dtype),
        null=null,
        level=level,
        coordinates=_split(coordinates, pairs),
        **options,
    )
    diagnosis = _diagnose(split_key, pairs, level, conditional=True)
    return PosteriorResult(
        result, diagnosis, pairs.features, "conditional", pairs.names, pairs.notes
    )


def check_posterior(
    key: KeyLike,
    posterior: Any,
    thetas: Any = None,
    xs: Any = None,
    *,
    summaries: Any = None,
    prior: Any = None,
    bounds: Any = None,
    names: Any = None,
    n_nodes: int = 10,
    level: float = 0.05,
    coverage: Any = None,
    **options: Any,
) -> PosteriorReport:
    """Both questions from one set of scores; arguments as in `kccsd_test` and `kcsd_test`.

    ``coverage``: a result of `jaxcal.coverage` to show beside them. ``level``: of the verdict,
    which is about all of them together, and of what is named beside it.
    """
    key, level = checks.key(key), checks.level(level)
    if coverage is not None and not isinstance(coverage, Coverage):
        raise TypeError(
            f"coverage: wanted a result of jaxcal.coverage.coverage, got {checks.say(coverage)}"
        )
    pairs = _pairs(posterior, thetas, xs, key, prior, bounds, summaries, names, n_nodes)
    options |= {"level": level}
    return PosteriorReport(
        kccsd_test(key, pairs, **options), kcsd_test(key, pairs, **options), coverage
    )


def _pairs(
    posterior: Any,
    thetas: Any,
    xs: Any,
    key: Key,
    prior: Any,
    bounds: Any,
    summaries: Any,
    names: Any,
    n_nodes: int,
) -> ScoredPairs:
    if isinstance(posterior, ScoredPairs):
        return posterior
    if thetas is None or xs is None:
        raise TypeError("thetas and xs: wanted the pairs that the posterior is tested on")
    return score_pairs(
        jax.random.fold_in(key, 0),
        posterior,
        thetas,
        xs,
        prior=prior,
        bounds=bounds,
        summaries=summaries,
        names=names,
        n_nodes=n_nodes,
    )


def _split(coordinates: bool | None, pairs: ScoredPairs) -> bool:
    if coordinates is None:
        return len(pairs.thetas) <= SPLIT_UP_TO
    return checks.flag(coordinates, "coordinates")


def _diagnose(key: Key, pairs: ScoredPairs, level: float, *, conditional: bool) -> Diagnosis:
    n, q = pairs.features.shape
    features = pairs.features.astype(pairs.thetas.dtype)
    predictors: Array = pairs.scores.at_nodes.reshape(n, -1)
    if conditional:  # the posterior is a function of x, so both are known
        predictors = jnp.concatenate([predictors, features], axis=1)
    searched = features if q <= MOST_FEATURES else None
    covariances, common = _covariances(pairs.thetas, pairs.scores)
    return diagnose(
        key,
        pairs.thetas,
        pairs.scores.at_targets,
        predictors,
        searched,
        conditional=conditional,
        level=level,
        covariances=covariances,
        common=common,
    )


@jax.jit
def _covariances(thetas: Array, scores: Scores) -> tuple[Array | None, Array | int]:
    """Of the posteriors, [n, d, d], as far as their scores tell, and how many share one that is not
    theirs; computed in units of the pairs."""
    units = Units.of(thetas)
    nodes, at_nodes = units.points(scores.nodes), units.scores(scores.at_nodes)
    fitted = marginal_means.covariances_of(None, nodes, at_nodes, units.scores(scores.at_targets))
    square = units.scale[:, None] * units.scale[None]
    return (None, 0) if fitted is None else (fitted.values * square[None], fitted.common)
