"""`check_posterior`: test a posterior on simulated pairs (theta, x), and report its errors."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal import nulls
from jaxcal.candidates import Chains
from jaxcal.candidates.proposals import Proposal
from jaxcal.coverage import Coverage
from jaxcal.engine import LightJit
from jaxcal.entries.calibration import of_one_fit
from jaxcal.entries.landed import N_POINTS
from jaxcal.moments import attribution
from jaxcal.moments.attribution import Claims
from jaxcal.read import Scores, checks, convert
from jaxcal.read.predictions import Units
from jaxcal.read.scores import is_distribution
from jaxcal.results import TestResult, recorded
from jaxcal.sbi.diagnosis import Diagnosis, also_by, diagnose
from jaxcal.sbi.mixed import split
from jaxcal.sbi.pairs import PairOptions, ScoredPairs, inputs_of, score_pairs
from jaxcal.sbi.ranks import MOST_FEATURES, diagnosed, ranks_of
from jaxcal.sbi.report import PosteriorReport, PosteriorResult
from jaxcal.sbi.suspicions import exchange_evidence
from jaxcal.stein.calibration import kccsd_test
from jaxcal.stein.goodness_of_fit import kcsd_test
from jaxcal.typing import ArrayLike, Key, KeyLike, Observations, PosteriorLike, Scalar

STILL_WRONG = 0.01  # two parameters are called swapped if their exchange gives a larger p-value
SPLIT_UP_TO = 2000  # most pairs for which the statistic is split over parameters by default


@recorded
def check_posterior(
    key: KeyLike,
    posterior: PosteriorLike | ScoredPairs,
    thetas: ArrayLike | None = None,
    xs: Observations | None = None,
    *,
    draws: ArrayLike | None = None,
    n_samples: int = 99,
    chains: Proposal | None = Chains(),
    null: nulls.Null = nulls.HadamardWild(),
    level: float = 0.05,
    coordinates: bool | None = None,
    coverage: Coverage | None = None,
    discrete: Mapping[str | int, ArrayLike] | None = None,
    **options: Unpack[PairOptions],
) -> PosteriorReport:
    """Test a posterior on simulated pairs (theta, x), and report the errors of each parameter.

    The tests depend on what the posterior offers. If it has log densities, `calibration_test` tests
    its calibration and, with x as ``inputs``, whether it is right given x. If it has only scores,
    `kccsd_test` and `kcsd_test` replace these two tests. Ranks (SBC) and coverage are computed
    among draws if the posterior can be sampled without MCMC, otherwise among exchangeable
    candidates from chains that start at theta and need no burn-in. To run one test of the scores,
    use ``pairs = score_pairs(..)`` and ``jaxcal.kccsd_test(key, pairs.scores, pairs.thetas)``.

    Args:
        key: Random key: typed, legacy or an integer.
        posterior: Anything that `score_pairs` takes. Or its result, a `ScoredPairs`; then thetas,
            xs and the options of `score_pairs` must be omitted.
        thetas: [n, d] parameters drawn from the prior.
        xs: [n, ...] observations simulated from them.
        draws: Independent draws of each posterior, [n, m, d] or another form of `check_draws`.
        n_samples: Number of draws made of each posterior, if it can be sampled without MCMC.
        chains: Proposal of candidates for a posterior that needs MCMC; None omits its ranks and
            coverage. A `jaxcal.candidates.Chains` without nodes gets draws of the prior as nodes.
        null: Null distribution of the statistics; not `jaxcal.nulls.DependentWild`, because the
            diagnosis, ranks and coverage assume independent pairs.
        level: Level of the verdict from all p-values; confidence limits are at 1 - level.
        coordinates: Whether `kcsd_test` gives a p-value for each parameter, at d times the cost;
            None: only for up to 2000 pairs. Ignored for posteriors with log densities.
        coverage: A result of `jaxcal.coverage.coverage` to include in the verdict.
        discrete: All values of each discrete parameter, by its name or column:
            ``{"model": [0, 1, 2]}``. Its probabilities are tested given x and all other parameters,
            and the continuous parameters are tested given the discrete ones. ``bounds``, and a
            ``prior`` that is a numpyro distribution, must cover the continuous parameters only.
            Needs log densities of one theta given one x, or a torch posterior (MNPE).
        **options: Those of `score_pairs`: ``prior``, ``bounds``, ``summaries`` (needed for images
            and long series), ``names`` of the parameters, ``n_nodes``, ``exclude_invalid_x``.

    Returns:
        `PosteriorReport`, which prints the errors in words; ``verdict`` is "rejected", "not
        rejected" or "cannot tell", ``conclusion`` says it in a sentence, and ``figure()`` draws the
        errors. Raises the errors of `score_pairs`.

    Cost per pair: about 190 log densities, n_nodes + 6 gradients and 5 d Hessian-vector products.
    Ranks add 5 d such products, and n_samples log densities with gradients or, for chains, 384 log
    densities and 200 gradients; discrete parameters add one log density per value. Linear in n.

    Source: see `jaxcal.calibration_test` and `jaxcal.candidates.exchangeability_test`; for tests
    of scores, Glaser et al. (2023), with the prior as base measure (Section 4.1).

    Example:
        >>> import jax, numpyro.distributions as dist
        >>> from jaxcal import sbi
        >>> prior = dist.Normal(jax.numpy.zeros(2), 1.0).to_event(1)
        >>> thetas = prior.sample(jax.random.key(0), (100,))
        >>> xs = thetas + jax.random.normal(jax.random.key(1), (100, 2))
        >>> def log_prob(theta, x):  # twice as narrow as the exact posterior, N(x / 2, 1 / 2)
        ...     return -4 * ((theta - x / 2) ** 2).sum()
        >>> report = sbi.check_posterior(2, log_prob, thetas, xs, prior=prior, names=["a", "b"])
        >>> report.verdict, report.conclusion
        ('rejected', 'not calibrated, so not the posterior given x either')
        >>> [text.split(":")[0] for text in report.findings()]
        ['a is overconfident (too narrow) by itself', 'b is overconfident (too narrow) by itself']
    """
    key, level = convert.key(key), checks.level(level)
    if isinstance(null, nulls.DependentWild):
        raise ValueError(
            "null: the diagnosis, ranks and coverage of a posterior take pairs as independent; for "
            "pairs in temporal order, take calibration_test or, with scores, kccsd_test"
        )
    if coverage is not None and not isinstance(coverage, Coverage):
        raise TypeError(
            f"coverage: wanted a result of jaxcal.coverage.coverage, got {convert.say(coverage)}"
        )
    n_samples = convert.integer(n_samples, "n_samples")
    plain = isinstance(chains, type) or not hasattr(type(chains), "__dataclass_fields__")
    if chains is not None and (plain or not isinstance(chains, Proposal)):
        raise TypeError(
            f"chains: wanted a module such as jaxcal.candidates.Chains(), got {convert.say(chains)}"
        )
    mixed = split(posterior, thetas, xs, discrete, options)
    if mixed is not None:
        if draws is not None:
            raise ValueError(
                "draws: not allowed with discrete; sbi.check_draws also ranks discrete parameters"
            )
        posterior, thetas, xs, options = mixed.continuous
    if isinstance(posterior, ScoredPairs):
        data = {"thetas": thetas, "xs": xs, **options}
        if passed := [k for k, value in data.items() if value is not None and value is not False]:
            raise TypeError(
                f"{', '.join(passed)}: not allowed with scored pairs, pass it to sbi.score_pairs"
            )
        pairs = posterior
    elif thetas is None or xs is None:
        raise TypeError("thetas and xs: wanted the pairs that the posterior is tested on")
    else:
        pairs = score_pairs(jax.random.fold_in(key, 0), posterior, thetas, xs, **options)
    tests = _tests(key, pairs, null, level, coordinates)
    calibrated, given_x = _diagnosed(key, tests, pairs, level)
    ranks = ranks_of(jax.random.fold_in(key, 3), pairs, draws, n_samples, chains, level)
    exchanged = _exchanged(jax.random.fold_in(key, 5), pairs, null, level)
    of_discrete = () if mixed is None else mixed.tests(jax.random.fold_in(key, 4), pairs, level)
    return PosteriorReport(calibrated, given_x, coverage, ranks, exchanged, of_discrete)


def _exchanged(key: Key, pairs: ScoredPairs, null: nulls.Null, level: float) -> Array | None:
    """Return `exchange_evidence`; None without log densities. All entries are set to -infinity if
    p <= `STILL_WRONG` in a test of calibration after the swap with the largest entry."""
    if pairs.predictions is None:
        return None
    ratios = exchange_evidence(pairs.predictions, pairs.thetas, pairs.space)
    if ratios is None or not jnp.nanmax(ratios) >= -jnp.log(level):
        return ratios
    j, k = jnp.unravel_index(jnp.nanargmax(ratios), ratios.shape)
    order = jnp.arange(len(pairs.names)).at[j].set(k).at[k].set(j)
    swapped = replace(pairs, thetas=pairs.thetas[:, order])
    calibrated, _ = _tests(key, swapped, null, level)  # the program of the tests before the swap
    return ratios if calibrated.p_value > STILL_WRONG else jnp.full_like(ratios, -jnp.inf)


def _tests(
    key: Key, pairs: ScoredPairs, null: nulls.Null, level: float, coordinates: bool | None = None
) -> list[TestResult]:
    """Return the test of calibration and the test given x: `calibration_test` without and with x as
    inputs, from one fit; or `kccsd_test` and `kcsd_test` if there are only scores."""
    keys = [jax.random.split(jax.random.fold_in(key, k))[0] for k in (1, 2)]
    thetas, options = pairs.thetas, {"null": null, "level": level}
    if pairs.predictions is not None:
        asked = None, inputs_of(pairs)
        return of_one_fit(keys[0], pairs.predictions, thetas, asked, pairs.names, **options)
    split = len(thetas) <= SPLIT_UP_TO if coordinates is None else coordinates
    features = pairs.features.astype(thetas.dtype)
    return [
        kccsd_test(keys[0], pairs.scores, thetas, **options),
        kcsd_test(keys[1], pairs.scores, thetas, features, coordinates=split, **options),
    ]


def _diagnosed(
    key: Key, tests: list[TestResult], pairs: ScoredPairs, level: float
) -> list[PosteriorResult]:
    """Return the results of both tests of the pairs together with diagnoses of their errors."""
    keys = [jax.random.split(jax.random.fold_in(key, k))[1] for k in (1, 2)]
    features = pairs.features.astype(pairs.thetas.dtype)
    searched = features if features.shape[1] <= MOST_FEATURES else None
    given_x, by_ranks = tests[1], None
    if given_x.ranks is not None:
        draws = N_POINTS if is_distribution(pairs.predictions) else None
        by_ranks = diagnosed(keys[1], given_x.ranks[:, 1:], searched, level, draws)
        by_ranks = by_ranks if given_x.table is None else also_by(given_x.table, by_ranks, level)
    diagnoses = _diagnoses(keys, pairs.thetas, pairs.scores, features, level)
    asked = tests, diagnoses, (None, by_ranks), ("calibrated", "conditional")
    return [
        PosteriorResult(test, of, ranks, pairs.features, question, pairs.names, pairs.notes)
        for test, of, ranks, question in zip(*asked, strict=True)
    ]


@LightJit
def _diagnoses(
    keys: list[Key], thetas: Array, scores: Scores, features: Array, level: Scalar
) -> tuple[Diagnosis, Diagnosis]:
    """Return the diagnoses that belong to the test of calibration and to the test given x."""
    claims = _claims(thetas, scores)
    options: dict[str, Any] = {"level": level}
    if claims is not None:
        options |= {"exact": claims.exact, "covariances": claims.covariances}
        options["claimed_centers"] = claims.centers
    at_nodes: Array = scores.at_nodes.reshape(len(thetas), -1)
    searched = features if features.shape[1] <= MOST_FEATURES else None
    both = jnp.concatenate([at_nodes, features], axis=1)  # at nodes they are functions of x, too
    return (
        diagnose(keys[0], thetas, scores.at_targets, at_nodes, None, **options),
        diagnose(keys[1], thetas, scores.at_targets, both, searched, **options),
    )


@LightJit
def _claims(thetas: Array, scores: Scores) -> Claims | None:
    """Return means and covariances of the posteriors from scores; None if nodes are too few."""
    units = Units.of(thetas)
    nodes, at_nodes = units.points(scores.nodes), units.scores(scores.at_nodes)
    at_targets = units.scores(scores.at_targets)
    fitted = attribution.claims(None, nodes, at_nodes, units.points(thetas), at_targets)
    if fitted is None:
        return None
    square = units.scale[:, None] * units.scale[None]
    centers = units.original(fitted.centers)
    return fitted._replace(centers=centers, covariances=fitted.covariances * square[None])
