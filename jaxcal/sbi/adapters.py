"""Convert posteriors of any supported form to objects with scores, and draws to one array.

Also draw points from the prior: nodes, where scores are computed, and points to fit `Chains` to.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.read import Scores, convert
from jaxcal.read.sampling import sample
from jaxcal.read.scores import is_distribution
from jaxcal.sbi.numpyro_posterior import NumpyroPosterior
from jaxcal.sbi.posteriors import (
    ArrayPosterior,
    Densities,
    DistributionPosterior,
    JaxPosterior,
    Posterior,
    is_tensor,
)
from jaxcal.sbi.space import Space
from jaxcal.sbi.suspicions import is_of_torch
from jaxcal.sbi.torch_posterior import TorchPosterior
from jaxcal.typing import ArrayLike, Key, Names, Observations, PosteriorLike, PriorLike


def as_posterior(posterior: Any, thetas: Any = None, prior: Any = None) -> Posterior:
    """Convert a posterior of any supported form to a `Posterior`; TypeError for others.

    Args:
        posterior: As in `jaxcal.sbi.score_pairs`.
        thetas: Parameters. If a tensor, a function ``posterior`` is assumed to be of torch.
        prior: Prior for estimators of torch that have none; ignored if the prior is not of torch.

    Returns:
        The posterior itself if it has the method ``scored``, else an adapter that has it.
    """
    if isinstance(posterior, Scores):
        return ArrayPosterior(posterior)
    if isinstance(posterior, type):
        raise TypeError(f"posterior: got the class {posterior.__name__}; pass an instance of it")
    if hasattr(posterior, "repaired"):  # a `RepairedPosterior`
        return posterior.repaired
    if isinstance(posterior, (JaxPosterior, ArrayPosterior)) or hasattr(posterior, "scored"):
        return posterior
    if is_tensor(posterior) or isinstance(posterior, (np.ndarray, jax.Array, list, tuple)):
        raise TypeError(
            "posterior: got an array: wrap scores as jaxcal.Scores(at_targets, at_nodes, nodes) to "
            "say what they are"
        )
    attributes = ("potential_fn", "posterior_estimator", "set_x", "condition_shape")
    sampled = any(hasattr(posterior, name) for name in attributes)
    if is_of_torch(posterior) or sampled or (callable(posterior) and is_tensor(thetas)):
        prior_of_torch = prior if is_of_torch(prior) else None
        return TorchPosterior(
            posterior, prior=prior_of_torch, like=thetas if is_tensor(thetas) else None
        )
    if is_distribution(posterior):
        return DistributionPosterior(posterior)
    if callable(posterior) and not hasattr(posterior, "log_prob") and _needs_one(posterior):
        return ConditionalPosterior(posterior)
    if callable(posterior) or hasattr(posterior, "log_prob"):
        return JaxPosterior(posterior)
    raise TypeError(
        f"posterior: cannot get scores from {type(posterior).__name__}: pass log_prob(theta, x), "
        f"an sbi posterior or potential, a NumpyroPosterior, or jaxcal.Scores"
    )


def predictions(
    posterior: PosteriorLike, xs: Observations, *, prior: PriorLike | None = None
) -> Any:
    """Return the posteriors given n observations as predictions, for other tests of the library.

    Such tests are `jaxcal.coverage.coverage` and `jaxcal.candidates.exchangeability_test`. The
    predictions are over the original parameters, which may be bounded (`score_pairs` maps them to
    the whole space). Densities of torch are computed by callbacks.

    Args:
        posterior: As in `jaxcal.sbi.score_pairs`, with log densities (TypeError otherwise).
        xs: Observations, [n, ..]. If a tensor, a function ``posterior`` is assumed to be of torch.
        prior: Prior for estimators of torch that have none.

    Returns:
        `jaxcal.Unnormalized`, or a distribution, with batch shape [n].

    Example:
        >>> import jax
        >>> from jaxcal import coverage, sbi
        >>> xs, thetas, draws = jax.random.normal(jax.random.key(0), (3, 100, 9, 2))
        >>> def log_prob(theta, x):
        ...     return -(theta**2).sum() / 2
        >>> posteriors = sbi.predictions(log_prob, xs[:, 0])
        >>> coverage.coverage(posteriors, thetas[:, 0], draws).counts.shape
        (10,)
    """
    scorer: Posterior = as_posterior(posterior, xs, prior)
    if isinstance(scorer, TorchPosterior):
        return scorer.at(xs)
    if not isinstance(scorer, Densities):
        raise TypeError(
            f"posterior: {type(posterior).__name__} has no log densities: pass log_prob(theta, x) "
            f"or an object that has one"
        )
    return scorer.predictions(jax.tree.map(lambda leaf: convert.numbers(leaf, "xs"), xs))


class ConditionalPosterior:
    """Posterior given by a function from xs [n, ..] to a distribution with batch shape [n]."""

    def __init__(self, distribution_of: Any):
        self.distribution_of = distribution_of

    def scored(self, thetas: Array, xs: Observations, nodes: Array | None) -> Scores:
        return self._at(xs).scored(thetas, xs, nodes)

    def predictions(self, xs: Observations) -> Any:
        """Return the distribution of theta given xs, with batch shape [n]."""
        return self._at(xs).predictions(xs)

    def sample(self, key: Key, xs: Observations, m: int) -> Float[Array, "n m d"]:
        return self._at(xs).sample(key, xs, m)

    def _at(self, xs: Observations) -> DistributionPosterior:
        distribution = self.distribution_of(xs)
        if not is_distribution(distribution):
            raise TypeError(
                f"posterior: wanted log_prob(theta, x), or a function xs -> distribution with "
                f"batch shape [n]; the given function of one argument returned "
                f"{convert.say(distribution)}"
            )
        return DistributionPosterior(distribution)


def _needs_one(function: Any) -> bool:
    """Return whether a function has exactly one parameter, and it can be passed by position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len(parameters) == 1 and all(p.kind in positional for p in parameters)


