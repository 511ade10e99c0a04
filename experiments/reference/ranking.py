"""How reliably a measure ranks models: many small data sets, and measures along a shift."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.ckce.inputs import stacked
from jaxcal.measures.classes import wilson
from jaxcal.read import checks, convert
from jaxcal.typing import KeyLike

Measure = Callable[[Array, Array], Array]  # probabilities [n, m], labels [n] -> a number


class Trials(eqx.Module):
    """``values`` [trials, measures, M]: what each measure gave each model in each trial."""

    values: Float[Array, "t s M"]
    measures: tuple[str, ...] = eqx.field(static=True)

    def wins(self, measure: str) -> Float[Array, "M M"]:
        """In what share of the trials the row model scored strictly below the column model.

        NaN for a pair where a value of one of the two is.
        """
        values = self.values[:, self.measures.index(measure)]
        rows, cols = values[:, :, None], values[:, None, :]
        below = (rows < cols).astype(values.dtype)
        return jnp.mean(jnp.where(jnp.isnan(rows) | jnp.isnan(cols), jnp.nan, below), axis=0)

    def intervals(self, measure: str) -> tuple[Float[Array, "M M"], Float[Array, "M M"]]:
        """95 % intervals of Wilson (1927) for the rates behind `wins`. Source: App. C.1."""
        rates = self.wins(measure)
        return wilson(rates, jnp.full_like(rates, len(self.values)))

    def in_order(self, measure: str, order: Sequence[int]) -> Float[Array, " t"]:
        """1 for every trial that put these models into this order, lowest first; else 0.

        NaN where one of the values is.
        """
        values = self.values[:, self.measures.index(measure)][:, jnp.asarray(order)]
        rising = jnp.all(values[:, 1:] > values[:, :-1], axis=1).astype(values.dtype)
        return jnp.where(jnp.any(jnp.isnan(values), axis=1), jnp.nan, rising)


def subsample_trials(
    key: KeyLike,
    models: Any,
    targets: Any,
    measures: Mapping[str, Measure],
    *,
    size: int,
    trials: int,
) -> Trials:
    """Every measure of every model on ``trials`` subsets of ``size`` observations.

    Subsets are drawn without replacement and are the same for all models and measures; each
    measure is one program, walked over trials and models. ``models`` as in `compare`, at least two.
    Source: Section 5.1.2.
    """
    key = convert.key(key)
    _, stack = stacked(models)
    _, n, m = stack.shape
    size = convert.integer(size, "size", least=2, most=n)
    labels, measures = checks.labels(targets, n, m), _measures(measures)
    keys = jax.random.split(key, convert.integer(trials, "trials"))
    rows = jax.lax.map(lambda k: jax.random.permutation(k, n)[:size], keys)
    values = [_on_subsets(measure, stack, labels, rows) for measure in measures.values()]
    return Trials(jnp.stack(values, axis=1), tuple(measures))


@partial(jax.jit, static_argnums=0)
def _on_subsets(measure: Measure, models: Array, labels: Array, rows: Array) -> Array:
    def trial(chosen: Array) -> Array:
        return jax.lax.map(lambda q: measure(q[chosen], labels[chosen]), models)

    return jax.lax.map(trial, rows)


class Drawn(NamedTuple):
    """Models [M, n, m] and labels [n] of one data set."""

    models: Float[Array, "M n m"]
    labels: Array


def drawn_trials(
    key: KeyLike,
    make: Callable[[Array], Drawn],
    measures: Mapping[str, Measure],
    *,
    trials: int,
) -> Trials:
    """Every measure of every model on ``trials`` data sets that ``make(key)`` draws.

    All data sets are held at once. Source: Section 5.1.1.
    """
    key = convert.key(key)
    keys = jax.random.split(key, convert.integer(trials, "trials"))
    convert.function(make, "make", "a key")
    measures = _measures(measures)
    sets = _checked(_drawn(make, keys))
    values = [_on_sets(measure, *sets) for measure in measures.values()]
    return Trials(jnp.stack(values, axis=1), tuple(measures))


def _measures(value: Any) -> Mapping[str, Measure]:
    if not isinstance(value, Mapping) or not value:
        raise TypeError(f"measures: wanted a dict of functions by name, got {convert.say(value)}")
    for name, measure in value.items():
        convert.function(measure, f"measures[{name!r}]", "probabilities and labels")
    return value


def _checked(sets: Any) -> Drawn:
    """The data sets that ``make`` drew, or ValueError."""
    shapes = [jnp.shape(leaf) for leaf in sets] if isinstance(sets, tuple) else []
    if len(shapes) != 2 or len(shapes[0]) != 4 or shapes[1] != shapes[0][::2]:
        raise ValueError(
            f"make: wanted Drawn(models [M, n, m], labels [n]) of one data set, got shapes "
            f"{[shape[1:] for shape in shapes]}"
        )
    return Drawn(*sets)


@partial(jax.jit, static_argnums=0)
def _drawn(make: Callable[[Array], Drawn], keys: Array) -> Drawn:
    return jax.lax.map(make, keys)


@partial(jax.jit, static_argnums=0)
def _on_sets(measure: Measure, models: Array, labels: Array) -> Array:
    def one_set(each: tuple[Array, Array]) -> Array:
        return jax.lax.map(lambda q: measure(q, each[1]), each[0])

    return jax.lax.map(one_set, (models, labels))


def shift_curves(
    key: KeyLike,
    make: Callable[[Array, Array], Drawn],
    shifts: Any,
    measures: Mapping[str, Measure],
    *,
    trials: int,
) -> Float[Array, "a t s M"]:
    """Measures along a shift: [shifts, trials, measures, M] from data sets ``make(key, shift)``.

    All measures and all shifts of a trial use the same key. Source: Section 5.2.
    """
    key = convert.key(key)
    keys = jax.random.split(key, convert.integer(trials, "trials"))
    places = convert.floats(shifts, "shifts")
    if places.ndim != 1 or not places.size:
        raise ValueError(f"shifts: wanted a row of numbers, got shape {places.shape}")
    convert.function(make, "make", "a key and a shift")
    measures = _measures(measures)
    sets = _checked(_moved(make, keys, places))
    values = [_on_sets(measure, *sets) for measure in measures.values()]
    return jnp.stack(values, axis=1).reshape(places.size, trials, len(values), -1)


@partial(jax.jit, static_argnums=0)
def _moved(make: Callable[[Array, Array], Drawn], keys: Array, places: Array) -> Drawn:
    def at(place: Array) -> Drawn:
        return jax.lax.map(lambda key: make(key, place), keys)

    sets = jax.lax.map(at, places)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), sets)
