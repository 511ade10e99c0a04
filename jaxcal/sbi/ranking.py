"""`rank_posteriors`: test many posteriors of one architecture on the same pairs, and rank them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PyTree

from jaxcal import nulls
from jaxcal.nulls.contract import holm
from jaxcal.numerics import full_precision
from jaxcal.read import Scores, checks, convert
from jaxcal.read.scores import score
from jaxcal.results import TestResult, rows_in_one_order
from jaxcal.results.notes import pointer
from jaxcal.sbi.pairs import score_pairs
from jaxcal.sbi.posteriors import JaxPosterior
from jaxcal.sbi.space import Space, over_free
from jaxcal.sbi.suspicions import PairNotes, in_sentences
from jaxcal.stein import goodness_of_fit
from jaxcal.typing import ArrayLike, Key, KeyLike, Names, Observations, PriorLike

TOGETHER = 50  # models tested at once


class PosteriorRanking(eqx.Module):
    """Result of `rank_posteriors`: tests of M posteriors (models), ranked by estimated error.

    The error is the squared discrepancy of `kcsd_test`, with the same kernels for all models, so
    estimates are comparable. Differences between models not rejected may be due to chance.

    Attributes:
        tests: One `jaxcal.TestResult` with a leading axis M, in the original order of the models.
        names: Names of the M models.
        notes: Notes on the pairs, as in `ScoredPairs`.
    """

    tests: TestResult
    names: tuple[str, ...] = eqx.field(static=True)
    notes: dict[str, Any] = eqx.field(static=True, converter=PairNotes)

    @property
    def estimates(self) -> Float[Array, " M"]:
        """Unbiased estimate of each model's squared KCSD, [M]; may be negative by chance."""
        return self.tests.estimate

    @property
    def p_adjusted(self) -> Float[Array, " M"]:
        """P-values of "the model is the posterior given x", [M], with Holm's correction."""
        return holm(self.tests.p_value)

    def order(self) -> list[int]:
        """Return indices of models by increasing estimate (best first); NaN estimates are last."""
        return [int(k) for k in np.argsort(np.asarray(self.estimates), kind="stable")]

    @property
    def verdict(self) -> np.ndarray:
        """ "rejected" or "not rejected", [M], from `p_adjusted`; "cannot tell" if this is NaN or if
        ``tests.reason`` is not empty, for example due to few draws of the null for M models."""
        p = np.asarray(self.p_adjusted)
        said = np.where(p <= self.tests.level, "rejected", "not rejected")
        return np.where(np.isnan(p) | (self.tests.reason != ""), "cannot tell", said)

    def __repr__(self) -> str:
        if isinstance(self.tests.p_value, Tracer):
            return "PosteriorRanking(traced)"
        p, order, verdicts = np.asarray(self.p_adjusted), self.order(), self.verdict
        shown = order if len(order) <= 10 else order[:10]
        estimates, n = np.asarray(self.estimates), self.tests.contributions.shape[-1]
        rows = [
            f"  {self.names[k]:16s} {estimates[k]:+10.4g}   p = {p[k]:.3g}   {verdicts[k]}"
            for k in shown
        ]
        counts = ", ".join(f"{np.sum(verdicts == word)} {word}" for word in np.unique(verdicts))
        head = f"ranking of {len(order)} posteriors, best first, n = {n}"
        more = [f"  .. and {len(order) - len(shown)} more"] if len(order) > len(shown) else []
        said: dict[str, list[str]] = {note: [] for note in in_sentences(self.notes)}
        tests = jax.tree.map(np.asarray, self.tests)
        for k in shown:
            for text in jax.tree.map(lambda leaf, k=k: leaf[k], tests).warnings():
                said.setdefault(text, []).append(self.names[k])
        notes = []
        for note, of in said.items():
            whose = "" if len(of) in (0, len(shown)) else f" ({', '.join(of)})"
            notes.append(f"  note{whose}: {note}")
        counted = f"  {counts} (p adjusted)"
        return "\n".join([head, *rows, *more, counted, *notes, *pointer(said)])


