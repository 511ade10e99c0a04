"""Test calibration of a stream: batches of observations are reduced to sums, which add up."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from jaxcal.engine import LightJit
from jaxcal.entries.calibration import LEAST_ROWS, Names, about_data, observed, table_names
from jaxcal.entries.evidence import log_evidence, side_by_side
from jaxcal.entries.landed import N_POINTS
from jaxcal.entries.moments import Frame, Group, groups
from jaxcal.entries.ranks import IMPROBABLE, Fit, normal
from jaxcal.entries.table import sharpened, summed_table, table_sums
from jaxcal.nulls.contract import p_value
from jaxcal.numerics import independent_signs
from jaxcal.read import Units, checks
from jaxcal.read.convert import input_names
from jaxcal.read.scores import coarse, coarse_sums, is_discrete, sign_of_sums, sign_sums
from jaxcal.results import Parts, Table
from jaxcal.results.notes import Notes
from jaxcal.streaming.linear import StreamedCalibration
from jaxcal.streaming.state import StreamState
from jaxcal.typing import ArrayLike, Key, Keys, Points, Predictions

Layout = tuple[tuple[str, float, tuple[int, ...], int | None], ...]  # `EntriesFit.layout`


class EntriesFit(eqx.Module):
    """A calibration test fitted to a first sample; implements `jaxcal.streaming.state.Sums`.

    ``units``: units of the targets. ``frame``: maps to features. ``ends``: whether a density has a
    boundary. ``even``: whether points have equal weights, as draws do. ``layout``: name, weight,
    sizes of ``blocks`` and size of ``alone`` of each `Group`. ``n_draws``: number b of columns of
    random signs. ``notes``: problems of the data of the fit, by warning code.

    Given the fit, every entry is a sum over observations. The sums: "entries" [k, 1 + b]: k entries
    without signs, then with b columns of signs. "squares" [k]: their squares. "products" [c, c]:
    products of the c entries in blocks. "cubes", "powers": `table_sums` of normal and of resolved
    scores. "coarse": `coarse_sums`. "signs": `sign_sums`. "chance": `Seen.chance`. Other names:
    counts. Minima: "rank" is the smallest `Ranked.at_most`, "coarse-logs" minus the note with this
    code.
    """

    numbered = True
    key: Key
    units: Units
    frame: Frame
    ends: Bool[Array, ""]
    even: Bool[Array, ""]
    notes: Notes
    layout: Layout = eqx.field(static=True)
    n_draws: int = eqx.field(static=True)
    names: Names = eqx.field(static=True)

    @classmethod
    def of(
        cls,
        key: Key,
        predictions: Predictions,
        ys: Array,
        inputs: ArrayLike | None,
        n_draws: int,
        names: Sequence[str] | None,
    ) -> "EntriesFit":
        """Return the test fitted to observations; ``names`` are those of the target coordinates."""
        checked, columns = observed(predictions, ys, inputs)
        called = table_names(names, ys, inputs, columns)
        return cls(key, *_fitted(key, checked, ys, columns), n_draws=n_draws, names=called)

    def of_batch(self, batch: PyTree, first: int, done: int) -> tuple[int, Any, Any]:
        predictions, targets, *inputs = batch
        ys = checks.targets(targets, least=1)
        checked, columns = observed(predictions, ys, inputs[0] if inputs else None)
        checks.width(ys, self.units.scale, "targets")
        few, q = self.frame.inputs, 0 if columns is None else columns.shape[1]
        if q != (first_q := 0 if few is None else few.columns.scale.size):
            raise ValueError(f"inputs: the first sample had {first_q} columns, the batch has {q}")
        input_names(inputs[0] if inputs else None, q, self.names[1][3:])
        rows = row_numbers(first, len(ys))
        return len(ys), *_sums(self, checked, ys, columns, rows, jnp.asarray(done))

    def table(self, sums: dict[str, np.ndarray], level: float) -> Table | None:
        """Return the table of shifts and spreads; None below `LEAST_ROWS` observations."""
        if sums["cubes"][0, 0, 0, 0, 0] < LEAST_ROWS:
            return None
        with jax.enable_x64(True):
            of = sums["cubes"], sums["powers"], level, *self.names, (N_POINTS, self.even)
            table = sharpened(summed_table(*of), self.even)
            return jax.tree.map(np.asarray, table)

    def noted(self, state: StreamState) -> dict[str, Any]:
        """Return notes on all observations and on the first sample, by code of their warning."""
        n, sums, least = state.n, state.sums, state.least
        counted = {code: np.asarray(int(sums[name])) for name, code in CODES.items()}
        return (
            self.notes
            | counted
            | coarse(jnp.asarray(sums["coarse"]), n)
            | {
                "improbable-targets": np.asarray(int(least["rank"] <= IMPROBABLE / n)),
                "density-with-edge": self.ends,
                "far-points": sums["chance"] / n,
                "coarse-logs": np.asarray(-least["coarse-logs"]),
                "reversed-sign": sign_of_sums(jnp.asarray(sums["signs"]), n),
                "constant-inputs": self.frame.n_constant,
            }
        )

    def result(
        self, state: StreamState, n_first: int, name: str, level: float
    ) -> StreamedCalibration:
        sums = state.sums
        counts = {name: int(sums[name]) for name in ("impossible", "lost", "nonfinite", "ended")}
        counts["constant"] = int(self.frame.n_constant)
        with jax.enable_x64(True):
            arrays = (jnp.asarray(sums[name]) for name in ("entries", "products", "squares"))
            statistic, each = _judged(*arrays, layout=self.layout)
            p = float(p_value(statistic[None, 0], statistic[None, 1:])[0])
            names = tuple(name for name, *_ in self.layout)
            per_part = p_value(each[:, 0], each[:, 1:])
            parts = Parts(names, each[:, 0], per_part, jnp.argmax(each[:, 0]))
        if counts["impossible"] or state.least["rank"] <= IMPROBABLE / state.n:
            p = 1 / (1 + self.n_draws)
        wrong = counts["lost"] + counts["nonfinite"] + counts["ended"]
        silent = sums["uneven"] == 0 and not counts["impossible"]
        return StreamedCalibration(
            float(statistic[0]),
            math.nan if wrong or silent else p,
            np.asarray(statistic[1:]),
            parts,
            self.table(sums, level),
            state.n,
            n_first,
            counts,
            level,
            {code: np.asarray(number) for code, number in self.noted(state).items()},
        )


CODES = {
    "impossible": "impossible-targets",
    "lost": "nonfinite-scores",
    "nonfinite": "nonfinite-targets",
    "endless": "endless-densities",
}


@eqx.filter_jit
def _fitted(key: Key, predictions: Predictions, ys: Array, inputs: Points | None) -> Any:
    near_key, _ = jax.random.split(key)
    fit = Fit.of(near_key, predictions, ys)
    frame = Frame.of(fit.seen, inputs)
    named = groups(frame, fit.seen, fit.scores, fit.ends, inputs)
    layout = tuple(
        (
            group.name,
            group.weight,
            tuple(block.shape[1] for block in group.blocks),
            None if group.alone is None else group.alone.shape[1],
        )
        for group in named
    )
    units, notes = Units.of(ys.reshape(len(ys), -1)), about_data(predictions, ys, inputs)
    return units, frame, fit.ends, fit.seen.ranks.even(), notes, layout


def row_numbers(first: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the high and low 32 bits of the row numbers ``first``, .., ``first`` + n - 1."""
    high, low = np.divmod(first + np.arange(n), 2**32)
    return high.astype(np.uint32), low.astype(np.uint32)


