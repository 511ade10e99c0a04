r"""Test a posterior while pairs are simulated: stop as soon as there is enough evidence against it.

If the posterior is right, the normal score :math:`\nu_t` of the rank of a parameter in pair t is
standard normal given x and all earlier pairs. For any density :math:`q_t(\nu_t \mid x_t)` that is
predicted from earlier pairs, :math:`E_t = \prod_{s \le t} q_s(\nu_s \mid x_s) / \phi(\nu_s)` is a
martingale with mean 1, so :math:`P(\sup_t E_t \geq 1 / \alpha) \leq \alpha` (Ville): the level
:math:`\alpha` holds however often E is computed. Here E is the mean over ranked statistics and
four kinds of q. Three are predictive Student t densities of Bayesian linear regressions: on a
constant, on each input alone, and on all inputs. The fourth is a normal density whose log standard
deviation is linear in the log of the posterior's standard deviation.

Source: Ville (1939); Grünwald, de Heide and Koolen (2024) for predictive densities as q.
"""

import math
from typing import Any, ClassVar, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import stats
from jaxtyping import Array, Float

from jaxcal.entries.moments import Scaling
from jaxcal.entries.ranks import normal, seen
from jaxcal.numerics import at_least
from jaxcal.read import Standardized, Units, checks, convert
from jaxcal.read.observations import drawn_order, n_repeated
from jaxcal.results import JudgedResult, Sentences, recorded
from jaxcal.results.notes import TABLE, memory
from jaxcal.sbi import suspicions
from jaxcal.sbi.pairs import PairOptions, ScoredPairs, inputs_of, score_pairs
from jaxcal.sbi.ranks import ranks_among_draws
from jaxcal.typing import ArrayLike, Key, KeyLike, Observations, PosteriorLike, Scalar

SLOPE = 0.3  # prior variance of an intercept or slope; that of all inputs together is as large
DEGREES = 10.0  # of the prior of the variance, which has mean 1
MOST_INPUTS = 100  # in the regression on all inputs, whose memory is quadratic in their number
# alternatives: log deviations of the scores, and their slopes along the claimed log deviation
LEVELS, SPREADS = (-0.2, 0.0, 0.2), (-0.5, -0.25, 0.25, 0.5)
LEAST_SCORE = 1e-3  # smaller absolute scores count as this in logarithms
LEAST_NEW = 5  # fewest pairs of a call that count as repeats if all their inputs occurred before
LEAST_PAIRS = 20  # in the first call: its mean and deviation of x scale the x of all calls


