"""Coverage and tables of forecasts from counts over batches, without a first sample."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxcal.coverage import Coverage, of_counts, ranks_of
from jaxcal.dce.table import Table
from jaxcal.results import Result
from jaxcal.streaming.state import StreamState

Start = tuple[dict[str, np.ndarray], dict[str, float]]


class RankCounts(eqx.Module):
    """Counts of the ranks of targets among the draws of their predictions, for `Coverage`."""

    draws: int = eqx.field(static=True)

    @property
    def numbered(self) -> bool:
        return False

    def zeros(self) -> Start:
        return {"counts": np.zeros(self.draws + 1), "unknown": np.zeros(())}, {}

    def of_batch(self, batch: PyTree, first: int, done: int) -> tuple[int, Any, Any]:
        ranks, unknown, m = ranks_of(*batch, first=first, least=1)
        if m != self.draws:
            raise ValueError(f"draws: wanted {self.draws} from each prediction, got {m}")
        counts = np.bincount(np.asarray(ranks)[done:], minlength=m + 1)
        return len(ranks), {"counts": counts, "unknown": np.sum(unknown[done:])}, {}

    def result(self, state: StreamState, n_first: int, name: str, level: float) -> Coverage:
        with jax.enable_x64(True):
            counts = jnp.asarray(state.sums["counts"].astype(int))
            return replace(of_counts(counts, jnp.asarray(int(state.sums["unknown"]))), level=level)


class TableSums(eqx.Module):
    """Sums of a `Table`."""

    cells: int = eqx.field(static=True)

    @property
    def numbered(self) -> bool:
        return False

    def zeros(self) -> Start:
        return {name: np.zeros(self.cells) for name in ("counts", "predictions", "targets")}, {}

    def of_batch(self, batch: PyTree, first: int, done: int) -> tuple[int, Any, Any]:
        p, y = map(np.asarray, batch)
        if y.shape != p.shape[:1]:
            raise ValueError(
                f"targets: wanted one label an observation, {p.shape[:1]}, got {y.shape}"
            )
        if p.ndim == 2 and p.shape[1] == 2:
            p = p[:, 1]
        elif p.ndim == 2:
            p, y = np.max(p, axis=1), np.argmax(p, axis=1) == y
        table = Table.of(p[done:], y[done:], cells=self.cells)
        return len(p), {name: getattr(table, name) for name in self.zeros()[0]}, {}

    def result(self, state: StreamState, n_first: int, name: str, level: float) -> Result:
        return self.table(state)

    def table(self, state: StreamState) -> Table:
        """Return the table of all observations."""
        sums = state.sums
        return Table(sums["counts"].astype(int), sums["predictions"], sums["targets"])
