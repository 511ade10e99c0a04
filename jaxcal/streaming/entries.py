"""`jaxcal.calibration_test` as sums over batches: k numbers for each draw, and k^2."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcal.entries.calibration import coordinate_names, observed
from jaxcal.entries.sums import EntriesFit
from jaxcal.read import checks
from jaxcal.results import JudgedResult, Parts, Sentences, Table, in_words, sentences, too_few
from jaxcal.results.report import strongest_cells
from jaxcal.streaming.state import StreamState
from jaxcal.typing import ArrayLike, Key, Predictions


class StreamedCalibration(JudgedResult):
    """The outcome of a streamed `jaxcal.calibration_test`.

    Attributes:
        statistic: Log evidence against calibration.
        p_value: By draws of signs.
        null_samples: The draws, [b].
        parts: The named alternatives, each with its p-value.
        n: Observations.
        n_first: Observations of the first sample, which fixed units and features.
        table: The shift and the spread of each coordinate, on average and along each feature; None
            of few observations.
        counts: Of observations: "impossible" where the density is 0 at the target, "lost" with a
            density or score that is not finite, "nonfinite" targets, "ended" where a density that
            ends was first seen after the fit.
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
        """What was noticed about the data, by the names of warnings."""
        return {
            "impossible-targets": self.counts["impossible"],
            "nonfinite-scores": self.counts["lost"],
            "nonfinite-targets": self.counts["nonfinite"],
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
    """The fit of a first sample, and what a stream asks of it."""

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
        called = coordinate_names(names, ys)
        return cls(EntriesFit.of(key, checked, ys, columns, n_draws, called))

    @property
    def numbered(self) -> bool:
        """Whether draws depend on the numbers of rows."""
        return True

    def zeros(self) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Sums and least numbers before the first batch."""
        return self.fit.zeros(), {"rank": 1.0}

    def of_batch(self, batch: PyTree, first: int, done: int) -> tuple[int, Any, Any]:
        """Number of rows of a batch, and its sums without those that are done."""
        predictions, targets, *inputs = batch
        if len(inputs) != (self.fit.frame.inputs is not None):
            raise ValueError(
                f"inputs: the first sample had {'none' if inputs else 'some'}, the batch has "
                f"{'some' if inputs else 'none'}"
            )
        ys = checks.targets(targets, least=1)
        checked, columns = observed(predictions, ys, inputs[0] if inputs else None)
        sums, least = self.fit.of_batch(checked, ys, columns, first + np.arange(len(ys)), done)
        return len(ys), sums, least

    def result(
        self, state: StreamState, n_first: int, name: str, level: float
    ) -> StreamedCalibration:
        """Return the result of sums over at least two observations."""
        counts = {
            name: int(state.sums[name]) for name in ("impossible", "lost", "nonfinite", "ended")
        }
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