class Monitored(JudgedResult):
    """Result of `monitor`: the evidence E, a mean of likelihood ratios, after each of n pairs.

    Attributes:
        log_evidence: Natural logarithm of E after each pair, [n]. The pairs of each call are in
            random order.
        normal_scores: Normal scores of the ranks of the r = 1 + d ``statistics``, [n, r].
        inputs: Features of x, standardized by ``center`` and ``scale``, [n, q].
        widths: Logs of the posteriors' standard deviations, [n, r]: their mean over parameters,
            then one for each parameter; standardized like ``inputs``.
        center, scale: Mean and deviation of inputs and widths in the first call, [q + r].
        slopes: Regressions of the normal scores: intercept, then the slope along each input alone,
            [r, 1 + q]; positive if the posterior is too low.
        spreads: [r, 2], log standard deviation of the normal scores, then its slope along widths.
            The log is > 0 if the posterior is too narrow. If above log 2, it is underestimated.
        statistics: Names of what is ranked: "density" or "distance", then each parameter.
        level: Largest probability of ever rejecting a right posterior.
        notes: As in `ScoredPairs`; of each code the numbers of the last call that has it.
    """

    _plots: ClassVar[tuple[str, ...]] = ("sbi.evidence",)
    _long: ClassVar[tuple[str, ...]] = ("log_evidence", "normal_scores", "inputs", "widths")

    log_evidence: Float[Array, " n"]
    normal_scores: Float[Array, "n r"]
    inputs: Float[Array, "n q"]
    widths: Float[Array, "n r"]
    center: Float[Array, " c"]
    scale: Float[Array, " c"]
    slopes: Float[Array, "r p"]
    spreads: Float[Array, "r 2"]
    statistics: tuple[str, ...] = eqx.field(static=True)
    level: float = eqx.field(static=True)
    notes: dict[str, Any] = eqx.field(static=True, converter=suspicions.PairNotes)

    @property
    def p_value(self) -> Scalar:
        """P-value, valid at any time: 1 over the largest E so far, at most 1."""
        return jnp.minimum(1.0, jnp.exp(-jnp.max(self.log_evidence)))

    @property
    def rejected_at(self) -> int | None:
        """Number of pairs after which E first reached 1 / level, or None."""
        reached = np.asarray(self.log_evidence) >= -math.log(self.level)
        return int(np.argmax(reached)) + 1 if reached.any() else None

    def _sentences(self) -> Sentences:
        lag = float(np.max(memory(np.asarray(self.normal_scores).T[..., None])))
        text = (
            f"scores of neighbouring pairs have correlation {lag:.2g}: calls came in an order that "
            f"tells of the parameters, as sorted ones or a chain do, and right posteriors are then "
            f"rejected: put all pairs in random order first [dependent-rows]"
        )
        notes = [(note, True) for note in suspicions.in_sentences(self.notes)]
        return [(text, lag > TABLE["dependent-rows"].above), *notes]

    def _no_verdict(self) -> Sentences:
        lost = np.any(np.isnan(np.asarray(self.log_evidence)))
        return [("ranks are NaN: a log density or draw is not finite", lost)]

    def _lines(self) -> list[str]:
        logs = np.asarray(self.log_evidence, float)
        n, e, stop = len(logs), np.exp(np.minimum(700, logs[-1])), self.rejected_at
        lines = [
            f"monitor: E = {e:.3g} after {n} pairs, rejected at {1 / self.level:.3g}",
            f"  {self.verdict}"
            + (f" after {stop} pairs" if stop else "")
            + f" (anytime p = {np.exp(-np.clip(np.max(logs), 0, 700)):.2g})",
        ]
        slopes = np.asarray(self.slopes)
        k, j = np.unravel_index(np.argmax(np.abs(slopes)), slopes.shape)
        side = "" if k == 0 else f"claimed too {'low' if slopes[k, j] > 0 else 'high'} by "
        size = f"{slopes[k, j]:+.2f}" if k == 0 else f"{abs(slopes[k, j]):.2f}"
        where = "" if j == 0 else f" for each deviation of input {j - 1}"
        factors, along = np.exp(np.asarray(self.spreads)[1:]).T
        i = int(np.argmax(np.abs(np.log(factors)) + np.abs(np.log(along))))
        return [
            *lines,
            f"  largest fitted error: {self.statistics[k]} {side}{size} deviations{where}",
            f"  fitted spread: {self.statistics[1 + i]} {factors[i]:.2f} times the claimed one, "
            f"and {along[i]:.2f} times that for each deviation of the claimed log deviation",
        ]


