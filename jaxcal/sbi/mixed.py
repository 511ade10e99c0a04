"""Split posteriors of discrete and continuous parameters, such as a choice between models.

A posterior of continuous parameters a and discrete ones z is right if p(a | z, x) and each
p(z_j | a, the other z, x) are right: if all densities are positive, these determine p(a, z | x)
(Besag, 1974). The first is tested like any posterior, with z as part of x. The others are class
probabilities, computed from the log density at each value of z_j.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcal.read import Scores, Units, Unnormalized, checks, convert
from jaxcal.read.predictions import Standardized
from jaxcal.read.scores import scores_at
from jaxcal.sbi.adapters import as_posterior
from jaxcal.sbi.discrete import DiscreteParameter, of_probabilities
from jaxcal.sbi.pairs import PairOptions, ScoredPairs, paired, summarized
from jaxcal.sbi.posteriors import Densities
from jaxcal.typing import ArrayLike, Key, LogDensity, Scalar

Z = "discrete parameters"  # key of the discrete parameters in the dict of observations
X = "xs"  # key of xs in it if they are one array
MOST_VALUES = 1000  # of one discrete parameter


@dataclass(frozen=True)
class _Joined:
    """Log density of all parameters, as joined((params, discrete), continuous), with ``params`` of
    ``log_density``. Entry k of theta is entry order[k] of the vector (continuous, discrete)."""

    log_density: LogDensity
    order: tuple[int, ...]

    def __call__(self, params: tuple[PyTree, Array], continuous: Array) -> Scalar:
        inner, discrete = params
        both = jnp.concatenate([continuous, discrete.astype(continuous.dtype)])
        return self.log_density(inner, both[jnp.asarray(self.order)])


class ContinuousPosterior:
    """Posterior of the continuous parameters given x and the discrete ones, from the ``joint``
    posterior of all parameters. ``order``: see `_Joined`; ``notes``: as in `ScoredPairs`."""

    def __init__(
        self, joint: Densities, order: tuple[int, ...], notes: dict[str, Any], *, named: bool
    ):
        self.joint, self.order, self.notes, self.named = joint, order, notes, named

    def scored(self, thetas: Array, xs: dict[str, Array], nodes: Array | None) -> Scores:
        units = Units.unchanged(thetas)
        predictions = Standardized(self.predictions(xs), units, thetas.shape[1:])
        return Scores(*scores_at(predictions, thetas, nodes), nodes)

    def predictions(self, xs: dict[str, Array]) -> Unnormalized:
        """Return the n posteriors of continuous parameters given x and discrete ones in ``xs``."""
        of_all = self.of_all(xs)
        density = _Joined(of_all.log_density, self.order)
        return Unnormalized(density, (of_all.params, xs[Z]), in_axes=(of_all.in_axes, 0))

    def of_all(self, xs: dict[str, Array]) -> Unnormalized:
        """Return the n posteriors of all parameters given x; TypeError if not `Unnormalized`."""
        observed = {name: value for name, value in xs.items() if name != Z}
        predictions = self.joint.predictions(observed if self.named else observed[X])
        if not isinstance(predictions, Unnormalized):
            raise TypeError(
                "discrete: this needs log densities of one theta given one x, not distributions: "
                "pass a function log_prob(theta, x)"
            )
        return predictions


class Split(NamedTuple):
    """Result of `split`. ``continuous`` holds arguments of `score_pairs` for continuous parameters:
    posterior, thetas, xs, options. For each discrete parameter, ``columns`` has its column of
    thetas, ``names`` its name, and ``values`` all its possible values, increasing."""

    continuous: tuple[ContinuousPosterior, Array, Any, PairOptions]
    columns: tuple[int, ...]
    names: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]

    def tests(self, key: Key, pairs: ScoredPairs, level: float) -> tuple[DiscreteParameter, ...]:
        """Test each discrete parameter; ``pairs``: result of `score_pairs` for ``continuous``."""
        posterior, xs = self.continuous[0], cast(dict[str, Array], pairs.xs)
        predictions = posterior.of_all(xs)
        discrete = xs[Z].astype(pairs.thetas.dtype)
        both = jnp.concatenate([pairs.space.bound(pairs.thetas), discrete], axis=1)
        thetas = both[:, jnp.asarray(posterior.order)]
        # columns: q features of x, discrete parameters, free continuous parameters
        inputs = jnp.concatenate([pairs.features.astype(thetas.dtype), pairs.thetas], axis=1)
        q = pairs.features.shape[1] - len(self.columns)
        called = (*(f"x[{k}]" for k in range(q)), *self.names, *pairs.names)
        tests = []
        for j, (column, name, values) in enumerate(
            zip(self.columns, self.names, self.values, strict=True)
        ):
            probabilities = _probabilities(predictions, thetas, jnp.asarray(values), column)
            undefined = ~np.all(np.isfinite(np.asarray(probabilities)), axis=1)
            if undefined.any():
                raise ValueError(
                    f"posterior: in {undefined.sum()} of {undefined.size} pairs (first row "
                    f"{np.argmax(undefined)}) the log density is NaN or +infinity at a "
                    f"value of {name}, or -infinity at all of its values"
                )
            place = jnp.searchsorted(jnp.asarray(values, thetas.dtype), thetas[:, column])
            tests.append(
                of_probabilities(
                    jax.random.fold_in(key, j),
                    probabilities,
                    place,
                    jnp.delete(inputs, q + j, axis=1),
                    level,
                    values=values,
                    features=tuple(np.delete(called, q + j).tolist()),
                    name=name,
                )
            )
        return tuple(tests)


def split(
    posterior: Any,
    thetas: ArrayLike | None,
    xs: Any,
    discrete: Mapping[str | int, ArrayLike] | None,
    options: PairOptions,
) -> Split | None:
    """Split a posterior into its continuous part and its discrete parameters; return None if
    ``discrete`` is None. Raises ValueError or TypeError that names the wrong argument."""
    if discrete is None:
        return None
    if isinstance(posterior, ScoredPairs) or thetas is None or xs is None:
        raise TypeError("discrete: this needs a posterior, thetas and xs, not scored pairs")
    options = options.copy()
    prior = options.pop("prior", None)
    scorer: Any = as_posterior(posterior, thetas, prior)
    prior = getattr(scorer, "prior", None) if prior is None else prior
    if not hasattr(scorer, "predictions"):
        raise TypeError("discrete: this needs log densities: pass log_prob(theta, x)")
    of_all, alone = paired(thetas, xs)
    d = of_all.shape[1]
    names = checks.names(options.pop("names", None), d)
    names = names or tuple(f"theta_{k + 1}" for k in range(d))
    values = _values(discrete, names, np.asarray(of_all))
    columns, kept = tuple(values), tuple(k for k in range(d) if k not in values)
    if not kept:
        raise ValueError(
            "discrete: no parameter is continuous: pass the probabilities of each to jaxcal.check"
        )
    features, notes = summarized(scorer, alone, options.pop("summaries", None), len(of_all))
    z = of_all[:, jnp.asarray(columns)]
    called = tuple(names[k] for k in columns)
    notes |= {"given-discrete": (", ".join(called), features.shape[1])}
    order = tuple(int(k) for k in np.argsort([*kept, *columns]))
    options["prior"] = _prior_of(prior, kept, d)
    options["summaries"] = jnp.concatenate([features, z.astype(features.dtype)], axis=1)
    options["names"] = [names[k] for k in kept]
    notes, named = getattr(scorer, "notes", {}) | notes, isinstance(alone, dict)
    posterior = ContinuousPosterior(scorer, order, notes, named=named)
    observed = alone if named else {X: alone}
    continuous = (posterior, of_all[:, jnp.asarray(kept)], {**observed, Z: z}, options)
    return Split(continuous, columns, called, tuple(values.values()))


def _values(
    discrete: Mapping[str | int, ArrayLike], names: tuple[str, ...], thetas: np.ndarray
) -> dict[int, tuple[float, ...]]:
    """Return a dict from column to values of each discrete parameter, in increasing order."""
    if not isinstance(discrete, Mapping) or not discrete:
        raise TypeError(
            f"discrete: wanted a dict from names or columns of discrete parameters to all their "
            f"values, such as {{'model': [0, 1, 2]}}, got {convert.say(discrete)}"
        )
    by_column: dict[int, tuple[float, ...]] = {}
    for which, listed in discrete.items():
        column = names.index(which) if which in names else which
        if not isinstance(column, int) or not -len(names) <= column < len(names):
            raise ValueError(
                f"discrete: {which!r} is no parameter: these are {', '.join(names)}, or columns 0 "
                f"to {len(names) - 1}"
            )
        column %= len(names)
        values = np.unique(np.asarray(listed, float).ravel())
        if not 2 <= len(values) <= MOST_VALUES or not np.all(np.isfinite(values)):
            raise ValueError(
                f"discrete: wanted 2 to {MOST_VALUES} finite values of {names[column]}, got "
                f"{len(values)}"
            )
        unknown = ~np.isin(thetas[:, column], values.astype(thetas.dtype))
        if unknown.any():
            raise ValueError(
                f"discrete: {names[column]} is {thetas[unknown, column][0]:g} in row "
                f"{int(np.argmax(unknown))} of thetas, which is not among the values listed"
            )
        by_column[column] = tuple(values.tolist())
    return dict(sorted(by_column.items()))


def _prior_of(prior: Any, kept: tuple[int, ...], d: int) -> Any:
    """Return the prior of the continuous parameters (columns ``kept``); None without ``prior``. If
    ``prior`` is of all d parameters, it must be draws, a function or sbi's ``MultipleIndependent``:
    other distributions raise ValueError. A prior of the continuous parameters is unchanged."""
    if prior is None:
        return None
    parts = getattr(prior, "dists", None)  # sbi's MultipleIndependent
    if parts is not None:
        sizes = [int(np.prod((*part.batch_shape, *part.event_shape))) for part in parts]
        owners = {int(np.searchsorted(np.cumsum(sizes), k, side="right")) for k in kept}
        if sum(sizes[k] for k in owners) != len(kept):
            raise ValueError(
                "prior: one part has discrete and continuous parameters: pass draws [m, d]"
            )
        chosen = [parts[k] for k in sorted(owners)]
        return chosen[0] if len(chosen) == 1 else type(prior)(chosen, validate_args=False)
    if tuple(getattr(prior, "event_shape", (d,))) != (d,):
        return prior
    if hasattr(prior, "sample") and not convert.brought(prior):
        raise ValueError(
            "prior: a distribution of all parameters does not give that of the continuous ones: "
            "pass that of the continuous ones, a function prior(key, m), or draws [m, d]"
        )
    if callable(prior):
        return lambda key, m: _columns(prior(key, m), kept, d)
    return _columns(prior, kept, d)


def _columns(prior: Any, kept: tuple[int, ...], d: int) -> Array:
    """Return the columns ``kept`` of draws [m, d]; draws that have only these are unchanged."""
    draws = convert.floats(prior, "prior")
    if draws.ndim != 2 or draws.shape[1] not in (len(kept), d):
        raise ValueError(
            f"prior: wanted draws [m, {d}] of all parameters, or [m, {len(kept)}] of the "
            f"continuous ones, got {draws.shape}"
        )
    return draws if draws.shape[1] == len(kept) else draws[:, jnp.asarray(kept)]


@jax.jit
def _probabilities(
    predictions: Unnormalized,
    thetas: Float[Array, "n d"],
    values: Float[Array, " k"],
    column: int | Array,
) -> Float[Array, "n k"]:
    """Return probabilities of the k values of parameter ``column`` given x and the others."""

    def of_one(params: PyTree, theta: Array) -> Array:
        return jax.lax.map(
            lambda value: predictions.log_density(params, theta.at[column].set(value)),
            values.astype(theta.dtype),
        )

    logs = jax.vmap(of_one, in_axes=(predictions.in_axes, 0))(predictions.params, thetas)
    return jax.nn.softmax(logs, axis=1)
