"""Compute tests from sums over batches, in time linear in the number n of observations.

Tests with p random features take n p^2 multiplications and store p^2 numbers. The calibration test
(`jaxcal.streaming.calibration`) stores k (b + k) numbers for k entries (moments times features) and
b draws.
"""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcal.engine.linear import ROWS, along, filled, in_blocks, parts_of, square, total, triangle
from jaxcal.fit.fitted import Fitted
from jaxcal.fit.redraws import RARE, moments_of_rows, rounding_of_waves
from jaxcal.fit.specification import Specification
from jaxcal.kernels.means.particles import DRAWS, QUANTILES
from jaxcal.nulls.limits import Eigenvalues, p_value_of_spectrum
from jaxcal.numerics import not_finite
from jaxcal.read import Draws, checks
from jaxcal.read.convert import input_names
from jaxcal.read.observations import observations
from jaxcal.read.scores import coarse, coarse_sums, sign_of_sums, sign_sums
from jaxcal.results import JudgedResult, Parts, Sentences, Table, in_words, sentences, too_few
from jaxcal.results.notes import NOT_FINITE
from jaxcal.results.report import reasons_of, strongest_cells, worth_saying
from jaxcal.statistics.finite_rank import FiniteRank
from jaxcal.streaming.state import StreamState
from jaxcal.typing import Key, PredictionsLike


class StreamResult(JudgedResult):
    """Outcome of a streamed KCCSD, KCSD or SKCE test.

    Attributes:
        estimate: Unbiased estimate of the squared discrepancy that the random features define.
        standard_error: Standard error of the estimate; valid for clearly miscalibrated models.
        p_value: P-value from the limit distribution (eigenvalues of the covariance).
        p_value_error: Standard error of the p-value due to the estimation of the eigenvalues.
        n: Number of observations.
        n_first: Size of the first sample, to which units, bandwidths and nodes were fitted.
        bandwidths: Bandwidths by name, in the units of the test.
        test: Name of the test.
        route: Description of the random features, as in the report.
        fault: Why there is no verdict; "" if there is one.
        level: Level of the test.
        notes: Numbers and flags of possible problems, by the codes of their warnings.
    """

    estimate: float
    standard_error: float
    p_value: float
    p_value_error: float
    n: int
    n_first: int
    bandwidths: dict[str, float]
    test: str
    route: str
    fault: str
    level: float = 0.05
    notes: dict[str, Any] = eqx.field(default_factory=dict)

    def _sentences(self) -> Sentences:
        return sentences(worth_saying(self.notes, self.n_first, self.p_value <= self.level))

    def _no_verdict(self) -> Sentences:
        return [(self.fault, bool(self.fault))]

    def _lines(self) -> list[str]:
        used = ", ".join(f"{name} {value:.4g}" for name, value in self.bandwidths.items())
        return [
            f"{self.test}, n = {self.n}, {self.route}",
            f"  estimate   {self.estimate:.4g}   (standard error {self.standard_error:.2g} if "
            f"not calibrated)",
            f"  p-value    {self.p_value:.4g}   (Eigenvalues, may be off by "
            f"{self.p_value_error:.1g})",
            f"  verdict    {in_words(self)}",
            f"  fixed by   the first {self.n_first} observations: units, nodes, bandwidths"
            + (f" ({used})" if used else ""),
        ]


def _reasons(notes: dict[str, Any]) -> list[tuple[str, Any]]:
    return reasons_of(notes, np.asarray(notes.get("far-targets", 0.0)).dtype)


COUNTED = (*NOT_FINITE, "clamped-scales", "centres-astray", "unsettled-chains")


