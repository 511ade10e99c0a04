r"""Compute features and residuals of the rows of a streamed comparison, and their random groups.

`ClassRows` reads class probabilities, and `RankRows` other predictions. `Dealt` assigns rows to
groups by their row numbers.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxcal.ckce import probability
from jaxcal.ckce.errors import BLOCKS
from jaxcal.ckce.inputs import COMPONENTS, named, stacked
from jaxcal.ckce.probability import said
from jaxcal.ckce.results import Covered, Says
from jaxcal.entries.moments import Scaling
from jaxcal.entries.ranks import seen
from jaxcal.read import Standardized, Units, checks
from jaxcal.read.scores import compiled_log_densities, is_distribution
from jaxcal.results.notes import of_a_chain
from jaxcal.streaming.calibration import row_keys, row_numbers
from jaxcal.typing import ArrayLike, Contents, Key, Models, Points


class Rows(NamedTuple):
    """Features, residuals and other quantities of n rows for one model.

    Attributes:
        x: Features of the predictions, [n, s].
        d: Residuals, [n, p].
        drawn: Random residuals under calibration, [n, p]; for ranks, d times random signs.
        added: Residuals of uniformly drawn targets, [n, p].
        moments: Numbers [t, n, q], whose means over rows are the input of `told`.
        scores: Scores, [c, n]. Row 0, for classes only: 1 if the most probable class is the target,
            else 0. Last row: negative log probability or density of the target, NaN if unknown.
        lost: 1 for rows with values that are not finite, else 0, [n].
    """

    x: Float[np.ndarray, "n s"]
    d: Float[np.ndarray, "n p"]
    drawn: Float[np.ndarray, "n p"]
    added: Float[np.ndarray, "n p"]
    moments: Float[np.ndarray, "t n q"]
    scores: Float[np.ndarray, "c n"]
    lost: Float[np.ndarray, " n"]


class Sizes(NamedTuple):
    """Moments of the added residuals of `Rows`, and the number of random numbers of a row.

    Attributes:
        added: Mean squared norm of added residuals.
        along: Largest eigenvalue of the covariance of added residuals (approximate for ranks).
        uniforms: Number of uniform random numbers that each row needs.
    """

    added: float
    along: float
    uniforms: int


class Dealt(NamedTuple):
    """Random assignment of numbered rows to groups.

    Attributes:
        first: Number of the first row of the batch.
        places: Batch index of row (i, j): that of the i-th run of `BLOCKS` rows in group j, [k, b].
        real: 1 if this row belongs to the batch, else 0 (``places`` is then meaningless), [k, b].
        uniforms: Uniform random numbers of each row, [n, u].
        new: 1 for rows to add to the sums, 0 for rows that were added before, [n].
    """

    first: int
    places: Int[np.ndarray, "k b"]
    real: Float[np.ndarray, "k b"]
    uniforms: Float[np.ndarray, "n u"]
    new: Float[np.ndarray, " n"]

    @classmethod
    def of(cls, words: np.ndarray, first: int, n: int, done: int, count: int) -> "Dealt":
        """Assign n rows with numbers from ``first`` to groups, and draw ``count`` uniform numbers
        per row. ``words``: bits of a random key. ``done``: number of first rows to leave out."""
        start = first // BLOCKS * BLOCKS
        runs = range(start // BLOCKS, -(-(first + n) // BLOCKS))
        places, uniforms = np.zeros((len(runs), BLOCKS), int), np.zeros((len(runs), BLOCKS, count))
        for k, run in enumerate(runs):
            random = np.random.default_rng([*words.tolist(), run])
            places[k] = k * BLOCKS + start - first + random.permutation(BLOCKS)
            uniforms[k] = random.random((BLOCKS, count))
        real = (places >= 0) & (places < n)
        of_batch = slice(first - start, first - start + n)
        new = (np.arange(n) >= done).astype(float)
        numbers = uniforms.reshape(-1, count)[of_batch]
        return cls(first, np.clip(places, 0, n - 1), real, numbers, new)

    def sums(self, of: Rows) -> dict[str, np.ndarray]:
        """Return sums over the rows with ``new`` = 1, for one model.

        "groups" [b, s, t]: g v^T for each of b groups, where g = (1, x) has length s, and v = (g,
        d, ``drawn``, ``added``, |d|^2) has length t = s + 3 p + 1 if d has length p. "sizes"
        [s, s]: |d|^2 g g^T. The others: fields of `Rows`."""
        n, new = len(of.x), self.new
        g = np.concatenate([np.ones((n, 1)), of.x], axis=1) * new[:, None]
        square = np.sum(of.d**2, axis=1, keepdims=True)
        right = np.concatenate([g, of.d, of.drawn, of.added, square], axis=1)
        return {
            "groups": self.products(g, right),
            "sizes": (g * square).T @ g,
            "moments": np.sum(of.moments * new[None, :, None], axis=1),
            "scores": np.sum(np.where(new > 0, of.scores, 0), axis=1),  # some are inf
            "lost": of.lost @ new,
        }

    def products(
        self, left: Float[np.ndarray, "n s"], right: Float[np.ndarray, "n t"]
    ) -> Float[np.ndarray, "b s t"]:
        """Return, for each group, the sum over its rows of outer products of left and right."""
        of_group = (left[self.places] * self.real[:, :, None]).transpose(1, 2, 0)
        return of_group @ right[self.places].transpose(1, 0, 2)


class ClassRows(eqx.Module):
    """Reader of class probabilities; residuals are one-hot targets minus probabilities.

    Attributes:
        directions: For more than `COMPONENTS` classes, leading principal components of each model's
            probabilities, on which residuals are regressed, [M, m, s]; else None.
        m: Number of classes.
    """

    directions: Float[Array, "M m s"] | None
    m: int = eqx.field(static=True)

    @classmethod
    def of(cls, models: Models, targets: ArrayLike) -> tuple["ClassRows", tuple[str, ...]]:
        """Return the reader fitted to a first sample of predictions, and the names of models."""
        names, stack = stacked(models)
        _, n, m = stack.shape
        checks.labels(targets, n, m)
        if m <= COMPONENTS:
            return cls(None, m), names
        if n < COMPONENTS:
            raise ValueError(
                f"targets: a first sample of {m} classes needs at least {COMPONENTS} "
                f"observations, got {n}"
            )
        centred = stack - jnp.mean(stack, axis=1, keepdims=True)
        *_, rows = jnp.linalg.svd(centred, full_matrices=False)
        return cls(jnp.swapaxes(rows[:, : COMPONENTS - 1], 1, 2), m), names

    @property
    def sizes(self) -> Sizes:
        return Sizes(1 - 1 / self.m, 1 / self.m, 2)

    def read(self, models: Models, targets: ArrayLike) -> tuple[tuple[str, ...], list[Any], Any]:
        """Return names, predictions and targets of a batch; ValueError if they are unusable."""
        names, stack = stacked(models)
        _, n, m = stack.shape
        if m != self.m:
            raise ValueError(f"models: the first sample had {self.m} classes, the batch has {m}")
        return names, list(np.asarray(stack, np.float64)), np.asarray(checks.labels(targets, n, m))

    def of_model(
        self, k: int, q: Float[np.ndarray, "n m"], labels: Int[np.ndarray, " n"], dealt: Dealt
    ) -> Rows:
        """Return the `Rows` of the k-th model from its probabilities q of a batch."""
        m, one_hot = self.m, np.eye(self.m)
        of_class = np.sum(dealt.uniforms[:, :1] > np.cumsum(q, axis=1)[:, :-1], axis=1)
        y = one_hot[labels]
        with np.errstate(divide="ignore"):
            log = -np.log(q[np.arange(len(q)), labels])
        return Rows(
            x=q if self.directions is None else q @ np.asarray(self.directions[k]),
            d=y - q,
            drawn=one_hot[of_class] - q,
            added=one_hot[(dealt.uniforms[:, 1] * m).astype(int)] - 1 / m,
            moments=np.stack([q, y, q**2, q * y]),
            scores=np.stack([np.argmax(q, axis=1) == labels, log]),
            lost=np.zeros(len(q)),  # rows that are not finite are refused
        )

    def told(self, moments: Float[Array, "M 4 m"], skill: Float[Array, "M 3"]) -> Contents:
        """Return the fields "says" and "skill" of a `Comparison`. ``moments``: means of
        `Rows.moments` over all rows. ``skill``: means of |d|^2 and of the `Rows.scores`."""
        eps = float(jnp.finfo(jnp.float32).eps)

        def one(of: Float[Array, "4 m"]) -> Says:
            q, y, squares, products = of
            return said(q, y, squares - q**2, products - q * y, eps)

        names = ("Brier", "accuracy", "log")
        return {"says": jax.vmap(one)(moments), "skill": dict(zip(names, skill.T, strict=True))}


class RankRows(eqx.Module):
    """Reader of predictions that are not class probabilities, in the units of a first sample.
    Residuals are scaled 1{r <= t} - t, for the rank r of a target in [0, 1] and ten levels t.

    Attributes:
        key: Random key. Key and row number determine the random draws of a row.
        units: Units from the targets of the first sample.
        scalings: For each model, standardizations of the centres and log scales of predictions.
        event: Shape of one target.
    """

    key: Key
    units: Units
    scalings: tuple[tuple[Scaling, Scaling], ...]
    event: tuple[int, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, key: Key, models: Models, targets: ArrayLike) -> tuple["RankRows", tuple[str, ...]]:
        """Return the reader fitted to a first sample of predictions, and the names of models."""
        names, each = named(models)
        checked, ys, lags = probability.ready(names, each, targets)
        for name, lag in zip(names, lags, strict=True):
            text, chained = of_a_chain(name, float(lag))
            if chained:
                raise ValueError(f"models[{name}]: {text.partition(', so')[0]}: thin them first")
        units = Units.of(ys.reshape(len(ys), -1))
        numbers = row_numbers(0, len(ys))
        scalings = tuple(
            jax.tree.map(Scaling.of, _told(key, units, one, ys, numbers)[0]) for one in checked
        )
        return cls(key, units, scalings, ys.shape[1:]), names

    @property
    def sizes(self) -> Sizes:
        d, levels = len(self.units.center), probability.LEVELS
        size = 2 * float(np.mean(levels * (1 - levels)))
        return Sizes(size, 2 / (np.pi**2 * d), 1 + d)

    def read(self, models: Models, targets: ArrayLike) -> tuple[tuple[str, ...], list[Any], Any]:
        """Return names, predictions and targets of a batch; ValueError if they are unusable."""
        names, each = named(models)
        checked, ys, _ = probability.ready(names, each, targets, least=1)
        if ys.shape[1:] != self.event:
            raise ValueError(
                f"targets: those of the first sample have shape {self.event}, those of the batch "
                f"{ys.shape[1:]}"
            )
        return names, checked, ys

    def of_model(self, k: int, predictions: PyTree, ys: Array, dealt: Dealt) -> Rows:
        """Return the `Rows` of the k-th model from its predictions for a batch."""
        numbers = row_numbers(dealt.first, len(ys))
        claims, d, shares, finite = _told(self.key, self.units, predictions, ys, numbers)
        x = [scale(claim) for scale, claim in zip(self.scalings[k], claims, strict=True)]
        added, _ = probability.residuals(jnp.asarray(dealt.uniforms[:, 1:], ys.dtype))
        log = np.full(len(ys), np.nan)
        if is_distribution(predictions):
            log = -np.asarray(compiled_log_densities(predictions, ys), np.float64)
        d = np.asarray(d, np.float64)
        return Rows(
            x=np.asarray(jnp.concatenate(x, axis=1), np.float64),
            d=d,
            drawn=np.where(dealt.uniforms[:, :1] < 0.5, -d, d),
            added=np.asarray(added, np.float64),
            moments=np.asarray(shares, np.float64),
            scores=log[None],
            lost=~np.asarray(finite),
        )

    def told(self, moments: Float[Array, "M 2 d"], skill: Float[Array, "M 2"]) -> Contents:
        """Return the fields "covered" and "skill" of a `Comparison`. ``moments``: means of
        `Rows.moments` over all rows. ``skill``: means of |d|^2 and of the `Rows.scores`."""
        log = skill[:, -1]
        some = bool(jnp.any(~jnp.isnan(log)))
        inside, below = jnp.clip(moments, 0, 1).swapaxes(0, 1)
        return {
            "covered": Covered(inside, below, jnp.zeros(len(moments))),
            "skill": {"log": log} if some else {},
        }


@jax.jit
def _told(
    key: Key, units: Units, predictions: PyTree, ys: Array, numbers: tuple[Array, Array]
) -> tuple[tuple[Points, Points], Float[Array, "n p"], Float[Array, "2 n d"], Bool[Array, " n"]]:
    """Return (centres, log scales) of predictions; residuals of ranks [n, p]; whether targets are
    in the central interval, and whether in the lower half, [2, n, d]; a mask of finite rows."""
    raw = ys.reshape(len(ys), -1)
    standardized = Standardized(predictions, units, ys.shape[1:])
    near = seen(row_keys(key, numbers), standardized, units.points(raw), ys)
    events = probability.residuals, probability.inside, probability.below
    d, *shares = (probability.extrapolated(event, near.ranks) for event in events)
    finite = jnp.all(jnp.isfinite(raw) & jnp.isfinite(near.ranks.coordinates), axis=1)
    centers, deviations = near.claims
    return (centers, jnp.log(deviations)), d, jnp.stack(shares), finite
