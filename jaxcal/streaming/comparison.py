r"""`jaxcal.compare` of class probabilities, in units of probability, as sums over batches.

With features g = (1, q) of the predictions and residuals d, the regression needs the sums of
:math:`g g^\top` and :math:`g d^\top`, and its draws the same sums of `BLOCKS` groups of rows. Each
run of 1,024 rows is dealt out at random, one row to a group, by the numbers of the rows, which
also draw the labels of a calibrated model: no order or share of the rows changes a draw.

The one thing that needs a second pass are the leverages, which the leave-one-out factors
:math:`1 / (1 - h_i)` hold. They are replaced by their mean r / n, so that

.. math:: U = \frac{\|\sum_i F_i d_i^\top\|^2 - \sum_i h_i \|d_i\|^2}{2 (n - r)},

with the basis F, its rank r, and exact leverages in the second sum. For equal leverages this is the
value in memory. Of even Dirichlet predictions of 30 classes it differed from that by at most .12
standard errors at n = 1,024, .05 at 4,096 and .013 at 65,536, of 2 and 10 classes by a quarter of
that; where six predictions far from all others decide the regression, by up to .26
(`experiments/compare/leverages.py`).
"""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal.ckce.errors import ADDED, BLOCKS, Error, judged, signs, without_diagonal
from jaxcal.ckce.expansion import draws
from jaxcal.ckce.inputs import stacked
from jaxcal.ckce.probability import COMPONENTS, Basis, said, slope
from jaxcal.ckce.results import Comparison, Says
from jaxcal.read import checks
from jaxcal.streaming.state import StreamState
from jaxcal.typing import ArrayLike, Key, Models, Scalar

SCORES = ("Brier", "accuracy", "log")


