"""Notes on possible problems of a posterior's pairs, prior, observations and scores.

The functions return a dict from codes to numbers: one, or a tuple of numbers and names, for the
sentence of the code in `SENTENCES`. A note of 0, False or () does not apply.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.read import Scores, convert
from jaxcal.read.observations import copies, fingerprints, repeated_rows
from jaxcal.read.scores import log_densities_at
from jaxcal.results import counted
from jaxcal.sbi.space import Space, evenly_filled, is_of_torch
from jaxcal.typing import ArrayLike, Predictions, PriorLike

FEW = 50  # number of pairs below which there is a warning
UNLIKELY = 1e-6  # p-value below which thetas do not look like draws of the prior
PRIOR_DRAWS = 2000
MOST_EXCHANGED = 10  # largest number of parameters whose exchanges are computed
SENTENCES = {  # of each code on pairs
    "ensemble-as-potential": "an ensemble of unnormalized posteriors was tested as its potential, "
    "which weighs members by their evidence too; .sample() does not, and draws another mixture",
    "leaking-ensemble": "an ensemble was tested without its members' corrections for mass outside "
    "of the prior, which raise the weights of members that leak: if some do, .sample() draws "
    "another mixture",
    "given-discrete": "the discrete {} {is|are} given to the continuous parameters, as x[{}]"
    "{| and on}",
    "coarse-observations": "{} {number|numbers} of x {varies|vary} so little beside {its|their} "
    "size that JAX's float type rounds differences away, which alone may reject right posteriors: "
    "subtract a common number from x before, also in training, or use float64",
    "excluded-pairs": "{} {pair|pairs} with NaN or infinite x {was|were} left out",
    "embedded-observations": "observations are compared by the network's own embedding of them, {} "
    "numbers of {}: what it leaves out, this question leaves out too",
    "repeated-parameters": "{} of {} rows of thetas repeat another, with other xs: if these were "
    "simulated again, pairs are not independent and p-values too small: keep one simulation of "
    "each; if thetas were rounded, their repeats are no error",
    "bounded-parameters": "{} {parameter|parameters} with bounds: tested after a change to the "
    "whole line (logit between two bounds, log from one), scores with the log-Jacobian, since a "
    "density with an edge violates the identity that the test rests on",
    "unknown-bounds": "{} fills an interval evenly, as under a uniform prior, but no bounds are "
    "known: a density with an edge violates the identity that the test rests on; pass prior= (a "
    "distribution) or bounds=(low, high)",
    "another-prior": "prior= contradicts the posterior's own prior: their densities at the thetas "
    "differ. A posterior can be calibrated under one of them only: simulate from the one that it "
    "was trained with",
    "unlike-prior": "thetas do not look like draws of the prior (first in parameter {}: mean "
    "{:.3g} and sd {:.3g}, prior {:.3g} and {:.3g}): {}were they standardized, are they in other "
    "units, or from another prior?",
    "unlike-training": "xs do not look like those that the network was trained on (first in number "
    "{}: mean {:.3g} and sd {:.3g}, in training {:.3g} and {:.3g}): were they standardized, or are "
    "they in other units?",
    "no-prior": "no prior was given: the parameters of {} pairs that the key chose are the base "
    "points, and these pairs were not tested",
    "few-observations": "only {} pairs were tested: small errors of the posterior cannot be seen",
    "nonfinite-scores": "{} {posterior has|posteriors have} a NaN or infinite score, or a density "
    "of 0 or NaN, at {its|their} own parameter: is {its|their} density positive and differentiable "
    "wherever the prior is?",
    "scores-at-base-points": "{} {posterior has|posteriors have} NaN or infinite scores, or a "
    "density of 0 or NaN, at base points drawn from the prior: {does it|do they} return NaN or "
    "-inf outside a smaller box? Pass a prior= that they all cover",
    "clipped-scores": "{} of {} scores are exactly 0 in every parameter: is the log density "
    "clipped or constant there? Such scores are wrong: leave it as it is",
    "few-pairs-decide": "2 % of the pairs hold {:.0f} % of squared scores: a few pairs decide, and "
    "the tests see little of the others; posteriors that are far too narrow look like this. "
    "Compare the coverage (jaxcal.coverage) if you can draw from them",
}


class PairNotes(dict[str, Any]):
    """Notes on pairs: a dict from codes to numbers or words that is hashable, as results are
    arguments of compiled programs."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))