class LinearFit(eqx.Module):
    """A fitted test with random features; implements `jaxcal.streaming.state.Sums`.

    ``key`` is for draws; ``prepared`` holds units, bandwidths, nodes and frequencies; ``kind`` is
    "kccsd", "kcsd" or "skce"; ``numbered``: whether averages over predictions use draws, which row
    numbers determine; ``inputs`` names the inputs of a KCSD test.

    The sums, of feature vectors z of observations: z, z z^T, |z|^2, |z|^4 and numbers for notes.
    The minimum "abrupt-edge" is -1 if a batch has an abrupt edge.
    """

    key: Key
    prepared: Fitted
    kind: str = eqx.field(static=True)
    numbered: bool = eqx.field(static=True)
    inputs: tuple[str, ...] = eqx.field(static=True)

    @classmethod
    def of(
        cls,
        key: Key,
        predictions: PredictionsLike,
        ys: Array,
        spec: Specification,
        kind: str,
        inputs: tuple[str, ...],
    ) -> "LinearFit":
        """Return the test fitted to checked observations, with the name ``kind``."""
        prepared = _fitted(key, predictions, ys, spec)
        numbered = any(route in _statistic(prepared).route for route in (DRAWS, QUANTILES))
        numbered = numbered and not isinstance(predictions, Draws)
        return cls(key, prepared, kind, numbered, inputs)

    def of_batch(self, batch: PyTree, first: int, done: int) -> tuple[int, Any, Any]:
        predictions, targets, *inputs = batch
        if self.kind == "skce":
            predictions, ys = observations(predictions, targets, least=1)
        else:
            ys = checks.targets(targets, least=1)
            predictions = checks.predictions(predictions, ys)
        vectors = checks.rows(inputs[0], ys.shape[0], "inputs") if inputs else None
        if vectors is not None:
            input_names(inputs[0], vectors.shape[1], self.inputs)
        self.prepared.check(predictions, ys, vectors)
        # batches with equal targets need other draws: shared errors of averages would add up
        high, low = divmod(first + done, 2**32)  # of the first row that counts
        key = jax.random.fold_in(jax.random.fold_in(self.key, high), low)
        sums, abrupt = _batch_sums(key, self.prepared, predictions, ys, vectors, jnp.asarray(done))
        return ys.shape[0], sums, {"abrupt-edge": -abrupt}

    def noted(self, state: StreamState) -> dict[str, Any]:
        """Return notes on all observations and on the first sample, by code of their warning."""
        sums, abrupt = state.sums, state.least["abrupt-edge"] < 0
        notes = self.prepared.notes | {code: int(sums[code]) for code in COUNTED}
        notes |= coarse(jnp.asarray(sums["coarse"]), state.n)
        mean, variance = sums["rare"]
        notes |= {
            "rare-targets": bool(RARE * variance > mean**2),
            "unsettled-chains": sums["unsettled-chains"] / state.n,
            "abrupt-edge": abrupt,
            "reversed-sign": sign_of_sums(jnp.asarray(sums["signs"]), state.n) & (not abrupt),
        }
        mean_square = jnp.asarray(sums["trace"] / state.n)
        notes |= rounding_of_waves(self.prepared.pairwise, mean_square, state.n)
        return {code: np.asarray(number) for code, number in notes.items()}

    def result(self, state: StreamState, n_first: int, name: str, level: float) -> StreamResult:
        n, sums = state.n, state.sums
        trace, fourth = float(sums["trace"]), float(sums["fourth"])
        notes = self.noted(state)
        lost = int(sum(sums[code] for code in NOT_FINITE))
        mean, second = sums["sums"] / n, sums["products"] / n
        square = float(mean @ mean)
        estimate = (n * square - trace / n) / (n - 1)
        values = np.linalg.eigvalsh(second) if lost == 0 else np.full(len(mean), np.nan)
        values = values - trace / n**2  # without the diagonal of H, as in linear_sums
        mean_trace, norm = trace / n, float(np.sum(second**2)) - fourth / n**2
        lengths = fourth / n - mean_trace**2
        with jax.enable_x64(True):
            numbers = (n - 1) * estimate, values, mean_trace, norm, lengths, float(n)
            p, error = _p_value(*(jnp.asarray(value) for value in numbers))
        variance = float(mean @ second @ mean) - square**2
        reason = ""
        if lost:
            reason = f"{lost} values of targets, scores or features are NaN or infinite"
        else:
            notes["overflow"] = np.isnan(float(p))
            reason = next((text for text, holds in _reasons(notes) if holds), "")
            reason = reason or too_few("Eigenvalues", Eigenvalues().least_p_value, n, level)
        return StreamResult(
            estimate if lost == 0 else math.nan,
            2 * math.sqrt(max(variance, 0) / n),
            float(p),
            float(error),
            n,
            n_first,
            {name: float(value) for name, value in self.prepared.bandwidths.items()},
            name,
            _statistic(self.prepared).route,
            reason,
            level,
            notes,
        )


