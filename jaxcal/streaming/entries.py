"""`jaxcal.calibration_test` from sums over batches: k (b + k) numbers for k entries and b draws."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcal.entries.calibration import observed, table_names
from jaxcal.entries.sums import EntriesFit
from jaxcal.read import checks
from jaxcal.read.convert import input_names
from jaxcal.results import JudgedResult, Parts, Sentences, Table, in_words, sentences, too_few
from jaxcal.results.report import strongest_cells
from jaxcal.streaming.state import StreamState
from jaxcal.typing import ArrayLike, Key, Predictions


class StreamedCalibration(JudgedResult):
    """Outcome of a streamed `jaxcal.calibration_test`.

    Attributes:
        statistic: Log evidence against calibration.
        p_value: P-value from random signs.
        null_samples: Draws of the statistic with random signs, [b].
        parts: The named alternatives, each with its p-value.
        n: Number of observations.
        n_first: Size of the first sample, to which units and features were fitted.
        table: Shift and spread of each coordinate, on average and along each feature; None for
            few observations.
        counts: Numbers of observations: "impossible" (density 0 at the target), "lost" (density
            or score not finite), "nonfinite" (target), "ended" (the density ends near the target,
            which no density of the first sample did). "constant": columns of inputs that are
            constant in the first sample, and not used.
        level: Level of the test.
    """

    _long: ClassVar[tuple[str, ...]] = ("null_samples",)

    statistic: float
    p_value: float
    null_samples: Float[np.ndarray, " b"]
    parts: Parts
    table: Table | None
    n: int
    n_first: int
    counts: dict[str, int]
    level: float = 0.05

    @property
    def notes(self) -> dict[str, Any]:
        """Counts of possible problems, by the codes of warnings."""
        return {
            "impossible-targets": self.counts["impossible"],
            "nonfinite-scores": self.counts["lost"],
            "nonfinite-targets": self.counts["nonfinite"],
            "constant-inputs": self.counts["constant"],
        }

    def _sentences(self) -> Sentences:
        return sentences(self.notes)

    def _no_verdict(self) -> Sentences:
        draws = len(self.null_samples)
        few = too_few("Wild", lambda n: max(1 / (1 + draws), 2.0 ** (1 - n)), self.n, self.level)
        lost = self.counts["lost"] + self.counts["nonfinite"]
        return [
            (f"{lost} targets, densities or scores are NaN or infinite", lost > 0),
            (
                f"{self.counts['ended']} densities end near their targets, and none in the first "
                f"sample: fit the test to a sample that has some",
                self.counts["ended"] > 0,
            ),
            ("no part of the statistic could be computed", math.isnan(self.p_value)),
            (few, bool(few)),
        ]

    def _lines(self) -> list[str]:
        strongest = self.parts.names[int(self.parts.winner)]
        return [
            f"calibration test, n = {self.n}",
            f"  statistic  {self.statistic:.4g}   (strongest part: {strongest})",
            f"  p-value    {self.p_value:.4g}   ({len(self.null_samples)} draws of signs)",
            f"  verdict    {in_words(self)}",
            f"  fixed by   the first {self.n_first} observations: units and features",
            *([] if self.table is None else strongest_cells(self.table, self.verdict, self.level)),
        ]


class EntriesStream(eqx.Module):
    """The fit to a first sample; implements `jaxcal.streaming.state.Sums`."""

    fit: EntriesFit

    @classmethod
    def of(
        cls,
        key: Key,
        predictions: Predictions,
        ys: Array,
        inputs: ArrayLike | None,
        n_draws: int,
        names: Sequence[str] | None,
    ) -> "EntriesStream":
        """Fit to these observations."""
        checked, columns = observed(predictions, ys, inputs)
        called = table_names(names, ys, inputs, columns)
        return cls(EntriesFit.of(key, checked, ys, columns, n_draws, called))

    @property
    def numbered(self) -> bool:
        return True

    def zeros(self) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        return self.fit.zeros(), {"rank": 1.0}

    def of_batch(self, batch: PyTree, first: int, done: int) -> tuple[int, Any, Any]:
        predictions, targets, *inputs = batch
        ys = checks.targets(targets, least=1)
        checked, columns = observed(predictions, ys, inputs[0] if inputs else None)
        few, q = self.fit.frame.inputs, 0 if columns is None else columns.shape[1]
        if q != (first_q := 0 if few is None else few.columns.scale.size):
            raise ValueError(f"inputs: the first sample had {first_q} columns, the batch has {q}")
        input_names(inputs[0] if inputs else None, q, self.fit.names[1][3:])
        sums, least = self.fit.of_batch(checked, ys, columns, first + np.arange(len(ys)), done)
        return len(ys), sums, least

    def result(
        self, state: StreamState, n_first: int, name: str, level: float
    ) -> StreamedCalibration:
        counts = {
            name: int(state.sums[name]) for name in ("impossible", "lost", "nonfinite", "ended")
        }
        counts["constant"] = int(self.fit.frame.n_constant)
        judged = self.fit.judged(state.sums, state.n, state.least["rank"])
        wrong = counts["lost"] + counts["nonfinite"] + counts["ended"]
        silent = state.sums["uneven"] == 0 and not counts["impossible"]
        p = math.nan if wrong or silent else judged.p_value
        return StreamedCalibration(
            judged.statistic,
            p,
            judged.null_samples,
            judged.parts,
            self.fit.table(state.sums, level),
            state.n,
            n_first,
            counts,
            level,
        )
