"""Test calibration of a stream: batches of observations are reduced to sums, which add up."""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxcal.engine import LightJit
from jaxcal.entries.calibration import LEAST_ROWS, Names, about_data
from jaxcal.entries.evidence import log_evidence, side_by_side
from jaxcal.entries.landed import N_POINTS
from jaxcal.entries.moments import Frame, Group, groups
from jaxcal.entries.ranks import IMPROBABLE, Fit, normal
from jaxcal.entries.table import sharpened, summed_table, table_sums
from jaxcal.nulls.contract import p_value
from jaxcal.numerics import independent_signs
from jaxcal.read import Units
from jaxcal.read.scores import coarse, coarse_sums, is_discrete, sign_of_sums, sign_sums
from jaxcal.results import Parts, Table
from jaxcal.results.notes import Notes
from jaxcal.typing import Key, Keys, Points, Predictions

Layout = tuple[tuple[str, float, tuple[int, ...], int | None], ...]  # `EntriesFit.layout`


class EntriesFit(eqx.Module):
    """Fit to a first sample of a stream; given the fit, every entry is a sum over observations.

    ``units``: units of the targets. ``frame``: maps to features. ``ends``: whether a density has a
    boundary. ``even``: whether points have equal weights, as draws do. ``layout``: name, weight,
    sizes of ``blocks`` and size of ``alone`` of each `Group`. ``n_draws``: number b of columns of
    random signs. ``notes``: problems of the data of the fit, by warning code.

    Methods use dicts of sums over observations. "entries" [k, 1 + b]: k entries without signs, then
    with b columns of signs. "squares" [k]: squares of entries. "products" [c, c]: products of the c
    entries in blocks. "cubes", "powers": `table_sums` of normal and of resolved scores. "coarse":
    `coarse_sums`. "signs": `sign_sums`. "chance": `Seen.chance`. Other names: counts (`COUNTS`).
    """

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
        inputs: Points | None,
        n_draws: int,
        names: Names,
    ) -> "EntriesFit":
        """Return the fit to checked observations."""
        units, frame, ends, even, notes, layout = _fitted(key, predictions, ys, inputs)
        return cls(key, units, frame, ends, even, notes, layout, n_draws, names)

    def zeros(self) -> dict[str, np.ndarray]:
        """Return the sums over no observations: zeros."""
        c = sum(sum(sizes) for _, _, sizes, _ in self.layout)
        k = c + sum(alone or 0 for *_, alone in self.layout)
        shapes = {"entries": (k, 1 + self.n_draws), "products": (c, c), "squares": (k,)}
        d, f = len(self.frame.center.columns.center), len(self.names[1]) - 1
        shapes |= {"cubes": (2, d, f + 2, f + 2, f + 2), "powers": (2, d, f, 5, 5)}
        shapes |= {"coarse": (3, d), "signs": (2,)}
        return {name: np.zeros(shape) for name, shape in shapes.items()} | {
            name: np.zeros(()) for name in COUNTS
        }

    def of_batch(
        self,
        predictions: Predictions,
        ys: Array,
        inputs: Points | None,
        rows: np.ndarray,
        done: int,
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return a dict of sums over a batch, and a dict of minima: "rank" is the smallest
        `Ranked.at_most`, "coarse-logs" is minus the note with this code. ``rows``: row numbers in
        the stream, which determine random keys. The first ``done`` rows are left out."""
        high, low = (np.asarray(part, np.uint32) for part in np.divmod(rows, 2**32))
        return _sums(self, predictions, ys, inputs, (high, low), jnp.asarray(done))

    def table(self, sums: dict[str, np.ndarray], level: float) -> Table | None:
        """Return the table of shifts and spreads; None below `LEAST_ROWS` observations."""
        if sums["cubes"][0, 0, 0, 0, 0] < LEAST_ROWS:
            return None
        with jax.enable_x64(True):
            of = sums["cubes"], sums["powers"], level, *self.names, (N_POINTS, self.even)
            table = sharpened(summed_table(*of), self.even)
            return jax.tree.map(np.asarray, table)

    def noted(self, sums: dict[str, np.ndarray], n: int, least: dict[str, float]) -> dict[str, Any]:
        """Return the notes of the fit, and notes on n observations from their sums and minima."""
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

    def judged(self, sums: dict[str, np.ndarray], n: int, least_rank: float) -> "Judged":
        """Return the result from sums over n observations and their smallest `Ranked.at_most`."""
        with jax.enable_x64(True):
            arrays = (jnp.asarray(sums[name]) for name in ("entries", "products", "squares"))
            statistic, each = _judged(*arrays, layout=self.layout)
            p = p_value(statistic[None, 0], statistic[None, 1:])[0]
            names = tuple(name for name, *_ in self.layout)
            per_part = p_value(each[:, 0], each[:, 1:])
            parts = Parts(names, each[:, 0], per_part, jnp.argmax(each[:, 0]))
        if sums["impossible"] > 0 or least_rank <= IMPROBABLE / n:
            p = jnp.full_like(p, 1 / (1 + self.n_draws))
        return Judged(float(p), float(statistic[0]), np.asarray(statistic[1:]), parts)


COUNTS = ("impossible", "lost", "nonfinite", "ended", "uneven", "endless", "chance")
CODES = {
    "impossible": "impossible-targets",
    "lost": "nonfinite-scores",
    "nonfinite": "nonfinite-targets",
    "endless": "endless-densities",
}


class Judged(NamedTuple):
    """Result of a test: p-value, statistic, its null draws, and p-values by alternative."""

    p_value: float
    statistic: float
    null_samples: Float[np.ndarray, " b"]
    parts: Parts


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