_p_value = jax.jit(p_value_of_spectrum)  # one program for all results of a test


def _statistic(prepared: Fitted) -> FiniteRank:
    assert isinstance(prepared.pairwise, FiniteRank)
    return prepared.pairwise


@jax.jit
def _fitted(key: Key, predictions: PredictionsLike, ys: Array, spec: Specification) -> Fitted:
    return spec.fit(jax.random.split(key, 3)[:2], predictions, ys)[0]


@jax.jit
def _batch_sums(
    key: Key,
    prepared: Fitted,
    predictions: PredictionsLike,
    ys: Array,
    vectors: Array | None,
    done: Array,
) -> PyTree:
    keys = jax.random.split(key, 3)
    view = prepared.view(predictions, ys)
    featured = prepared.of_view(keys[:2], view, vectors)
    n = ys.shape[0]
    raw, new = ys.reshape(n, -1), jnp.arange(n) >= done
    notes = featured.notes | {"nonfinite-targets": not_finite(jnp.where(new[:, None], raw, 0))}
    noted = {code: jnp.asarray(notes.get(code, 0), float) for code in COUNTED}
    noted["unsettled-chains"] *= n - done
    noted |= {"coarse": jnp.zeros((3, 1)), "signs": jnp.zeros(2)}
    if view.scores is not None:
        scale = view.predictions.units.scale
        noted["coarse"] = coarse_sums(raw, scale, jnp.abs(view.scores), new)
        noted["signs"] = sign_sums(view.ys, view.scores, new)
    moments = moments_of_rows(keys[2], (prepared, featured), predictions, ys)
    noted["rare"] = jnp.zeros(2) if moments is None else jnp.sum(moments, 1, where=new[None])
    rows = min(ROWS, n)
    vectors_of = _statistic(prepared).vectors

    def of_block(block: PyTree) -> PyTree:
        features, real = block
        z = vectors_of(features) * real[None, None, :, 0]
        parts = parts_of(z.reshape(-1, rows))
        squares = sum(jnp.sum(part**2, axis=0) for part in parts)
        return along(parts, real)[:, 0], triangle(parts), jnp.sum(squares), jnp.sum(squares**2)

    dtype = jax.eval_shape(vectors_of, featured.features).dtype
    real = new[:, None].astype(dtype)
    sums, blocks, trace, fourth = total(
        of_block, in_blocks(filled(featured.features, real, -n % rows), rows)
    )
    summed = {"sums": sums, "products": square(blocks), "trace": trace, "fourth": fourth}
    return summed | noted, notes.get("abrupt-edge", jnp.zeros((), bool)).astype(dtype)


class StreamedCalibration(JudgedResult):
    """Outcome of a streamed `jaxcal.calibration_test`.

    Attributes:
        statistic: Log evidence against calibration.
        p_value: P-value from random signs; NaN if it cannot be computed.
        null_samples: Draws of the statistic with random signs, [b].
        parts: The named alternatives, each with its p-value.
        n: Number of observations.
        n_first: Size of the first sample, to which units and features were fitted.
        table: Shift and spread of each coordinate: averages, and slopes along each feature; None
            for few observations.
        counts: Numbers of observations by name. "impossible": the density at the target is 0.
            "lost": a density or score is not finite. "nonfinite": the target is not finite.
            "ended": the density ends near the target, unlike every density of the first sample.
            "constant": number of inputs (not observations) that are constant in the first sample.
        level: Level of the test.
        notes: Numbers and flags of possible problems, by the codes of their warnings.
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
    notes: dict[str, Any] = eqx.field(default_factory=dict)

    def _sentences(self) -> Sentences:
        return sentences(worth_saying(self.notes, self.n_first, self.p_value <= self.level))

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
            *_reasons(self.notes),
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
