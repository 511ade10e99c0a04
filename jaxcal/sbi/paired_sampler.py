"""Draws of the posteriors of given observations, within the bounds of the parameters."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcal.sbi.posteriors import DistributionPosterior, Sampler
from jaxcal.sbi.space import Space
from jaxcal.typing import DTypeLike, Key

ATTEMPTS = 12  # to draw parameters within bounds, each with twice as many draws as before
MOST_AT_ONCE = 10_000  # draws of one posterior in an attempt


class PairedSampler:
    """``sample(key, m)`` of the posteriors of these observations, [n, m, d], before the change to
    free parameters; draws outside of the bounds are drawn again, as sbi does."""

    def __init__(self, posterior: Sampler, xs: PyTree, dtype: DTypeLike, space: Space):
        self.posterior, self.xs, self.dtype, self.space = posterior, xs, dtype, space

    def __call__(self, key: Key, m: int) -> Float[Array, "n m d"]:
        draws = np.array(self.posterior.sample(key, self.xs, m))
        for attempt in range(ATTEMPTS):
            outside = self._outside(draws)
            rows = np.flatnonzero(outside.any(axis=1))
            if not rows.size:
                return jnp.asarray(draws, self.dtype)
            size = min(m * 2**attempt, MOST_AT_ONCE)
            again = self._redrawn(jax.random.fold_in(key, attempt), rows, size)
            for row, candidates, beyond in zip(rows, again, self._outside(again), strict=True):
                places, inside = np.flatnonzero(outside[row]), candidates[~beyond]
                filled = places[: len(inside)]
                draws[row, filled] = inside[: len(filled)]
        missing = self._outside(draws).any(axis=1)
        raise ValueError(
            f"posterior: {int(missing.sum())} of {missing.size} posteriors have nearly all their "
            f"mass outside of the bounds (first that of row {int(np.argmax(missing))}), so that no "
            f"draws within them can be had: is the posterior's prior that of the pairs?"
        )

    def _redrawn(self, key: Key, rows: np.ndarray, size: int) -> np.ndarray:
        if isinstance(self.posterior, DistributionPosterior):  # it draws for all rows or none
            return np.asarray(self.posterior.sample(key, self.xs, size))[rows]
        some = jax.tree.map(lambda leaf: leaf[rows], self.xs)
        return np.asarray(rows_of(self.posterior, rows).sample(key, some, size))

    def _outside(self, draws: np.ndarray) -> np.ndarray:
        free = self.space.free(jnp.asarray(draws, self.dtype))
        return ~np.all(np.isfinite(np.asarray(free)), axis=2)


def rows_of(scorer: Any, rows: np.ndarray) -> Any:
    """The posteriors of some of the observations, of a scorer that does not read them off xs."""
    if hasattr(scorer, "rows"):
        return scorer.rows(rows)
    if isinstance(scorer, DistributionPosterior):
        raise ValueError(
            "posterior: a batch of distributions cannot leave out rows: pass a function xs -> "
            "distribution, or leave these rows out of everything yourself"
        )
    return scorer