class ComparisonSums(eqx.Module):
    """What models of a first sample have, and what their comparison adds up.

    Attributes:
        key: Random key of groups, labels and draws.
        directions: [M, m, s] Of more than `COMPONENTS` classes, the leading components of each
            model's first predictions, on which residuals are regressed; None for few classes.
        names: Names of the models.
        m: Number of classes.
        n_draws: Draws of the test.
    """

    key: Key
    directions: Float[Array, "M m s"] | None
    names: tuple[str, ...] = eqx.field(static=True)
    m: int = eqx.field(static=True)
    n_draws: int = eqx.field(static=True)

    @classmethod
    def of(cls, key: Key, models: Models, targets: ArrayLike, n_draws: int) -> "ComparisonSums":
        """That of checked predictions of a first sample."""
        names, stack = stacked(models)
        _, n, m = stack.shape
        checks.labels(targets, n, m)
        directions = None
        if m > COMPONENTS:
            if n < COMPONENTS:
                raise ValueError(
                    f"targets: a first sample of {m} classes needs at least {COMPONENTS} "
                    f"observations, got {n}"
                )
            centred = stack - jnp.mean(stack, axis=1, keepdims=True)
            *_, rows = jnp.linalg.svd(centred, full_matrices=False)
            directions = jnp.swapaxes(rows[:, : COMPONENTS - 1], 1, 2)
        return cls(key, directions, names, m, n_draws)

    @property
    def numbered(self) -> bool:
        """Whether draws depend on the numbers of rows."""
        return True

    @property
    def _columns(self) -> int:
        return 1 + (self.m if self.directions is None else self.directions.shape[2])

    def zeros(self) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Sums and least numbers before the first batch."""
        s, models = self._columns, len(self.names)
        shapes = {
            "groups": (models, BLOCKS, s, s + 3 * self.m + 1),
            "sizes": (models, s, s),
            "moments": (models, 4, self.m),
            "scores": (models, 2),
        }
        return {name: np.zeros(shape) for name, shape in shapes.items()}, {}

    def of_batch(self, batch: Any, first: int, done: int) -> tuple[int, Any, Any]:
        """Number of rows of a batch, and its sums without those that are done."""
        models, targets = batch
        names, stack = stacked(models)
        if sorted(names) != sorted(self.names):
            raise ValueError(f"models: wanted {', '.join(self.names)}, got {', '.join(names)}")
        stack = np.asarray(stack, np.float64)[[names.index(name) for name in self.names]]
        _, n, m = stack.shape
        if m != self.m:
            raise ValueError(f"models: the first sample had {self.m} classes, the batch has {m}")
        labels = np.asarray(checks.labels(targets, n, m))
        dealt = Dealt.of(np.asarray(jax.random.key_data(self.key)), first, n, done)
        each = [self._of_model(k, q, labels, dealt) for k, q in enumerate(stack)]
        return n, {name: np.stack([sums[name] for sums in each]) for name in each[0]}, {}

    def _of_model(
        self,
        k: int,
        q: Float[np.ndarray, "n m"],
        labels: Int[np.ndarray, " n"],
        dealt: "Dealt",
    ) -> dict[str, np.ndarray]:
        n, m = q.shape
        new, one_hot = dealt.new[:, None], np.eye(m)
        x = q if self.directions is None else q @ np.asarray(self.directions[k])
        g = np.concatenate([np.ones((n, 1)), x], axis=1) * new
        of_class = np.sum(dealt.uniforms[:, :1] > np.cumsum(q, axis=1)[:, :-1], axis=1)
        added = one_hot[(dealt.uniforms[:, 1] * m).astype(int)] - 1 / m
        y = one_hot[labels]
        d = y - q
        square = np.sum(d**2, axis=1, keepdims=True)
        right = np.concatenate([g, d, one_hot[of_class] - q, added, square], axis=1)
        with np.errstate(divide="ignore"):
            log = -np.log(q[np.arange(n), labels])
        return {
            "groups": dealt.products(g, right),
            "sizes": (g * square).T @ g,
            "moments": np.sum([q * new, y * new, q**2 * new, q * y * new], axis=1),
            "scores": np.stack([np.argmax(q, axis=1) == labels, log]) @ dealt.new,
        }

    def result(self, state: StreamState, n_first: int, name: str, level: float) -> Comparison:
        """The comparison by all observations."""
        n = state.n
        if n < BLOCKS:
            raise ValueError(
                f"state: a comparison in one pass takes at least {BLOCKS} observations, got {n}: "
                f"`jaxcal.compare` takes them in memory"
            )
        errors_key, draws_key = jax.random.split(self.key)
        with jax.enable_x64(True):
            sums = Sums(*(jnp.asarray(state.sums[name]) for name in Sums._fields))
            options = {"rank": min(self.m, COMPONENTS), "n_draws": self.n_draws}
            errors, says = _errors((errors_key, draws_key), sums, jnp.asarray(float(n)), **options)
            skill = jnp.sum(sums.groups[:, :, 0, -1], axis=1), *sums.scores.T
            none = jnp.zeros(len(self.names))
            fields = judged(draws_key, errors, level, 1.0) | {
                "skill": {name: part / n for name, part in zip(SCORES, skill, strict=True)},
                "says": says,
                "bandwidths": none,
                "ridge": none[0],
                "left_out": none,
                "nonfinite_kernel": jnp.zeros(len(self.names), jnp.int32),
            }
        # in the type of the caller
        fields = jax.tree.map(lambda part: jnp.asarray(np.asarray(part)), fields)
        counts = {"n": n, "n_draws": self.n_draws, "level": level, "measure": "probability"}
        return Comparison(**fields, **counts, names=self.names, things="models")


class Dealt(NamedTuple):
    """Numbered rows, dealt to groups.

    Attributes:
        places: [k, BLOCKS] The row of a batch that each of k runs gives to each group.
        real: [k, BLOCKS] Whether there is one.
        uniforms: [n, 2] Uniform numbers of each row.
        new: [n] 1 of rows that count, 0 of others.
    """

    places: Int[np.ndarray, "k b"]
    real: Float[np.ndarray, "k b"]
    uniforms: Float[np.ndarray, "n 2"]
    new: Float[np.ndarray, " n"]

    @classmethod
    def of(cls, words: np.ndarray, first: int, n: int, done: int) -> "Dealt":
        """Deal n rows that are counted from ``first``, with the bits of a random key."""
        start = first // BLOCKS * BLOCKS
        runs = range(start // BLOCKS, -(-(first + n) // BLOCKS))
        places, uniforms = np.zeros((len(runs), BLOCKS), int), np.zeros((len(runs), BLOCKS, 2))
        for k, run in enumerate(runs):
            random = np.random.default_rng([*words.tolist(), run])
            places[k] = k * BLOCKS + start - first + random.permutation(BLOCKS)
            uniforms[k] = random.random((BLOCKS, 2))
        there = (places >= 0) & (places < n)
        mine = slice(first - start, first - start + n)
        new = (np.arange(n) >= done).astype(float)
        return cls(np.clip(places, 0, n - 1), there, uniforms.reshape(-1, 2)[mine], new)

    def products(
        self, left: Float[np.ndarray, "n s"], right: Float[np.ndarray, "n t"]
    ) -> Float[np.ndarray, "b s t"]:
        """Sums of products over the rows of each group."""
        of_group = (left[self.places] * self.real[:, :, None]).transpose(1, 2, 0)
        return of_group @ right[self.places].transpose(1, 0, 2)


class Sums(NamedTuple):
    """Sums of M models, each over n rows.

    Attributes:
        groups: Of each group, products of features g with g, residuals d, residuals of drawn
            labels, residuals of uniform labels, and the squared norm of d.
        sizes: Of all rows, the squared norm of d times g g^T.
        moments: Of all rows: q, y, q^2 and q y.
        scores: How often the most probable class is right, and negative log probabilities.
    """

    groups: Float[Array, "M b s t"]
    sizes: Float[Array, "M s s"]
    moments: Float[Array, "M 4 m"]
    scores: Float[Array, "M 2"]


@partial(jax.jit, static_argnames=("rank", "n_draws"))
def _errors(
    keys: tuple[Key, Key], sums: Sums, n: Scalar, *, rank: int, n_draws: int
) -> tuple[Error, Says]:
    """Return errors and what is said, of each model."""

    def one(of: Sums) -> tuple[Error, Says]:
        q, y, squares, products = of.moments / n
        eps = float(jnp.finfo(jnp.float32).eps)
        says = said(q, y, squares - q**2, products - q * y, eps)
        return _error(keys, of, n, rank, n_draws), says

    return jax.vmap(one)(sums)


def _error(keys: tuple[Key, Key], sums: Sums, n: Scalar, rank: int, n_draws: int) -> Error:
    """Return the error of one model, as `jaxcal.ckce.probability.by_regression` with leverages of
    which each is their mean."""
    s, m = sums.sizes.shape[0], sums.moments.shape[1]
    parts = jnp.split(sums.groups, (s, s + m, s + 2 * m, s + 3 * m), axis=2)
    products, residuals, drawn, added, squares = parts
    whole = jnp.sum(products, axis=0)
    mean = whole[0, 1:] / n
    covariance = whole[1:, 1:] / n - mean[:, None] * mean[None]
    of = Basis.of(n, mean, covariance, rank, float(jnp.finfo(jnp.float32).eps))
    columns = jnp.zeros((s, rank)).at[0, 0].set(of.constant)
    columns = columns.at[0, 1:].set(-of.mean @ of.directions).at[1:, 1:].set(of.directions)
    r = jnp.sum(jnp.any(columns != 0, axis=0), dtype=n.dtype)
    leverage, inflation, scale = r / n, n / (n - r), 1 / (2 * (n - r))

    residuals, drawn, added = (columns.T[None] @ a for a in (residuals, drawn, added))
    coefficients = jnp.sum(residuals, axis=0)
    fitted = (columns.T[None] @ products @ columns[None]) @ coefficients[None]
    share = jnp.sqrt(ADDED / (n + ADDED))
    second = jnp.sqrt(inflation) * (residuals - fitted) + share * added
    second, null = ((jnp.sqrt(scale) * a).reshape(BLOCKS, -1) for a in (second, drawn))
    second, null = (without_diagonal(a @ a.T) for a in (second, null))

    estimate = jnp.sum(coefficients**2)
    alone = jnp.sum((columns @ columns.T) * sums.sizes)
    along, square = (jnp.sum(a * coefficients[None], axis=(1, 2)) for a in (residuals, fitted))
    lengths = squares[:, 0, 0]
    without = along - leverage * lengths
    fit = square - 2 * leverage * along + leverage**2 * lengths
    first = (2 * inflation * without - inflation**2 * fit) / (2 * n)
    first = first - jnp.sum(first) * products[:, 0, 0] / n
    value = scale * (estimate - alone)
    noise = inflation * (alone - leverage * estimate) + r * share**2 * (1 - 1 / m)
    per_value = slope(value, first, second, scale * noise) + 2 * ADDED / (m * n * (n + ADDED))
    terms = draws(signs(keys[1], n_draws, BLOCKS, second.dtype), second)
    of_null = draws(jax.random.normal(keys[0], (n_draws, BLOCKS), second.dtype), null)
    none = jnp.zeros((), jnp.int32)
    return Error(scale * estimate, value, per_value, first, second, terms, of_null, none)