@recorded
def monitor(
    key: KeyLike,
    posterior: PosteriorLike,
    thetas: ArrayLike,
    xs: Observations,
    *,
    so_far: Monitored | None = None,
    n_samples: int = 99,
    level: float = 0.05,
    **options: Unpack[PairOptions],
) -> Monitored:
    """Update the evidence against a posterior with new pairs, and return it with a verdict.

    Call it after every few simulations and stop at ``verdict == "rejected"``: repeated calls do not
    raise the probability of rejecting a right posterior above the level.

    Args:
        key: Random key, a new one for each call: typed, legacy or an integer.
        posterior: What `score_pairs` takes, the same in each call.
        thetas: [k, d] parameters from the prior, k >= 2 new ones in each call.
        xs: [k, ...] observations simulated from them, or a dict of such arrays, in any order of
            its names: its numbers are the inputs in the order of the sorted names.
        so_far: Result of the previous call; None in the first call, which needs at least 20 pairs.
        n_samples: Number of draws of each posterior, if it is sampled without MCMC. Otherwise ranks
            are among points weighted by the log density, as in `jaxcal.calibration_test`.
        level: Largest probability of ever rejecting a right posterior; ignored with ``so_far``.
        **options: Those of `score_pairs`: ``prior`` (without it, each call uses some pairs as
            nodes and does not test them), ``summaries`` (the inputs of the regressions) and others.

    Returns:
        `Monitored` of all pairs so far; ``result.save(path)`` and ``jaxcal.load(path)`` store it.

    Cost: ranks of the k new pairs, and O(n q (q + r)) for the regressions (O(n q r) for q > 100),
    with n pairs so far, q features of x, and r = 1 + d ranked statistics.

    Source: Ville (1939) for the level at every time.

    Example:
        >>> import jax, numpyro.distributions as dist
        >>> from jaxcal import sbi
        >>> prior = dist.Normal(jax.numpy.zeros(2), 1.0).to_event(1)
        >>> def log_prob(theta, x):  # the exact posterior has variance 1 / 2
        ...     return -4 * ((theta - x / 2) ** 2).sum()
        >>> evidence = None
        >>> for batch in range(4):
        ...     thetas = prior.sample(jax.random.key(batch), (25,))
        ...     xs = thetas + jax.random.normal(jax.random.key(100 + batch), (25, 2))
        ...     evidence = sbi.monitor(batch, log_prob, thetas, xs, so_far=evidence, prior=prior)
        >>> evidence.verdict
        'rejected'
    """
    key, level = convert.key(key), checks.level(level)
    if not isinstance(so_far, Monitored | None):
        raise TypeError(
            f"so_far: wanted the result of the call before, or None, got {type(so_far).__name__}"
        )
    n_samples = convert.integer(n_samples, "n_samples", least=2)
    pairs_key, rank_key = jax.random.split(key)
    pairs = score_pairs(pairs_key, posterior, thetas, xs, **options)
    scores, widths, statistics = _scores(rank_key, pairs, n_samples)
    features = inputs_of(pairs)
    order = drawn_order(jax.random.fold_in(key, 2), len(features), pairs.thetas, features)
    columns = jnp.concatenate([features, widths.astype(features.dtype)], axis=1)[order]
    if so_far is None:
        if len(features) < LEAST_PAIRS:
            raise ValueError(
                f"thetas: the first call wants at least {LEAST_PAIRS} pairs, got {len(features)}"
            )
        scaling = Scaling.of(columns)
        before = np.zeros((0, scores.shape[1])), np.zeros((0, columns.shape[1]))
    else:
        _check_same(so_far, statistics, features)
        scaling, level = Scaling(so_far.center, so_far.scale), so_far.level
        before = so_far.normal_scores, np.concatenate([so_far.inputs, so_far.widths], axis=1)
    after = scores[order], scaling(columns)
    _check_new(pairs, before[1][:, : features.shape[1]], after[1][:, : features.shape[1]])
    # on the host: under jit each number of rows would be compiled separately
    scores, columns = (
        jnp.asarray(np.concatenate([old, new]).astype(new.dtype))
        for old, new in zip(before, after, strict=True)
    )
    inputs, widths = jnp.split(columns, [features.shape[1]], axis=1)
    log_evidence, slopes, spreads = evidence(scores, inputs, widths)
    notes = ({} if so_far is None else so_far.notes) | pairs.notes
    notes.pop("few-observations", None)  # of this call alone
    return Monitored(
        log_evidence,
        scores,
        inputs,
        widths,
        *scaling,
        slopes,
        spreads,
        statistics,
        level,
        notes,
    )


def _check_new(pairs: ScoredPairs, before: Array | np.ndarray, after: Array) -> None:
    """Raise ValueError if ``pairs`` has duplicates, or if all rows of ``after`` (new inputs) are in
    ``before`` (earlier inputs), neither has ties, and ``after`` has at least `LEAST_NEW` rows."""
    again = int(n_repeated(pairs.thetas, pairs.features))
    old, new = ({row.tobytes() for row in np.asarray(rows)} for rows in (before, after))
    continuous = len(old) == len(before) and len(new) == len(after) >= LEAST_NEW
    if again or (continuous and new <= old):
        raise ValueError(
            f"thetas and xs: {again or len(new)} of {len(after)} pairs repeat others of this call "
            f"or of earlier ones: pass each once"
        )


