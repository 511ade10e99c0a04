"""Hold the result of `exchangeability_test`, with its verdict and warnings."""

from typing import ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal.results import JudgedResult, Sentences, count_verdicts, in_words, sentences
from jaxcal.results.notes import memory
from jaxcal.typing import Scalar

MEANINGS = {
    "log density": "densities at the targets are too high or too low: predictions too wide or "
    "too narrow, or of the wrong shape",
    "location": "predictions are shifted",
    "scale": "predictions are too wide or too narrow along some direction",
    "correlation": "predictions have wrong correlations",
}


class ExchangeabilityResult(JudgedResult):
    """Outcome of `exchangeability_test` for n observations with m candidates each.

    Attributes:
        p_value: P-value [] of the largest of ``part_statistics``; 1 / (1 + n_resamples), the least
            possible, if ``impossible`` > 0.
        part_p_values: P-value of each part alone, [g]; the parts are named in ``parts``.
        part_statistics: Statistic of each part, standardized by mean and standard deviation of its
            observed value and null draws, [g].
        ranks: Randomized ranks of the targets among their candidates, [n, 1 + d]: of the log
            density (coverage) and of each coordinate (SBC).
        rank_p_values: P-value of uniformity of each column of ``ranks``, uncorrected, [1 + d].
        acceptance: Share of accepted moves of the chains, []; 1 without chains.
        nonfinite: Number of observations whose target is not finite, or with a log density (at the
            target or a candidate) that is NaN or +infinite, [].
        nonfinite_features: Number of NaN or infinite values among the features of predictions, [].
        impossible: Number of targets at which their own prediction has density 0, [].
        repeated: Number of observations that repeat an earlier one, [].
        unmoved: Number of observations whose candidates all equal the target or weigh 0, [].
        parts: Names of the g parts: log density, location, scale and, for d > 1, correlation.
        n_resamples: Number of draws of the null.
        n_points: Number m + 1 of points among which the null redraws each target.
        level: Level of the test, which determines `verdict`.
    """

    _rows: ClassVar[tuple[str, ...]] = ("parts", "part_statistics", "part_p_values")
    p_value: Scalar
    part_p_values: Float[Array, " g"]
    part_statistics: Float[Array, " g"]
    ranks: Float[Array, "n r"]
    rank_p_values: Float[Array, " r"]
    acceptance: Scalar
    nonfinite: Int[Array, ""]
    nonfinite_features: Int[Array, ""]
    impossible: Int[Array, ""]
    repeated: Int[Array, ""]
    unmoved: Int[Array, ""]
    parts: tuple[str, ...] = eqx.field(static=True)
    n_resamples: int = eqx.field(static=True)
    n_points: int = eqx.field(static=True)
    level: float = eqx.field(static=True, default=0.05)

    @property
    def strongest(self) -> str:
        """Return the name of the part with the largest statistic: the likely kind of error."""
        return self.parts[int(np.nanargmax(np.asarray(self.part_statistics)))]

    def _no_verdict(self) -> Sentences:
        p = np.asarray(self.p_value)
        too_few = 1 / (1 + self.n_resamples) > self.level
        moved = self.ranks.shape[-2] - np.asarray(self.unmoved)
        recurs = float(self.n_points) ** -moved  # probability of the observed set of targets
        return [
            (
                "a target is not finite, or a log density is NaN or +infinite",
                np.asarray(self.nonfinite) > 0,
            ),
            (
                "values that describe the predictions are NaN or infinite",
                np.asarray(self.nonfinite_features) > 0,
            ),
            ("no candidate differs from its target: the chains never moved", np.isnan(p)),
            (
                f"too few resamples for the level {self.level:g}: {self.n_resamples}"
                " [too-few-draws]",
                too_few,
            ),
            (
                f"too few targets that differ from their candidates for the level {self.level:g}: "
                f"no p-value is below {np.max(recurs):.2g} [too-few-observations]",
                (recurs > self.level) & (np.asarray(self.impossible) == 0),
            ),
        ]

    def _sentences(self) -> Sentences:
        n, unmoved = self.ranks.shape[-2], int(np.max(np.asarray(self.unmoved)))
        rejected = np.asarray(self.p_value)[..., None] <= self.level
        lags = memory(np.swapaxes(np.asarray(self.ranks), -1, -2)[..., None])
        notes = {
            "nonfinite-targets": self.nonfinite,
            "nonfinite-predictions": self.nonfinite_features,
            "impossible-targets": self.impossible,
            "repeated-rows": self.repeated,
            "dependent-rows": np.where(rejected, lags, 0),
        }
        return [
            *sentences(notes),
            (
                f"the candidates of {unmoved} of {n} observations never left their target: take "
                f"smaller steps, or more of them [unmoved-candidates]",
                unmoved * 2 > n,
            ),
        ]

    def _batch_lines(self) -> list[str]:
        return [
            f"{np.size(self.p_value)} results of the exchangeability test",
            f"  {count_verdicts(self)}",
        ]

    def _lines(self) -> list[str]:
        lines = [
            f"exchangeability test, n = {self.ranks.shape[0]}",
            f"  p-value      {float(self.p_value):.4g}   (exact, {self.n_resamples} resamples)",
            f"  verdict      {in_words(self)}",
        ]
        if self.verdict == "rejected" and np.any(np.isfinite(np.asarray(self.part_statistics))):
            lines.append(f"  strongest    {self.strongest}: {MEANINGS[self.strongest]}")
        for name, p in zip(self.parts, np.asarray(self.part_p_values), strict=True):
            lines.append(f"  {name:12s} p = {float(p):.4g}")
        return lines