def as_draws(draws: ArrayLike) -> Float[Array, "n m d"]:
    """Return draws of n posteriors, as in `check_draws`, as one array, for ranks and coverage.

    Variables of a dict or of ArviZ follow each other; entries of an array variable become adjacent
    columns. ArviZ chains are thinned to m draws, the smallest effective size of any parameter in
    any posterior.
    """
    draws = _stacked(draws)
    if isinstance(draws, Mapping):
        return _side_by_side(draws)
    array = convert.floats(draws, "draws")
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim != 3 or 0 in array.shape:
        raise ValueError(
            f"draws: wanted m draws of each of n posteriors, shape [n, m, d], got {array.shape}"
        )
    return array


def _stacked(draws: Any) -> Any:
    """Return draws with names (of dicts, data frames or ArviZ) as a dict of arrays [n, m, ..];
    others as given."""
    if hasattr(draws, "posterior"):
        raise TypeError(
            f"draws: got one {type(draws).__name__}, which is about one observation: pass a list "
            f"of them, one for each"
        )
    if isinstance(draws, Mapping):
        return {str(name): draws[name] for name in draws}
    if isinstance(draws, list | tuple) and draws and all(hasattr(d, "posterior") for d in draws):
        draws = _independent(draws)
    tables = isinstance(draws, list | tuple) and [_is_table(one) for one in draws]
    if not tables or not any(tables):
        return draws
    names = list(draws[0]) if all(tables) else []
    if not all(tables) or any(set(one) != set(names) for one in draws):
        raise ValueError(
            "draws: wanted n dicts or data frames with the same columns, one for each observation"
        )
    columns = {name: [np.asarray(one[name]) for one in draws] for name in names}
    for name, parts in columns.items():
        if len({part.shape for part in parts}) > 1:
            raise ValueError(
                f"draws: the shape of {name!r} is {parts[0].shape} in one posterior and differs "
                f"in others: take m draws of each, and stack them to [n, m, d]"
            )
    return {str(name): np.stack(parts) for name, parts in columns.items()}