@rows_in_one_order
@full_precision
def rank_posteriors(
    key: KeyLike,
    models: PyTree,
    thetas: ArrayLike,
    xs: Observations,
    *,
    prior: PriorLike | None = None,
    bounds: ArrayLike | None = None,
    summaries: ArrayLike | None = None,
    names: Names | None = None,
    null: nulls.Null = nulls.HadamardWild(),
    level: float = 0.05,
) -> PosteriorRanking:
    """Test M posteriors of one architecture on the same pairs, and rank them by their errors.

    `kcsd_test` tests whether each model is the posterior given x. The kernel does not depend on the
    model, and all models are tested with the same random draws of the null distribution.

    Args:
        key: Random key: typed, legacy or an integer.
        models: A JAX network or flow as in `JaxPosterior`, every array of which has a leading axis
            M: one network per model (``eqx.filter_vmap`` over their construction or training).
        thetas: [n, d] parameters from the prior.
        xs: [n, ..] observations simulated from them.
        prior: As in `score_pairs`. Without it, one random pair is removed.
        bounds: As in `score_pairs`.
        summaries: As in `score_pairs`.
        names: Names of the M models; by default their indices.
        null: Null distribution of the statistic.
        level: Level of the verdicts, for all models together.

    Returns:
        `PosteriorRanking`, which prints the best ten. Raises the errors of `score_pairs`.

    Cost: M n gradients and M n^2 additions; memory for 50 models at once.

    Source: Jitkrittum et al. (2020) for the test.

    Example:
        >>> import jax, jax.numpy as jnp, equinox as eqx
        >>> from jaxcal import sbi
        >>> keys = jax.random.split(jax.random.key(0), 3)
        >>> make = eqx.filter_vmap(lambda key: eqx.nn.MLP(2, 1, 8, 1, key=key))
        >>> class Energy(eqx.Module):
        ...     network: eqx.nn.MLP
        ...     def __call__(self, theta, x):
        ...         return self.network(jnp.concatenate([theta, x]))[0] - jnp.sum(theta**2)
        >>> thetas, noise = jax.random.normal(jax.random.key(1), (2, 60, 1))
        >>> sbi.rank_posteriors(2, Energy(make(keys)), thetas, thetas + noise).estimates.shape
        (3,)
    """
    key, level = convert.key(key), checks.level(level)
    checks.null(null)
    if not (callable(models) or hasattr(models, "log_prob")):
        raise TypeError(f"models: wanted networks that take (theta, x), got {convert.say(models)}")
    arrays, rest = eqx.partition(models, eqx.is_array)
    leading = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(arrays)}
    if not leading:
        raise TypeError("models: wanted a network whose arrays have a leading axis of models")
    if len(leading) > 1 or leading == {()}:
        raise ValueError(
            f"models: wanted one leading axis of models on all arrays, got {sorted(leading)}"
        )
    (((count,)),) = leading
    first = eqx.combine(jax.tree.map(lambda leaf: leaf[0], arrays), rest)
    pairs = score_pairs(
        jax.random.fold_in(key, 0),
        first,
        thetas,
        xs,
        prior=prior,
        bounds=bounds,
        summaries=summaries,
        n_nodes=1,
    )
    words = checks.names(names, count, "model") or tuple(f"model {k}" for k in range(count))
    space = pairs.space if pairs.space.bounded.any() else None
    test_key = jax.random.fold_in(key, 1)
    data = pairs.thetas, pairs.features.astype(pairs.thetas.dtype), pairs.xs
    tests = _tests(test_key, models, *data, space, null, level)
    return PosteriorRanking(tests, words, pairs.notes)


@eqx.filter_jit
def _tests(
    key: Key,
    models: PyTree,
    thetas: Array,
    features: Array,
    xs: PyTree,
    space: Space | None,
    null: nulls.Null,
    level: float,
) -> TestResult:
    arrays, rest = eqx.partition(models, eqx.is_array)
    count = jax.tree.leaves(arrays)[0].shape[0]

    def test(one: PyTree) -> TestResult:
        predictions = JaxPosterior(eqx.combine(one, rest)).predictions(xs)
        at = score(predictions if space is None else over_free(predictions, space), thetas)
        options = {"null": null, "level": level}
        result = goodness_of_fit.kcsd_test(key, Scores(at), thetas, features, **options)
        return result.at_level(level, null.least_p_value, tests=count)

    return jax.lax.map(test, arrays, batch_size=TOGETHER)