def row_keys(key: Key, rows: tuple[Array, Array]) -> Keys:
    """Return a key for each row number, from its high and its low 32 bits."""
    return jax.vmap(lambda high, low: jax.random.fold_in(jax.random.fold_in(key, high), low))(*rows)


def row_signs(keys: Keys, b: int, dtype: Any) -> Float[Array, "n b"]:
    """Return b random signs for each row, from its key."""
    return jax.vmap(lambda key: independent_signs(key, 1, b, dtype)[0])(keys)


@LightJit
def _sums(
    fitted: EntriesFit,
    predictions: Predictions,
    ys: Array,
    inputs: Points | None,
    rows: tuple[Array, Array],
    done: Array,
) -> tuple[dict[str, Array], dict[str, Array]]:
    near_key, sign_key = jax.random.split(fitted.key)
    fixed = fitted.units, fitted.ends
    fit = Fit.of(row_keys(near_key, rows), predictions, ys, fixed)
    named = groups(fitted.frame, fit.seen, fit.scores, fit.ends, inputs)
    new = jnp.arange(len(ys)) >= done
    kept = fit.kept & new
    values, in_blocks = side_by_side(named, kept)
    signs = row_signs(row_keys(sign_key, rows), fitted.n_draws, values.dtype)
    drawn = values.T @ signs
    products = values[:, :in_blocks].T @ values[:, :in_blocks]
    finite = jnp.all(jnp.isfinite(ys.reshape(len(ys), -1)), axis=1)
    counted = {
        "impossible": fit.impossible & ~fit.kept & new,
        "lost": fit.lost & new,
        "nonfinite": ~finite & new,
        "ended": fit.seen.ends & kept & ~fitted.ends,
        "uneven": ~fit.seen.flat & kept,
        "endless": fit.seen.endless & kept,
        "chance": jnp.where(kept, fit.seen.chance, 0),
    }
    sums = {
        "entries": jnp.concatenate([jnp.sum(values, axis=0)[:, None], drawn], axis=1),
        "products": products,
        "squares": jnp.sum(values**2, axis=0),
    }
    along = fitted.frame.along(fit.seen, inputs)
    scores = jnp.stack([fit.seen.ranks.normal, normal(fit.seen.ranks.resolved)])
    cubes, powers = jax.vmap(lambda of: table_sums(of, along, kept))(scores)
    sums |= {"cubes": cubes, "powers": powers}
    raw = ys.reshape(len(ys), -1)
    exact = is_discrete(predictions)  # rounded like targets
    inverse = jnp.zeros_like(raw) if exact else 1 / fit.seen.claims[1]
    sums["coarse"] = coarse_sums(raw.astype(inverse.dtype), fitted.units.scale, inverse, new)
    points = fitted.units.points(raw)
    scores = jnp.zeros_like(points) if fit.scores is None else fit.scores
    sums["signs"] = sign_sums(points, scores, kept)
    ranks = jnp.where(kept, fit.seen.ranks.at_most, 1)
    least = {"rank": jnp.min(ranks, initial=1), "coarse-logs": -fit.notes["coarse-logs"]}
    return sums | {name: jnp.sum(rows) for name, rows in counted.items()}, least


@partial(jax.jit, static_argnames="layout")
def _judged(entries: Array, products: Array, squares: Array, *, layout: Layout) -> Any:
    """Return statistics of the test [1 + b] and of groups [g, 1 + b]: observed, then b draws."""
    sizes = jnp.sqrt(squares)
    safe = jnp.where(sizes > 0, sizes, 1)
    of_blocks = safe[: len(products)]
    named = [
        Group(name, weight, [_like(k) for k in sizes], None if alone is None else _like(alone))
        for name, weight, sizes, alone in layout
    ]
    correlations = products / (of_blocks[:, None] * of_blocks[None])
    each = log_evidence(entries / safe[:, None], correlations, named)
    return jax.nn.logsumexp(each, axis=0), each


def _like(k: int) -> Any:
    """Return a placeholder for k entries; `log_evidence` uses only their number."""
    return jax.ShapeDtypeStruct((1, k), float)