def _check_same(so_far: Monitored, statistics: tuple[str, ...], features: Array) -> None:
    if so_far.statistics != statistics or so_far.inputs.shape[1] != features.shape[1]:
        raise ValueError(
            f"so_far: it ranks {', '.join(so_far.statistics)} with {so_far.inputs.shape[1]} inputs,"
            f" and these pairs have {', '.join(statistics)} with {features.shape[1]}: pass the "
            f"result of the same posterior, prior, summaries and names"
        )


def _scores(key: Key, pairs: ScoredPairs, n_samples: int) -> tuple[Array, Array, tuple[str, ...]]:
    """Return normal scores [n, r] of randomized ranks, log posterior deviations [n, r], r names.

    Ranks are among draws or weighted points. Deviations are of the set {theta_i, draws} or of the
    points. Given the deviations, the ranks under a right posterior are uniform.
    """
    keys = jax.random.split(key)
    if pairs.sampler is not None:
        draws = pairs.sample(keys[0], n_samples + 1)
        ranks = ranks_among_draws(keys[1], draws, pairs.thetas)
        together = jnp.concatenate([pairs.thetas[:, None], draws[:, :-1]], axis=1)
        widths = _log_deviations(jnp.std(together, axis=1))
        return normal(ranks), widths, ("distance", *pairs.names)
    if pairs.predictions is None:
        raise TypeError("posterior: ranks need log densities or draws, and it has neither")
    nodes = pairs.scores.nodes if pairs.prior_draws is None else pairs.prior_draws
    ranks, widths = _ranks_near(keys[0], pairs, nodes)
    return normal(ranks), widths, ("density", *pairs.names)


def _log_deviations(deviations: Float[Array, "n d"]) -> Float[Array, "n r"]:
    """Return (mean_k log s_k, log s_1, .., log s_d) for each row s of ``deviations``; r = 1 + d."""
    logs = jnp.log(at_least(deviations, jnp.finfo(deviations.dtype).tiny))
    return jnp.concatenate([jnp.mean(logs, axis=1, keepdims=True), logs], axis=1)


@eqx.filter_jit
def _ranks_near(
    key: Key, pairs: ScoredPairs, nodes: Array
) -> tuple[Float[Array, "n r"], Float[Array, "n r"]]:
    units = Units.of(nodes)
    thetas = pairs.thetas
    assert pairs.predictions is not None
    densities = Standardized(pairs.predictions, units, thetas.shape[1:])
    near = seen(key, densities, units.points(thetas), thetas)
    return near.ranks.shown, _log_deviations(near.claims[1] * units.scale[None])


def evidence(
    scores: Float[Array, "n r"], inputs: Float[Array, "n q"], widths: Float[Array, "n r"]
) -> tuple[Float[Array, " n"], Float[Array, "r p"], Float[Array, "r 2"]]:
    """Return ``log_evidence``, ``slopes`` and ``spreads`` of `Monitored` for all pairs, from its
    ``normal_scores``, ``inputs`` and ``widths``. Rows are padded with zeros to a power of two, so
    that a growing n rarely causes recompilation."""
    n = len(scores)
    extra = (0, 2 ** max(6, math.ceil(math.log2(n))) - n), (0, 0)
    ones = np.pad(np.ones((n, 1), scores.dtype), extra)
    padded = (jnp.pad(a.astype(scores.dtype), extra) for a in (scores, inputs, widths))
    logs, *fitted = _evidence(jnp.asarray(ones), *padded)
    return logs[:n], *fitted