def _is_table(value: object) -> bool:
    """Return whether a value is a dict of columns or a data frame; False for ArviZ and xarray."""
    chains = hasattr(value, "posterior") or hasattr(value, "data_vars")
    return (isinstance(value, Mapping) and not chains) or (
        hasattr(value, "columns") and hasattr(value, "iloc")
    )


def paired(
    draws: ArrayLike, thetas: ArrayLike, names: Names | None
) -> tuple[Float[Array, "n m d"], Array, Names | None]:
    """Return draws and parameters [n, d] with the same columns, and their names (None if unknown).

    Columns are aligned by the names of ``thetas`` if it is a dict, else by ``names``.
    """
    stacked: Any = _stacked(draws)
    variables = list(stacked) if isinstance(stacked, Mapping) else None
    if isinstance(thetas, Mapping):
        if variables is None:
            raise ValueError("thetas: got a dict, but the draws have no names: pass both as arrays")
        by_name = {str(name): thetas[name] for name in thetas}
        order = _same(variables, list(by_name))
        if names is not None and sorted(names) == sorted(order):
            order, names = list(names), None
        parts = [convert.floats(by_name[name], f"thetas[{name!r}]") for name in order]
        for name, part in zip(order, parts, strict=True):
            width = int(np.prod(np.shape(stacked[name])[2:], dtype=int))  # 1 for draws [n, m]
            if width != (columns := len(_columns([name], [part]))):
                raise ValueError(f"thetas[{name!r}]: has {columns} columns, its draws have {width}")
        values = jnp.concatenate([part.reshape(part.shape[0], -1) for part in parts], axis=1)
        names = _columns(order, parts) if names is None else names
        return _side_by_side({name: stacked[name] for name in order}), values, names
    values = convert.floats(thetas, "thetas")
    values = values[:, None] if values.ndim == 1 else values
    if variables is None:
        return as_draws(draws), values, names
    if len(variables) == 1:
        names = _columns(variables, [values]) if names is None else names
        return _side_by_side(stacked), values, names
    if names is None:
        raise ValueError(
            f"thetas: the draws have the names {', '.join(variables)}, and nothing says which "
            f"column of thetas is which: pass thetas as a dict with these names, or names= in the "
            f"order of its columns"
        )
    order = _same(variables, names)
    return _side_by_side({name: stacked[name] for name in order}), values, order


def _same(variables: Sequence[str], names: Names) -> list[str]:
    """Return the names as a list; ValueError if they are not the same set as the variables."""
    if sorted(names) != sorted(variables):
        raise ValueError(
            f"names: the draws hold {', '.join(variables)}, the parameters are called "
            f"{', '.join(names)}: use the same names for both"
        )
    return list(names)


def _columns(names: Sequence[str], parts: Sequence[Array]) -> list[str]:
    """Return the names of all columns: "a" for a part [n] or [n, 1], else "a[0]", "a[1]", .."""
    sizes = [int(np.prod(part.shape[1:], dtype=int)) for part in parts]
    return [
        name if size == 1 else f"{name}[{i}]"
        for name, size in zip(names, sizes, strict=True)
        for i in range(size)
    ]


def _side_by_side(draws: Mapping[str, Any]) -> Float[Array, "n m d"]:
    if not draws:
        raise ValueError("draws: got a dict with no variable")
    parts = []
    for name, values in draws.items():
        part = convert.floats(values, f"draws[{name!r}]")
        if part.ndim < 2 or (parts and part.shape[:2] != parts[0].shape[:2]):
            raise ValueError(
                f"draws[{name!r}]: wanted m draws of each of n posteriors, shape [n, m, ..], the "
                f"same n and m for all, got {part.shape}"
            )
        parts.append(part.reshape(*part.shape[:2], math.prod(part.shape[2:])))
    joined = jnp.concatenate(parts, axis=2)
    if joined.size == 0:
        raise ValueError(f"draws: wanted at least one number, got shape {joined.shape}")
    return joined