def in_sentences(notes: Mapping[str, Any]) -> list[str]:
    """Return the sentences of notes on pairs, in the order of `SENTENCES`."""
    said = []
    for code, sentence in SENTENCES.items():
        value = notes.get(code)
        if isinstance(value, str):  # a whole sentence, from a file of an earlier version
            said.append(value)
        elif value:
            parts = value if isinstance(value, tuple) else (value,)
            said.append(f"{counted(sentence, *parts)} [{code}]")
    return said


@jax.jit
def _repeats(thetas: Array, features: Array) -> tuple[Array, Array]:
    """Return the number of repeated thetas and of repeated pairs; each 0 if it may be chance."""
    n = len(thetas)
    alone = repeated_rows(thetas, fingerprints(thetas, n), jnp.zeros(n, jnp.uint32))
    return alone, jnp.sum(copies(thetas, features))


def simulated_again(thetas: Array, features: Array) -> dict[str, Any]:
    """Return a note if thetas repeat with different xs (the tests report repeated pairs)."""
    count, with_features = map(int, _repeats(thetas, features))
    return {"repeated-parameters": (count, len(thetas))} if count > with_features else {}


def about_space(
    space: Space, bounds: ArrayLike | None, thetas: Array, names: tuple[str, ...]
) -> dict[str, Any]:
    """Return the number of parameters with bounds, and the name of one that seems to lack them."""
    notes: dict[str, Any] = {"bounded-parameters": int(np.sum(space.bounded))}
    even = [k for k in evenly_filled(thetas) if not space.bounded[k]]
    if even and bounds is None:
        notes["unknown-bounds"] = (names[even[0]],)
    return notes


