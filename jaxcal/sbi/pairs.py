"""A posterior and its simulated pairs, as what every test needs: scores on the whole space."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal import checks
from jaxcal.models import Scores
from jaxcal.models.sampling import sample
from jaxcal.repeats import drawn_order, fingerprints, repeated_rows
from jaxcal.sbi.freed import freed
from jaxcal.sbi.numpyro_posterior import NumpyroPosterior
from jaxcal.sbi.posteriors import (
    ArrayPosterior,
    Densities,
    DistributionPosterior,
    JaxPosterior,
    Posterior,
    Sampler,
    is_tensor,
)
from jaxcal.sbi.space import Space, check_inside, evenly_filled, space_of
from jaxcal.sbi.torch_posterior import TorchPosterior
from jaxcal.scores import is_distribution
from jaxcal.typing import Key, KeyLike


class ScoredPairs(eqx.Module):
    """n pairs ready for tests, on the whole space.

    ``thetas`` [n, d]: free parameters. ``scores``: of their posteriors there, and at base points.
    ``features`` [n, q]: the observations, or summaries of them. ``space``: from which bounds the
    parameters were freed. ``names``: of the d parameters. ``notes``: sentences on what was done
    and on what may be wrong with the pairs.

    What the posterior offers besides: ``predictions``, the n posteriors over free parameters with
    log densities (`jaxcal.Unnormalized`, or a distribution with batch shape [n]), for
    `jaxcal.candidates.exchangeability_test` and `jaxcal.coverage.coverage`, or None; ``sampler``,
    None unless draws are cheap, which `sample` gives.
    """

    thetas: Float[Array, "n d"]
    scores: Scores
    features: Float[Array, "n q"]
    space: Space
    names: tuple[str, ...] = eqx.field(static=True)
    notes: tuple[str, ...] = eqx.field(static=True)
    predictions: Any = None
    sampler: "PairedSampler | None" = eqx.field(default=None, static=True)

    def sample(self, key: KeyLike, m: int) -> Float[Array, "n m d"]:
        """m draws of each posterior, as free parameters; TypeError where ``sampler`` is None."""
        if self.sampler is None:
            raise TypeError("posterior: it offers no draws")
        return self.space.free(self.sampler(checks.key(key), checks.integer(m, "m")))


class PairedSampler:
    """``sample(key, m)`` of the posteriors of these observations, [n, m, d], before the change to
    free parameters."""

    def __init__(self, posterior: Sampler, xs: Any, dtype: Any):
        self.posterior, self.xs, self.dtype = posterior, xs, dtype

    def __call__(self, key: Key, m: int) -> Float[Array, "n m d"]:
        return self.posterior.sample(key, self.xs, m).astype(self.dtype)


def score_pairs(
    key: KeyLike,
    posterior: Any,
    thetas: Any,
    xs: Any,
    *,
    prior: Any = None,
    bounds: Any = None,
    summaries: Any = None,
    names: Any = None,
    n_nodes: int = 10,
) -> ScoredPairs:
    """Scores of n posteriors at their parameters and at base points drawn from the prior.

    ``posterior``: a JAX function, network or flow (`JaxPosterior`), a posterior, potential or
    function of torch (`TorchPosterior`), a `NumpyroPosterior`, `GuidePosterior`, a numpyro
    distribution with batch shape [n], or `jaxcal.Scores` in the units of 1 / theta. ``thetas``
    [n, d] from the prior, ``xs`` [n, ..] simulated from them; tensors and lists too.

    ``prior``: base measure, and where it has bounds, the space that parameters are freed from: a
    numpyro or torch distribution, a function ``prior(key, m)``, or draws [m, d]. A posterior that
    carries its prior needs none. Without any, ``n_nodes`` of the pairs, drawn by the key, are given
    up and their parameters, which are draws of the prior, become the base points. ``bounds``:
    (low, high), where the prior does not say. ``summaries`` [n, q]: of xs, for what asks about x.
    Raises ValueError or TypeError with the argument's name; NaN scores are reported, not dropped.
    """
    key = checks.key(key)
    n_nodes = checks.integer(n_nodes, "n_nodes")
    scorer = as_posterior(posterior, thetas)
    prior = getattr(scorer, "prior", None) if prior is None else prior
    values, xs = _paired(thetas, xs)
    n, d = values.shape
    names = _names(names if names is not None else getattr(scorer, "names", None), d)
    features = _features(xs, n, "xs") if summaries is None else _features(summaries, n)
    space = space_of(prior, bounds, d, values.dtype)
    check_inside(space, values)
    notes = _simulated_again(values, features) + _about_space(space, prior, bounds, values, names)

    if isinstance(scorer, ArrayPosterior):
        raw = scorer.scored(values, xs, None)
        scores = _arrays(raw, n, d)
        nodes = scores.nodes
        if nodes is not None:
            check_inside(space, nodes)
    else:
        nodes = _nodes(key, prior, scorer, n_nodes, d, values.dtype)
        if nodes is None:
            if isinstance(scorer, DistributionPosterior):
                raise ValueError(
                    "prior: a batch of distributions needs one: its draws are the base points"
                )
            if n < n_nodes + 2:
                raise ValueError(
                    f"thetas: {n} pairs are too few to give up n_nodes={n_nodes} of them as base "
                    f"points: pass prior=, or fewer n_nodes"
                )
            order = np.asarray(drawn_order(key, n, values, features))
            given_up, tested = order[:n_nodes], np.sort(order[n_nodes:])
            nodes, values, features = values[given_up], values[tested], features[tested]
            xs = jax.tree.map(lambda leaf: leaf[tested], xs)
            rows_of = getattr(scorer, "rows", None)
            scorer = scorer if rows_of is None else rows_of(tested)
            notes += (
                f"no prior was given: the parameters of {n_nodes} pairs that the key chose are the "
                f"base points, and these pairs were not tested",
            )
        check_inside(space, nodes)
        scores = scorer.scored(values, xs, nodes)
    notes += _about_scores(scores)
    scores = _free(space, values, scores)
    notes += _about_tails(np.asarray(scores.at_targets), names)
    predictions = scorer.predictions(xs) if isinstance(scorer, Densities) else None
    return ScoredPairs(
        space.free(values),
        scores,
        features,
        space,
        names,
        notes,
        None if predictions is None else freed(predictions, space),
        PairedSampler(scorer, xs, values.dtype) if isinstance(scorer, Sampler) else None,
    )


def as_posterior(posterior: Any, thetas: Any = None) -> Posterior:
    """The posterior in whatever form the user has it, as a `Posterior`: something with scores."""
    if isinstance(posterior, Scores):
        return ArrayPosterior(posterior)
    if isinstance(posterior, (JaxPosterior, ArrayPosterior)) or hasattr(posterior, "scored"):
        return posterior
    if is_distribution(posterior):
        return DistributionPosterior(posterior)
    of_torch = type(posterior).__module__.split(".")[0] in ("torch", "sbi")
    sampled = hasattr(posterior, "potential_fn") or hasattr(posterior, "posterior_estimator")
    if of_torch or sampled or hasattr(posterior, "set_x"):
        return TorchPosterior(posterior)
    if is_tensor(posterior) or isinstance(posterior, (np.ndarray, jax.Array, list, tuple)):
        raise TypeError(
            "posterior: got an array: wrap scores as jaxcal.Scores(at_targets, at_nodes, nodes) to "
            "say what they are"
        )
    if isinstance(posterior, type):
        raise TypeError(f"posterior: got the class {posterior.__name__}; pass an instance of it")
    if callable(posterior) and is_tensor(thetas):
        return TorchPosterior(posterior)
    if callable(posterior) or hasattr(posterior, "log_prob"):
        return JaxPosterior(posterior)
    raise TypeError(
        f"posterior: cannot get scores from {type(posterior).__name__}: pass log_prob(theta, x), "
        f"an sbi posterior or potential, a NumpyroPosterior, or jaxcal.Scores"
    )


def _paired(thetas: Any, xs: Any) -> tuple[Array, Any]:
    values = checks.floats(thetas, "thetas")
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or len(values) < 2 or values.shape[1] < 1:
        raise ValueError(
            f"thetas: wanted parameters of shape [n, d] with n >= 2, got {values.shape}"
        )
    if not np.all(np.isfinite(np.asarray(values))):
        bad = int(np.sum(~np.all(np.isfinite(np.asarray(values)), axis=1)))
        raise ValueError(f"thetas: {bad} rows hold NaN or infinite values: remove those pairs")
    whole = np.asarray(values)
    if len(values) > 10 and np.all(whole == np.round(whole)):
        raise ValueError(
            "thetas: all values are whole numbers; a discrete parameter has no score: sum it "
            "out of the posterior, or test the other parameters alone"
        )
    observations = xs if isinstance(xs, dict) else {"xs": xs}
    arrays = {name: checks.features(value, "xs") for name, value in observations.items()}
    for array in arrays.values():
        if array.ndim == 0 or len(array) != len(values):
            raise ValueError(
                f"thetas and xs: wanted one x for every theta, got {len(values)} thetas and xs of "
                f"shape {array.shape}: is the simulation's batch axis first?"
            )
    return values, arrays if isinstance(xs, dict) else arrays["xs"]


def _features(xs: Any, n: int, name: str = "summaries") -> Array:
    flat = [checks.features(x, name) for x in (xs.values() if isinstance(xs, dict) else [xs])]
    if any(x.shape[:1] != (n,) for x in flat):
        raise ValueError(f"{name}: wanted n={n} rows, one a pair, got {flat[0].shape}")
    if not sum(x.size for x in flat):
        raise ValueError(f"{name}: wanted at least one number a pair, got none")
    return jnp.concatenate([x.reshape(n, -1) for x in flat], axis=1)


def _names(names: Any, d: int) -> tuple[str, ...]:
    names = checks.names(names, d)
    if names is None:
        return tuple(f"theta_{k + 1}" for k in range(d))
    return names


def _nodes(key: Key, prior: Any, scorer: Any, m: int, d: int, dtype: Any) -> Array | None:
    """m draws of the prior, [m, d], or None where there is none to draw from."""
    if isinstance(scorer, NumpyroPosterior) and prior is None:
        return scorer.draw_nodes(key, m).astype(dtype)
    if prior is None:
        return None
    if hasattr(prior, "sample"):
        if type(prior).__module__.split(".")[0] in ("torch", "sbi"):
            drawn = _draw_torch(key, prior, m)
        else:
            drawn = sample(key, prior, (m,), "prior")
    elif callable(prior):
        drawn = checks.function(prior, "prior", "a key and the number of draws")(key, m)
    else:
        drawn = checks.floats(prior, "prior")
        if drawn.ndim == 0:
            raise ValueError(f"prior: wanted a distribution or its draws [m, {d}], got a number")
        drawn = drawn[:m]
    nodes = checks.floats(drawn, "prior").astype(dtype)
    nodes = nodes[:, None] if nodes.ndim == 1 else nodes
    if nodes.ndim != 2 or nodes.shape[1] != d:
        raise ValueError(
            f"prior: wanted draws of shape [m, {d}] to match thetas, got {nodes.shape}"
        )
    return nodes


def _draw_torch(key: Key, prior: Any, m: int) -> Any:
    import torch  # pyright: ignore[reportMissingImports]

    with torch.random.fork_rng():
        torch.manual_seed(int(jax.random.bits(key, dtype=jnp.uint32)))
        return prior.sample((m,))


def _arrays(scores: Scores, n: int, d: int) -> Scores:
    at = checks.floats(scores.at_targets, "Scores.at_targets")
    if at.reshape(len(at), -1).shape != (n, d):
        raise ValueError(
            f"Scores.at_targets: wanted the shape of the thetas ({n}, {d}), got {at.shape}"
        )
    if scores.at_nodes is None or scores.nodes is None:
        raise ValueError(
            "Scores: the kernel on posteriors needs scores at base points too: give at_nodes "
            "[n, m, d] and nodes [m, d], the same m draws of the prior for every posterior"
        )
    at_nodes, nodes = checks.floats(scores.at_nodes, "Scores.at_nodes"), scores.nodes
    nodes = checks.floats(nodes, "Scores.nodes").reshape(len(nodes), -1)
    if at_nodes.size != n * nodes.size or nodes.shape[1] != d:
        raise ValueError(
            f"Scores.at_nodes: wanted shape ({n}, {len(nodes)}, {d}), got {at_nodes.shape}"
        )
    return Scores(at.reshape(n, d), at_nodes.reshape(n, -1, d), nodes)


@jax.jit
def _free(space: Space, thetas: Array, scores: Scores) -> Scores:
    nodes = space.free(scores.nodes)
    at = space.scores(space.free(thetas), scores.at_targets)
    return Scores(at, space.scores(nodes[None], scores.at_nodes), nodes)


@jax.jit
def _repeats(thetas: Array, features: Array) -> tuple[Array, Array]:
    """How many rows of thetas repeat another beyond chance, and how many with their features."""
    n = len(thetas)
    of_thetas, none = fingerprints(thetas, n), jnp.zeros(n, jnp.uint32)
    with_features = repeated_rows(thetas, of_thetas, fingerprints(features, n))
    return repeated_rows(thetas, of_thetas, none), with_features


def _simulated_again(thetas: Array, features: Array) -> tuple[str, ...]:
    """Sentences on parameters that repeat with other xs; the tests warn of repeated whole pairs."""
    n = len(thetas)
    count, whole = map(int, _repeats(thetas, features))
    if count <= whole:
        return ()
    return (
        f"{count} of {n} rows of thetas repeat another: pairs must be independent, and repeated "
        f"ones make p-values too small: keep one simulation of each parameter",
    )


def _about_space(space: Space, prior: Any, bounds: Any, thetas: Array, names: tuple[str, ...]):
    bounded = [name for name, has_bound in zip(names, space.bounded, strict=True) if has_bound]
    if bounded:
        listed = bounded[0] if len(bounded) == 1 else f"{len(bounded)} parameters"
        return (
            f"{listed} with bounds: tested after a change to the whole line (logit between two "
            f"bounds, log from one), scores with the log-Jacobian, since a density with an edge "
            f"violates the identity that the test rests on",
        )
    if getattr(prior, "support", None) is not None or bounds is not None:
        return ()
    if even := evenly_filled(thetas):
        return (
            f"{names[even[0]]} fills an interval evenly, as under a uniform prior, but no bounds "
            f"are known: a density with an edge violates the identity that the test rests on; pass "
            f"prior= (a distribution) or bounds=(low, high)",
        )
    return ()


def _about_scores(scores: Scores) -> tuple[str, ...]:
    at, at_nodes = np.asarray(scores.at_targets), np.asarray(scores.at_nodes)
    bad = int(np.sum(~np.all(np.isfinite(at), axis=1)))
    bad_nodes = int(np.sum(~np.all(np.isfinite(at_nodes), axis=(1, 2))))
    still = np.concatenate([at[:, None], at_nodes], axis=1)
    still = np.all(still == 0, axis=2)
    notes = []
    if bad:
        notes.append(
            f"{bad} posteriors have a NaN or infinite score, or a density of 0 or NaN, at their "
            f"own parameter: is their density positive and differentiable wherever the prior is?"
        )
    if bad_nodes:
        notes.append(
            f"{bad_nodes} posteriors have NaN or infinite scores, or a density of 0 or NaN, at "
            f"base points drawn from the prior: do they return NaN or -inf outside a smaller box? "
            f"Pass a prior= that they all cover"
        )
    if 0 < still.sum() < still.size:
        notes.append(
            f"{int(still.sum())} of {still.size} scores are exactly 0 in every parameter: is the "
            f"log density clipped or constant there? Such scores are wrong: leave it as it is"
        )
    return tuple(notes)


def _about_tails(at: np.ndarray, names: tuple[str, ...]) -> tuple[str, ...]:
    """A sentence where one pair in fifty holds most of the squared scores of a parameter."""
    squares = np.sort(at.astype(float) ** 2, axis=0)[::-1]
    total = squares.sum(axis=0)
    if len(at) < 100 or not np.all(np.isfinite(total) & (total > 0)):
        return ()
    shares = squares[: len(at) // 50].sum(axis=0) / total
    k = int(np.argmax(shares))
    if shares[k] <= 0.5:
        return ()
    return (
        f"2 % of the pairs hold {100 * shares[k]:.0f} % of the squared scores of {names[k]}: a few "
        f"pairs decide, and the tests see little of the others; posteriors that are far too narrow "
        f"look like this. Compare the coverage (jaxcal.coverage) if you can draw from them",
    )