def _independent(data: Sequence[Any]) -> list[dict[str, np.ndarray]]:
    """Return m nearly independent draws of ArviZ chains, [m, ..] of each variable, for each
    posterior; m is the least effective size of any parameter in any posterior."""
    import arviz  # pyright: ignore[reportMissingImports]

    chains, sizes = [], []
    for one in data:
        variables = one.posterior.data_vars
        ordered = {name: variables[name].transpose("chain", "draw", ...) for name in variables}
        chains.append({name: np.asarray(values.values) for name, values in ordered.items()})
        for values in chains[-1].values():
            columns = values.reshape(*values.shape[:2], math.prod(values.shape[2:]))
            sizes += [float(arviz.ess(columns[:, :, k])) for k in range(columns.shape[2])]
            sizes.append(columns.shape[0] * columns.shape[1])
    if not sizes:
        raise ValueError("draws: the posteriors hold no variable")
    m = int(min(sizes)) if np.all(np.isfinite(sizes)) else 0
    if m < 2:
        raise ValueError("draws: some chains have an effective size below 2: run them longer")

    def thinned(values: np.ndarray) -> np.ndarray:
        steps = values.reshape(math.prod(values.shape[:2]), *values.shape[2:])
        return steps[np.linspace(0, len(steps) - 1, m).round().astype(int)]

    return [{name: thinned(values) for name, values in one.items()} for one in chains]


PILOTS = 128  # draws of the prior to which jumps of chains between modes are fitted


def nodes_of(key: Key, prior: Any, scorer: Any, m: int, values: Array) -> Array | None:
    """Return m draws [m, d] of ``prior``. From an array, return m random rows (or all, if fewer).
    Without a prior, return draws of the model of a `NumpyroPosterior`; None for other scorers."""
    d, dtype = values.shape[1], values.dtype
    if isinstance(scorer, NumpyroPosterior) and prior is None:
        return scorer.draw_nodes(key, m).astype(dtype)
    if prior is None:
        return None
    if hasattr(prior, "sample") and not convert.brought(prior):
        if is_of_torch(prior):
            import torch  # pyright: ignore[reportMissingImports]

            with torch.random.fork_rng():
                torch.manual_seed(int(jax.random.bits(key, dtype=jnp.uint32)))
                drawn = prior.sample((m,))
        else:
            drawn = sample(key, prior, (m,), "prior")
    elif callable(prior):
        prior = convert.function(prior, "prior", "a key and the number of draws")
        try:
            drawn = prior(key, m)
        except TypeError as error:
            raise TypeError(f"prior: prior(key, m) fails: {error}") from error
    else:
        drawn = convert.floats(prior, "prior")
        if drawn.ndim == 0 or len(drawn) < 1:
            got = "none" if drawn.ndim else "a number"
            raise ValueError(f"prior: wanted a distribution or its draws [m, {d}], got {got}")
        if len(drawn) > m:  # rows may be sorted
            drawn = drawn[jax.random.permutation(key, len(drawn))[:m]]
    nodes = convert.floats(drawn, "prior").astype(dtype)
    nodes = nodes[:, None] if nodes.ndim == 1 else nodes
    if nodes.ndim != 2 or nodes.shape[1] != d:
        raise ValueError(
            f"prior: wanted draws of shape [m, {d}], as thetas have {d} parameters, got "
            f"{nodes.shape}"
        )
    return nodes


def prior_draws_of(
    key: Key, prior: Any, scorer: Any, values: Array, space: Space
) -> Float[Array, "k d"] | None:
    """Return draws of the prior within bounds, as free parameters (`Space`); k <= `PILOTS`. None
    without a prior, or if k < d + 2."""
    drawn = nodes_of(jax.random.fold_in(key, 4), prior, scorer, PILOTS, values)
    if drawn is None:
        return None
    free = np.asarray(space.free(drawn))
    finite = free[np.all(np.isfinite(free), axis=1)]
    return jnp.asarray(finite) if len(finite) >= finite.shape[1] + 2 else None
