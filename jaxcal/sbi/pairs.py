"""`score_pairs`: convert a posterior and simulated pairs to the inputs of the tests."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.numerics import full_precision
from jaxcal.read import Scores, checks, convert
from jaxcal.read.observations import drawn_order
from jaxcal.results import in_one_order, rows_in_one_order
from jaxcal.sbi import suspicions
from jaxcal.sbi.adapters import as_posterior, nodes_of, prior_draws_of
from jaxcal.sbi.posteriors import (
    ArrayPosterior,
    Densities,
    DistributionPosterior,
    PairedSampler,
    Posterior,
    Sampler,
    rows_of,
)
from jaxcal.sbi.space import Space, check_continuous, check_inside, freed, space_of, support_of
from jaxcal.typing import (
    ArrayLike,
    Key,
    KeyLike,
    Names,
    Observations,
    PosteriorLike,
    Predictions,
    PriorLike,
)

LONG = 100  # longest observation that is used without the network's embedding


class ScoredPairs(eqx.Module):
    """Result of `score_pairs`: n pairs, with parameters mapped to the whole space ("free").

    Attributes:
        thetas: Free parameters, [n, d].
        scores: Scores of the n posteriors at ``thetas`` and at nodes, over free parameters.
        features: The observations, or summaries of them, [n, q].
        space: Bounds of the original parameters.
        names: Names of the d parameters.
        notes: Conversions and possible problems of the pairs: dict from a code to a number, or a
            tuple of the numbers and names in its sentence. `warnings` returns the sentences.
        predictions: The n posteriors over free parameters (`jaxcal.Unnormalized`, or a distribution
            with batch shape [n]), for `jaxcal.candidates.exchangeability_test` and
            `jaxcal.coverage.coverage`; None without log densities.
        sampler: Sampler that `sample` uses; None if the posterior needs MCMC for draws.
        xs: Observations of the n pairs, as arrays.
        prior_draws: Draws of the prior as free parameters, [k, d], to which jumps of chains are
            fitted (`jaxcal.candidates.Chains`); None without a prior or with too few draws.
    """

    thetas: Float[Array, "n d"]
    scores: Scores
    features: Float[Array, "n q"]
    space: Space
    names: tuple[str, ...] = eqx.field(static=True)
    notes: dict[str, Any] = eqx.field(static=True, converter=suspicions.PairNotes)
    predictions: Predictions | None = None
    sampler: PairedSampler | None = eqx.field(default=None, static=True)
    xs: Observations | None = None
    prior_draws: Float[Array, "k d"] | None = None

    def warnings(self) -> list[str]:
        """Return a sentence for each of the ``notes``, with its code in brackets."""
        return suspicions.in_sentences(self.notes)

    def sample(self, key: KeyLike, m: int) -> Float[Array, "n m d"]:
        """Return m draws of each posterior, as free parameters; TypeError without ``sampler``."""
        if self.sampler is None:
            raise TypeError("posterior: it offers no draws")
        return self.space.free(self.sampler(convert.key(key), convert.integer(m, "m")))


class PairOptions(TypedDict, total=False):
    """Options of `score_pairs` that `check_posterior`, `monitor` and `repair_posterior` take."""

    prior: PriorLike | None
    bounds: ArrayLike | None
    summaries: ArrayLike | None
    names: Names | None
    n_nodes: int | None
    exclude_invalid_x: bool


@rows_in_one_order
@full_precision
def score_pairs(
    key: KeyLike,
    posterior: PosteriorLike,
    thetas: ArrayLike,
    xs: Observations,
    *,
    prior: PriorLike | None = None,
    bounds: ArrayLike | None = None,
    summaries: ArrayLike | None = None,
    names: Names | None = None,
    n_nodes: int | None = None,
    exclude_invalid_x: bool = False,
) -> ScoredPairs:
    """Return scores of n posteriors at their thetas and at nodes: common points from the prior.

    Args:
        key: Random key: typed, legacy or an integer.
        posterior: One of these.

            - A JAX function ``log_prob(theta, x)``, network or flow (`JaxPosterior`).
            - What `TorchPosterior` takes: posteriors, potentials and estimators of sbi, flows of
              zuko and lampe, functions of torch.
            - A function from xs to a distribution with batch shape [n], of numpyro or torch.
            - A `NumpyroPosterior`, or a distribution with batch shape [n], such as
              ``guide.get_posterior(params)`` of numpyro's autoguides fitted to each observation.
            - `jaxcal.Scores`, precomputed in units of 1 / theta.
        thetas: [n, d] parameters from the prior.
        xs: [n, ..] observations simulated from thetas, or a dict of such arrays, whose numbers are
            the features x[j] in the order of the sorted names.
        prior: Source of nodes, and of bounds: a numpyro or torch distribution, draws [m, d], or a
            function ``prior(key, m)``. By default the posterior's prior; if it has none,
            ``n_nodes`` random pairs are removed and their parameters become the nodes.
        bounds: (low, high), each a number or [d]; by default those of the prior's support.
        summaries: [n, q] summaries, which tests use in place of xs. By default they use xs, or the
            network's embedding (if any) for observations of more than 100 numbers.
        names: Names of the d parameters.
        n_nodes: Number of nodes; None takes max(10, 2 d + 2), as covariances can be estimated from
            scores only if there are more nodes than dimensions.
        exclude_invalid_x: Leave out pairs whose x holds NaN or infinite values, as sbi does in
            training; otherwise they are an error.

    Returns:
        `ScoredPairs`: free parameters and scores, with densities and draws if available. Raises
        ValueError or TypeError, which name the argument with a wrong shape, value or type.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import numpyro.distributions as dist
        >>> from jaxcal import sbi
        >>> thetas, noise = jax.random.normal(jax.random.key(0), (2, 100, 3))
        >>> def log_prob(theta, x):
        ...     return -jnp.sum((theta - x / 2) ** 2)
        >>> prior = dist.Normal(jnp.zeros(3), 1.0).to_event(1)
        >>> pairs = sbi.score_pairs(1, log_prob, thetas, thetas + noise, prior=prior)
        >>> pairs.scores.at_nodes.shape
        (100, 10, 3)
    """
    key = convert.key(key)
    scorer = as_posterior(posterior, thetas, prior)
    own_prior = getattr(scorer, "prior", None)
    prior = own_prior if prior is None else prior
    unconverted = xs
    values, xs = paired(thetas, xs, getattr(scorer, "reader", checks.features))
    n_nodes = checks.nodes(n_nodes, values.shape[1])
    valid = _valid(xs, len(values), convert.flag(exclude_invalid_x, "exclude_invalid_x"))
    notes: dict[str, Any] = dict(getattr(scorer, "notes", {}))
    notes |= suspicions.about_rounding(unconverted, xs, valid)
    if not valid.all():
        summaries = summaries if summaries is None else _features(summaries, len(values))[valid]
        values, xs = values[valid], jax.tree.map(lambda leaf: leaf[valid], xs)
        scorer = rows_of(scorer, valid)
        notes["excluded-pairs"] = int(np.sum(~valid))
    getattr(scorer, "prepare", lambda thetas, xs: None)(values, xs)
    n, d = values.shape
    names = checks.names(getattr(scorer, "names", None) if names is None else names, d)
    names = tuple(f"theta_{k + 1}" for k in range(d)) if names is None else names
    in_one_order({"thetas": thetas, "names": names})
    check_continuous(values, names)
    features, of_network = summarized(scorer, xs, summaries, n)
    # draws and functions have no support: the bounds are those of the posterior's own prior
    declares = own_prior is None or support_of(prior) is not None
    space = space_of(prior if declares else own_prior, bounds, d, values.dtype)
    check_inside(space, values, names)
    notes |= of_network | suspicions.simulated_again(values, features)
    notes |= suspicions.about_space(space, bounds, values, names)
    notes |= _about_inputs(key, prior, own_prior, scorer, values, xs)

    pairs = _Pairs(scorer, values, xs, features)
    pairs, scores, of_nodes = _scored(key, pairs, prior, n_nodes, space, names)
    scorer, values, xs, features = pairs
    notes |= of_nodes | suspicions.about_count(len(values)) | suspicions.about_scores(scores)
    scores = _free(space, values, scores)
    notes |= suspicions.about_tails(np.asarray(scores.at_targets))
    predictions = scorer.predictions(xs) if isinstance(scorer, Densities) else None
    return ScoredPairs(
        space.free(values),
        scores,
        features,
        space,
        names,
        {code: value for code, value in notes.items() if value},
        None if predictions is None else freed(predictions, space),
        PairedSampler(scorer, xs, values.dtype, space) if isinstance(scorer, Sampler) else None,
        xs,
        prior_draws_of(key, prior, scorer, values, space),
    )


class _Pairs(NamedTuple):
    """A posterior, the original parameters, the observations and their features."""

    scorer: Any
    values: Array
    xs: Any
    features: Array

    def rows(self, rows: np.ndarray) -> "_Pairs":
        xs = jax.tree.map(lambda leaf: leaf[rows], self.xs)
        return _Pairs(rows_of(self.scorer, rows), self.values[rows], xs, self.features[rows])


def _scored(
    key: Key, pairs: _Pairs, prior: Any, n_nodes: int, space: Space, names: tuple[str, ...]
) -> tuple[_Pairs, Scores, dict[str, Any]]:
    """Return the pairs to test, their scores at thetas and nodes, and notes on removed pairs."""
    n = len(pairs.values)
    if isinstance(pairs.scorer, ArrayPosterior):
        scores = _arrays(pairs.scorer.scored(pairs.values, pairs.xs, None), pairs.values)
        check_inside(space, scores.nodes, names)
        return pairs, scores, {}
    nodes, notes = nodes_of(key, prior, pairs.scorer, n_nodes, pairs.values), {}
    if nodes is None:
        if isinstance(pairs.scorer, DistributionPosterior):
            raise ValueError(
                "prior: wanted for a batch of distributions, as its draws are the base points"
            )
        if n < n_nodes + 2:
            raise ValueError(
                f"thetas: {n} pairs are too few to give up n_nodes={n_nodes} of them as base "
                f"points: pass prior=, or fewer n_nodes"
            )
        order = np.asarray(drawn_order(key, n, pairs.values, pairs.features))
        nodes, pairs = pairs.values[order[:n_nodes]], pairs.rows(np.sort(order[n_nodes:]))
        notes = {"no-prior": n_nodes}
    check_inside(space, nodes, names)
    return pairs, pairs.scorer.scored(pairs.values, pairs.xs, nodes), notes


def inputs_of(pairs: ScoredPairs) -> Float[Array, "n q"]:
    """Return the features of x in the dtype of thetas; ValueError if one is not finite."""
    finite = np.all(np.isfinite(np.asarray(pairs.features)), axis=1)
    if not np.all(finite):
        raise ValueError(
            f"summaries: {int(np.sum(~finite))} of {len(finite)} rows hold NaN or infinite values "
            f"(first row {int(np.argmin(finite))}): leave these pairs out"
        )
    return pairs.features.astype(pairs.thetas.dtype)


def _valid(xs: Observations, n: int, exclude: bool) -> np.ndarray:
    """Return a mask [n] of the finite rows of xs. Rows that are not finite raise ValueError if
    ``exclude`` is False, or if fewer than 2 rows would remain."""
    leaves = [np.asarray(leaf).reshape(n, -1) for leaf in jax.tree.leaves(xs)]
    valid = np.all([np.all(np.isfinite(leaf), axis=1) for leaf in leaves], axis=0)
    if valid.all() or (exclude and valid.sum() >= 2):
        return valid
    raise ValueError(
        f"xs: {int(np.sum(~valid))} of {n} rows hold NaN or infinite values (first row "
        f"{int(np.argmin(valid))}), as failed simulations do: exclude_invalid_x=True leaves "
        f"these pairs out, if the posterior was trained without such pairs"
    )


def summarized(
    scorer: Posterior, xs: Observations, summaries: ArrayLike | None, n: int
) -> tuple[Array, dict[str, Any]]:
    """Return features [n, q] of observations, and notes. Features are ``summaries`` if given. Else
    they are xs or, if an x has more than `LONG` numbers, a shorter embedding by the network."""
    if summaries is not None:
        return _features(summaries, n), {}
    features = _features(xs, n, "xs")
    embed = getattr(scorer, "summaries", None)
    if features.shape[1] <= LONG or embed is None:
        return features, {}
    embedded = embed(xs)
    if embedded is None or embedded.shape[1] >= features.shape[1]:
        return features, {}
    sizes = embedded.shape[1], features.shape[1]
    return jnp.asarray(embedded), {"embedded-observations": sizes}


def _about_inputs(
    key: Key,
    prior: Any,
    own_prior: Any,
    scorer: Any,
    values: Array,
    xs: Any,
) -> dict[str, Any]:
    """Return notes if thetas differ from draws of the prior, or xs from the training data."""
    thetas, draws = np.asarray(values, float), None
    features = np.asarray(_features(xs, len(thetas), "xs"), float)
    if hasattr(prior, "sample"):
        drawn = nodes_of(jax.random.fold_in(key, 3), prior, None, suspicions.PRIOR_DRAWS, values)
        draws = np.asarray(drawn, float)
    notes = suspicions.about_prior(prior, own_prior, thetas, features, draws)
    moments = getattr(scorer, "training_moments", lambda: None)()
    if isinstance(xs, dict) or moments is None:
        return notes
    return notes | suspicions.about_training(moments, features)


def paired(
    thetas: ArrayLike, xs: Observations, reader: Callable[[Any, str], Array] = checks.features
) -> tuple[Array, Any]:
    """Return parameters [n, d] and observations [n, ..], an array or a dict of these, as floats or
    as ``reader`` converts them."""
    values = convert.floats(thetas, "thetas")
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or len(values) < 2 or values.shape[1] < 1:
        raise ValueError(
            f"thetas: wanted parameters of shape [n, d] with n >= 2, got {values.shape}"
        )
    if not np.all(np.isfinite(np.asarray(values))):
        bad = int(np.sum(~np.all(np.isfinite(np.asarray(values)), axis=1)))
        raise ValueError(f"thetas: {bad} rows hold NaN or infinite values: remove those pairs")
    observations = xs if isinstance(xs, dict) else {"xs": xs}
    arrays = {name: reader(value, "xs") for name, value in observations.items()}
    for array in arrays.values():
        if array.ndim == 0 or len(array) != len(values):
            raise ValueError(
                f"thetas and xs: wanted one x for every theta, got {len(values)} thetas and xs of "
                f"shape {array.shape}: is the simulation's batch axis first?"
            )
    return values, arrays if isinstance(xs, dict) else arrays["xs"]


def _features(xs: Observations, n: int, name: str = "summaries") -> Array:
    parts = [xs[key] for key in sorted(xs)] if isinstance(xs, dict) else [xs]  # as jax.tree does
    flat = [checks.features(x, name) for x in parts]
    if any(x.shape[:1] != (n,) for x in flat):
        raise ValueError(f"{name}: wanted n={n} rows, one per pair, got {flat[0].shape}")
    if not sum(x.size for x in flat):
        raise ValueError(f"{name}: wanted at least one number per pair, got none")
    return jnp.concatenate([x.reshape(n, -1) for x in flat], axis=1)


def _arrays(scores: Scores, values: Array) -> Scores:
    if scores.at_nodes is None or scores.nodes is None:
        raise ValueError(
            "Scores: the kernel on posteriors needs scores at base points too: give at_nodes "
            "[n, m, d] and nodes [m, d], the same m draws of the prior for every posterior"
        )
    parts = []
    for axes, name in ((1, "at_targets"), (2, "at_nodes"), (1, "nodes")):
        part = convert.floats(getattr(scores, name), f"Scores.{name}")
        parts.append(part[..., None] if values.shape[1] == 1 and part.ndim == axes else part)
    return checks.predictions(Scores(*parts), values)


@jax.jit
def _free(space: Space, thetas: Array, scores: Scores) -> Scores:
    nodes = space.free(scores.nodes)
    at = space.scores(space.free(thetas), scores.at_targets)
    return Scores(at, space.scores(nodes[None], scores.at_nodes), nodes)