def about_rounding(unconverted: Any, xs: Any, valid: np.ndarray) -> dict[str, Any]:
    """Return the count of numbers of x that the conversion of ``unconverted`` to ``xs`` changed by
    > .005 standard deviations of their column, from at most about 1,000 of the ``valid`` rows."""
    leaves = (
        zip(unconverted.values(), xs.values(), strict=True)
        if isinstance(xs, dict)
        else [(unconverted, xs)]
    )
    rows, count = np.flatnonzero(valid)[:: valid.sum() // 1000 + 1], 0
    for exact, rounded in leaves:
        before = np.asarray(convert.array(exact, "xs"))
        if before.dtype != rounded.dtype:
            before = before[rows].astype(float)
            moved = np.max(np.abs(before - np.asarray(rounded[rows])), axis=0)
            varies = np.ptp(before, axis=0) > 0
            count += int(np.sum(varies & (moved > before.std(axis=0) / 200)))
    return {"coarse-observations": count}


def about_scores(scores: Scores) -> dict[str, Any]:
    """Return the numbers of scores that are not finite, and of those that are exactly 0."""
    at, at_nodes = np.asarray(scores.at_targets), np.asarray(scores.at_nodes)
    still = np.concatenate([at[:, None], at_nodes], axis=1)
    still = np.all(still == 0, axis=2)
    return {
        "nonfinite-scores": int(np.sum(~np.all(np.isfinite(at), axis=1))),
        "scores-at-base-points": int(np.sum(~np.all(np.isfinite(at_nodes), axis=(1, 2)))),
        "clipped-scores": (int(still.sum()), still.size) if 0 < still.sum() < still.size else (),
    }


def about_tails(at: np.ndarray) -> dict[str, Any]:
    """Return the percentage of a column's sum of squares in 2 % of n >= 100 rows, if it is > 50."""
    squares = np.sort(at.astype(float) ** 2, axis=0)[::-1]
    total = squares.sum(axis=0)
    if len(at) < 100 or not np.all(np.isfinite(total) & (total > 0)):
        return {}
    share = float(np.max(squares[: len(at) // 50].sum(axis=0) / total))
    return {"few-pairs-decide": 100 * share} if share > 0.5 else {}


def about_count(n: int) -> dict[str, Any]:
    """Return the number of pairs if there are fewer than `FEW`."""
    return {"few-observations": n} if n < FEW else {}


def about_prior(
    prior: PriorLike | None,
    trained_with: PriorLike | None,
    thetas: np.ndarray,
    features: np.ndarray,
    draws: np.ndarray | None,
) -> dict[str, Any]:
    """Return a note if ``prior`` differs from the posterior's prior ``trained_with``, and one if
    Kolmogorov-Smirnov tests reject that thetas are distributed like ``draws`` of the prior."""
    notes: dict[str, Any] = {}
    if trained_with is not None and prior is not trained_with and prior is not None:
        here, there = prior_log_probs(prior, thetas), prior_log_probs(trained_with, thetas)
        if here is not None and there is not None:
            both = np.isfinite(here) & np.isfinite(there)
            apart = np.abs(here - there)[both] > 1e-2 + 1e-4 * np.abs(there[both])
            differ = apart.any() or np.any(np.isfinite(here) != np.isfinite(there))
            notes["another-prior"] = bool(differ)
    if draws is None or not (unlike := _unlike(thetas, draws)).any():
        return notes
    k = int(np.argmax(unlike))
    like_xs = features.shape[1] == thetas.shape[1] and not _unlike(features, draws).any()
    swapped = "xs do: are thetas and xs swapped? If not, " if like_xs else ""
    sizes = (*_mean_and_sd(thetas[:, k]), *_mean_and_sd(draws[:, k]))
    return notes | {"unlike-prior": (k, *sizes, swapped)}


def _mean_and_sd(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std())


def _unlike(values: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return a mask [d] of columns whose Kolmogorov-Smirnov test has a p-value < `UNLIKELY`."""
    import scipy.stats

    columns = zip(values.T, draws.T, strict=True)
    tests: list[Any] = [scipy.stats.ks_2samp(*pair, method="asymp") for pair in columns]
    return np.asarray([test.pvalue for test in tests]) < UNLIKELY


def prior_log_probs(prior: Any, thetas: np.ndarray) -> np.ndarray | None:
    """Return log densities [n], None without ``log_prob``; all -inf if torch rejects a theta."""
    if not hasattr(prior, "log_prob"):
        return None
    if is_of_torch(prior):
        import torch  # pyright: ignore[reportMissingImports]

        with torch.no_grad(), torch.random.fork_rng():
            values = torch.as_tensor(np.array(thetas)).to(prior.sample((1,)))
            try:
                logs = prior.log_prob(values).cpu().numpy()
            except ValueError:  # a validating distribution: a theta is outside of its support
                return np.full(len(thetas), -np.inf)
    else:
        logs = np.asarray(prior.log_prob(jnp.asarray(thetas)))
    return logs.reshape(len(thetas), -1).sum(axis=1)


def about_training(moments: tuple[np.ndarray, ...], features: np.ndarray) -> dict[str, Any]:
    """Return a note if means or deviations of xs [n, q] differ clearly from ``moments``, the
    (mean, deviation) in the network's training. Return {} if n < 10."""
    if len(features) < 10:
        return {}
    mean, sd = (np.broadcast_to(np.ravel(part), features.shape[1:]) for part in moments)
    shift = (features.mean(axis=0) - mean) / sd
    ratio = features.std(axis=0) / sd
    far = (np.abs(shift) > 1) | (ratio < 1 / 3) | (ratio > 3)
    k = int(np.argmax(far))
    sizes = (*_mean_and_sd(features[:, k]), float(mean[k]), float(sd[k]))
    return {"unlike-training": (k, *sizes)} if far.any() else {}


def exchange_evidence(
    predictions: Predictions, thetas: Float[Array, "n d"], space: Space
) -> Float[Array, "d d"] | None:
    r"""Return the change of the total log density if parameters j < k swap their values, [d, d]. It
    is -infinity if j >= k, if bounds of j and k differ, or if the median change over rows is not
    positive. Return None for d = 1 and d > `MOST_EXCHANGED`.

    A swap preserves volume, so exp(change) has mean at most 1 under the right posterior, and
    exceeds :math:`1 / \alpha` with probability at most :math:`\alpha`.

    Cost: n (1 + d (d - 1) / 2) log densities.
    """
    d = thetas.shape[1]
    if not 1 < d <= MOST_EXCHANGED:
        return None
    first, second = np.triu_indices(d, 1)
    same = (space.low[first] == space.low[second]) & (space.high[first] == space.high[second])
    ratios = jnp.full((d, d), -jnp.inf, thetas.dtype)
    gains = _exchanged(predictions, thetas, jnp.asarray(first), jnp.asarray(second))
    return ratios.at[first, second].set(jnp.where(jnp.asarray(same), gains, -jnp.inf))


@jax.jit
def _exchanged(
    predictions: Predictions, thetas: Float[Array, "n d"], first: Array, second: Array
) -> Float[Array, " k"]:
    """Return the change of the summed log density for each of k swaps of two columns, or -infinity
    if the median change over rows is not positive."""
    here = log_densities_at(predictions, thetas)

    def gained(pair: tuple[Array, Array]) -> Array:
        j, k = pair
        order = jnp.arange(thetas.shape[1]).at[j].set(k).at[k].set(j)
        gains = log_densities_at(predictions, thetas[:, order]) - here
        gains = jnp.where(jnp.isfinite(here), gains, 0.0)
        return jnp.where(jnp.median(gains) > 0, jnp.sum(gains), -jnp.inf)

    return jax.lax.map(gained, (first, second))