@jax.jit
def _evidence(
    ones: Float[Array, "n 1"],
    scores: Float[Array, "n r"],
    inputs: Float[Array, "n q"],
    widths: Float[Array, "n r"],
) -> tuple[Float[Array, " n"], Float[Array, "r p"], Float[Array, "r 2"]]:
    q = inputs.shape[1]
    none, intercepts = _bets(ones, jnp.full(1, SLOPE, scores.dtype), scores)
    kinds, slopes = [none, _spread_bets(ones, scores, widths)], intercepts
    if q:
        prior = jnp.full(2, SLOPE, scores.dtype)

        def along(column: Array) -> tuple[Array, Array]:
            return _bets(jnp.concatenate([ones, column[:, None]], axis=1), prior, scores)

        alone, fitted = jax.lax.map(along, inputs.T)
        kinds.append(jax.nn.logsumexp(alone, axis=0) - math.log(q))
        slopes = jnp.concatenate([intercepts, fitted[:, :, 1].T], axis=1)
    if 1 < q <= MOST_INPUTS:
        prior = jnp.concatenate([jnp.full(1, SLOPE), jnp.full(q, SLOPE / q)]).astype(scores.dtype)
        kinds.append(_bets(jnp.concatenate([ones, inputs], axis=1), prior, scores)[0])
    each = jax.nn.logsumexp(jnp.stack(kinds), axis=0) - math.log(len(kinds))
    return (
        jax.nn.logsumexp(each, axis=1) - math.log(scores.shape[1]),
        slopes,
        _spreads(ones, scores, widths),
    )


def _spread_bets(
    ones: Float[Array, "n 1"], scores: Float[Array, "n r"], widths: Float[Array, "n r"]
) -> Float[Array, "n r"]:
    """Return log E after each pair. E is the mean, over a in `LEVELS` and b in `SPREADS`, of the
    likelihood ratio N(0, exp(2 (a + b width))) / N(0, 1) of scores. ``ones``: as in `_spreads`."""
    grid = jnp.asarray([(a, b) for a in LEVELS for b in SPREADS], scores.dtype)
    logs = grid[:, :1, None] + grid[:, 1:, None] * widths[None]
    gains = scores[None] ** 2 / 2 * (1 - jnp.exp(-2 * logs)) - logs
    each = jnp.cumsum(gains * ones[None], axis=1)
    return jax.nn.logsumexp(each, axis=0) - math.log(len(grid))


def _spreads(
    ones: Float[Array, "n 1"], scores: Float[Array, "n r"], widths: Float[Array, "n r"]
) -> Float[Array, "r 2"]:
    """Return the log standard deviation of scores at width 0, and its slope along the width (0 for
    constant widths), from a regression of log |score - mean|. ``ones``: 0 in rows of padding."""
    n = jnp.sum(ones)
    scores = scores - jnp.sum(scores * ones, axis=0, keepdims=True) / n
    gaps = ones * (widths - jnp.sum(widths * ones, axis=0, keepdims=True) / n)
    sizes = jnp.log(at_least(jnp.abs(scores), LEAST_SCORE))
    squares = jnp.sum(gaps**2, axis=0)
    slope = jnp.sum(gaps * sizes, axis=0) / jnp.where(squares > 0, squares, 1)
    scaled = ones * scores**2 * jnp.exp(-2 * slope[None] * widths)
    return jnp.stack([jnp.log(jnp.sum(scaled, axis=0) / n) / 2, slope], axis=1)


def _bets(
    features: Float[Array, "n p"], prior: Float[Array, " p"], scores: Float[Array, "n r"]
) -> tuple[Float[Array, "n r"], Float[Array, "r p"]]:
    """Return log E_t [n, r], E_t = prod_{s <= t} q_s(score_s) / phi(score_s), with q_s predicted by
    a Bayesian regression of earlier scores on features, and the final coefficients [r, p]."""
    r, p = scores.shape[1], features.shape[1]

    def step(carry: tuple[Array, ...], row: tuple[Array, Array]) -> tuple[tuple, Array]:
        covariance, mean, half, squares, log = carry
        f, score = row
        along = covariance @ f
        size = 1 + f @ along
        error = score - mean @ f
        scale = jnp.sqrt(squares / half * size)
        log = log + stats.t.logpdf(error, 2 * half, scale=scale) - stats.norm.logpdf(score)
        mean = mean + (error / size)[:, None] * along[None]
        covariance = covariance - along[:, None] * along[None] / size
        return (covariance, mean, half + 0.5, squares + error**2 / (2 * size), log), log

    half = jnp.asarray(DEGREES / 2, scores.dtype)
    start = (
        jnp.diag(prior),
        jnp.zeros((r, p), scores.dtype),
        half,
        jnp.full(r, half),
        jnp.zeros(r, scores.dtype),
    )
    (_, mean, *_), logs = jax.lax.scan(step, start, (features, scores))
    return logs, mean
