"""`Repair`, the result of a repair: the map and its gain."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxcal.read import Draws, Unnormalized, checks, convert
from jaxcal.read.convert import input_names
from jaxcal.read.observations import finite_rows
from jaxcal.repairing.certificate import NATS, about_gains, in_data_units, say_gain
from jaxcal.repairing.fit import DRAWS, MOST, OWN, Features, Fitted, Parameters, too_many
from jaxcal.repairing.move import Move, gaussians, move_all, moved_draws
from jaxcal.results import Result, Sentences, TestResult, counted
from jaxcal.results.notes import of_a_chain
from jaxcal.typing import ArrayLike, Predictions, Scalar, Vector

NARROWEST = 5.0  # there is a warning if predictions are made more than this many times as narrow
CLEAR = 2.0  # only changes above this many standard errors are printed


class Repair(Result):
    """A map that repairs predictions, and its gain on pairs that it was not fitted to.

    Attributes:
        gain: Mean gain in score, [], in ``unit``; each observation is changed by the map that was
            fitted without its fold.
        low: Lower end, [], of an interval of confidence about 1 - level (`experiments/repair`) for
            the mean gain of these maps on new observations.
        high: Upper end of the interval, [].
        p_value: One-sided p-value of the hypothesis that the mean gain is at most 0, [].
        gains: Gain of each observation, [n]; NaN if the original log density of its target is not
            finite, as for density 0, or if the observation repeats another one.
        unmoved: Number of predictions, [], that are not changed because their centre and scale
            could not be determined.
        before: `calibration_test` of the original predictions.
        after: The same test of repaired predictions, each by the map fitted without its fold.
        fitted: Parameters of the map fitted to all pairs, with prior deviations and errors.
        features: Features with which the map varies.
        names: Pair of tuples: names of the coordinates, and names of the inputs.
        n_folds: Number of folds.
        whole: Whether all targets are integers, [].
        unit: "nats" of the log score; for draws "energy score", in the units of the targets.
        correlation: Lag-one correlation of successive draws, []; 0 for other predictions.
        n_samples: Number of independent draws per prediction; 0 for other predictions.
        in_order: Whether folds are blocks of rows, and limits allow for dependent neighbours.
        axes: Row k is the direction of coordinate k in the units of predictions, [d, d]: the map
            acts in units of centre and scale, whose axes are not the coordinates if claims are
            correlated. None in files of earlier versions, and for uncorrelated claims the identity.
    """

    gain: Scalar
    low: Scalar
    high: Scalar
    p_value: Scalar
    gains: Vector
    unmoved: Int[Array, ""]
    before: TestResult
    after: TestResult
    fitted: Fitted
    features: Features
    names: tuple[tuple[str, ...], tuple[str, ...]] = eqx.field(static=True)
    n_folds: int = eqx.field(static=True)
    whole: Bool[Array, ""]
    unit: str = eqx.field(default=NATS, static=True)
    correlation: Scalar | float = 0.0
    n_samples: int = eqx.field(default=0, static=True)
    in_order: bool = eqx.field(default=False, static=True)
    axes: Float[Array, "d d"] | None = None

    _scalar: ClassVar[str] = "gain"
    _long: ClassVar[tuple[str, ...]] = ("gains", "features", "fitted", "names", "axes")

    @property
    def level(self) -> float:
        """Limits have confidence 1 - level."""
        return self.before.level

    def predictions(self, predictions: Predictions, inputs: ArrayLike | None = None) -> Any:
        """Return new predictions after repair: an `Unnormalized`, a distribution or `Draws`.

        Args:
            predictions: Predictions of the same kind as in the fit, of any number.
            inputs: Inputs of these n predictions, [n] or [n, q], if the fit had inputs.

        Raises:
            ValueError: Inputs are missing, or do not match those of the fit.
        """
        moved: Any = moved_draws if isinstance(predictions, Draws) else move_all
        return moved(predictions, self._move(predictions, inputs))

    def draws(
        self, draws: ArrayLike, predictions: Predictions, inputs: ArrayLike | None = None
    ) -> Float[Array, "n m *event"]:
        """Return ``draws`` from ``predictions``, moved to be draws from repaired predictions."""
        values = convert.floats(draws, "draws")
        move = self._move(predictions, inputs)
        if values.ndim < 2 or len(values) != len(move.log_size):
            raise ValueError(
                f"draws: wanted shape [n, m, ..], n = {len(move.log_size)}, got {values.shape}"
            )
        return moved_draws(Draws(values), move).samples

    def changes(self) -> list[str]:
        """Return sentences on parameters that exceed 2 standard errors, most significant first."""
        return [text for _, text in sorted(self._changes(), key=lambda one: -one[0])]

    def remainder(self) -> list[str]:
        """Return the errors that remain: a sentence per significant cell of ``after.table`` and, if
        ``after`` rejects, one on the alternative with most evidence."""
        table, parts = self.after.table, self.after.parts
        remaining = [] if table is None else table.sentences(float(self.level))
        if parts is None or self.after.verdict != "rejected":
            return remaining
        name = parts.names[int(np.argmax(np.asarray(parts.statistics)))]
        return [*remaining, f"most of the evidence after the repair: {BEYOND.get(name, name)}"]

    def _move(self, predictions: Predictions, inputs: ArrayLike | None) -> Move:
        q = len(self.features.inputs.mix)
        predictions = gaussians(predictions) if isinstance(predictions, Draws) else predictions
        n = _count(predictions, inputs)
        if inputs is None and q:
            raise ValueError(f"inputs: the repair was fitted with {q} of them; give those of these")
        dtype = self.features.units.center.dtype
        columns = columns_of(inputs, n, dtype)
        if columns.shape[1] != q:
            raise ValueError(f"inputs: the repair was fitted with {q}, got {columns.shape[1]}")
        input_names(inputs, q, self.names[1])
        return moves_of(self.fitted.parameters, self.features, predictions, columns, n)

    def _changes(self) -> list[tuple[float, str]]:
        """Return a pair for each change: its size in standard errors, and a sentence."""
        (coordinates, inputs), said = self.names, []
        values, errors = self.fitted.parameters, self.fitted.errors
        effects, slopes = self._effects()
        d = len(coordinates)
        of_shape = np.concatenate([errors.stretch["common"], errors.correlation])
        noise = np.sqrt(slopes**2 @ of_shape**2)
        for kind, words, mix in (
            ("shift", _shift, self._directions),
            ("stretch", _stretch, slopes[:d, :d]),
        ):
            value, error = getattr(values, kind), getattr(errors, kind)
            diagonal = np.diag(np.diag(mix))  # changes along a coordinate's own centre and scale
            for group in (*ALONG, "claims", "inputs"):
                by = diagonal if group in ("center", "scale") else mix
                each = by @ np.asarray(value[group])
                about = np.sqrt(by**2 @ np.asarray(error[group]) ** 2)
                if (kind, group) == ("stretch", "common"):
                    each, about = effects[:d], noise[:d]
                for size, change, (k, *q) in _clear(each, about):
                    how = words(change) + ALONG.get(group, "")
                    if q:
                        names = coordinates if group == "claims" else inputs
                        how = _along(how, group, names, k, q[0])
                    said += [(size, f"{kind} of {coordinates[k]}: {how}")] * bool(how)
        pairs = list(combinations(coordinates, 2))
        for size, change, (k,) in _clear(effects[d:], noise[d:]):
            way = "higher" if change > 0 else "lower"
            said.append((size, f"correlation of {pairs[k][0]} and {pairs[k][1]}: {way}"))
        return said

    @property
    def _directions(self) -> np.ndarray:
        return np.eye(len(self.names[0])) if self.axes is None else np.asarray(self.axes, float)

    def _effects(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the effects on coordinates of the map at average features (logs of the factors on
        their d widths, changes of their p correlations), and derivatives [d + p, d + p] by the
        common stretch and the correlations of the map."""
        fitted = self.fitted.parameters
        at = np.concatenate([fitted.stretch["common"], fitted.correlation]).astype(float)
        steps = 1e-5 * np.eye(len(at))
        effects = partial(_on_coordinates, self._directions)
        derivatives = [(effects(at + step) - effects(at - step)) / 2e-5 for step in steps]
        return effects(at), np.stack(derivatives, axis=1)

    def _narrowest(self) -> float:
        """Return the least log factor on a width, over coordinates and all maps of a batch."""
        fitted, d = self.fitted.parameters, len(self.names[0])
        at = np.concatenate([fitted.stretch["common"], fitted.correlation], -1).astype(float)
        at = at.reshape(-1, at.shape[-1])
        axes = np.broadcast_to(self._directions.reshape(-1, d, d), (len(at), d, d))
        each = [_on_coordinates(*pair)[:d] for pair in zip(axes, at, strict=True)]
        return float(np.min(each))

    def _sentences(self) -> Sentences:
        beyond = int(np.sum(np.asarray(self.gains) == -np.inf))
        moved = counted(
            "{} {target has|targets have} density 0 after the repair that was fitted without "
            "{it|them}: the density has a bound, which the map moves [moved-edge]",
            beyond,
        )
        n = self.gains.shape[-1]
        left_out = too_many(n, *map(len, self.names))
        few = (
            f"{n} pairs are too few to fit how errors vary with {', '.join(left_out)}: left out of "
            f"the map [few-pairs]"
        )
        vague = (
            f"{self.n_samples} independent draws of each prediction are too few to fit how errors "
            f"vary with {OWN}: left out of the map [few-draws]"
        )
        unmoved = int(np.sum(np.asarray(self.unmoved)))
        still = counted(
            "{} {prediction is|predictions are} not changed: almost none of the points drawn to "
            "find {its|their} centre and scale met the mass [far-points]",
            unmoved,
        )
        integers = (
            "targets are whole numbers: the gain is that of densities of real numbers, not a log "
            "score of counts or classes [whole-targets]"
        )
        times = float(np.exp(-self._narrowest()))
        narrow = (
            f"the map makes predictions {times:.2g} times as narrow: if the model has seen these "
            f"targets, or predictions are computed from them, the gain is arbitrary [narrow-map]"
        )
        # omits the test's sentence on dependent rows: `about_gains` has one for a repair
        said = [text for text in self.before.warnings() if "[dependent-rows]" not in text]
        return [
            *((text, True) for text in said),
            *about_gains(self.gains, self.in_order),
            (integers, self.unit == NATS and bool(np.any(np.asarray(self.whole)))),
            (narrow, times > NARROWEST),
            (moved, beyond > 0),
            (few, bool(left_out)),
            (vague, 0 < self.n_samples < DRAWS),
            (still, unmoved > 0),
            of_a_chain("a prediction", float(np.max(np.asarray(self.correlation)))),
        ]

    def _lines(self) -> list[str]:
        lines = say_gain(self)
        for name, test in (("before", self.before), ("after", self.after)):
            lines.append(f"  {name:<7} calibration test: {test.verdict}, p = {test.p_value:.2g}")
        changes = self.changes() or ["nothing by more than two errors"]
        lines += ["  what the map of all pairs changes:", *(f"    {text}" for text in changes)]
        rest = self.remainder()
        return lines + ["  what it leaves:", *(f"    {text}" for text in rest)] * bool(rest)


BEYOND = {  # alternatives that an affine map does not repair
    "varying": "errors along a learned function of the features; the map repairs linear ones only",
    "tails": "tails or the form of the densities, which no affine map repairs",
    "skewness": "skewness, which no affine map repairs",
}
ALONG = {
    "common": "",
    "center": " for each deviation of its claimed centre",
    "scale": " for each deviation of its claimed log scale",
}


def _along(how: str, group: str, names: Sequence[str], k: int, q: int) -> str:
    """Return how a parameter of coordinate k changes along column q of ``claims`` or ``inputs``,
    with ``names`` of coordinates or inputs; "" for claims of coordinate k, which `ALONG` has."""
    claims, count = group == "claims", len(names)
    if count * (1 + claims) > MOST:  # principal components, whose signs are arbitrary
        return f"varies with principal component {q + 1} of {group}"
    if not claims:
        return f"{how} for each deviation of {names[q]}"
    what, of = ("centre", "log scale")[q // count], q % count
    return "" if of == k else f"{how} for each deviation of the claimed {what} of {names[of]}"


def _on_coordinates(axes: np.ndarray, parameters: np.ndarray) -> np.ndarray:
    """Return the logs of factors on widths [d] and the changes of correlations [p] for a map of
    these stretches and correlations [d + p], in predictions with unit covariance along ``axes``."""
    d = len(axes)
    i, j = np.triu_indices(d, 1)
    mixing = np.eye(d)
    mixing[i, j] = mixing[j, i] = parameters[d:]
    half = np.exp(parameters[:d] / 2)
    moved = axes @ (half[:, None] * np.linalg.inv(mixing) * half)
    widths = np.linalg.norm(moved, axis=1)
    rows = moved / widths[:, None]
    return np.concatenate([np.log(widths), (rows @ rows.T - axes @ axes.T)[i, j]])


def _clear(
    values: np.ndarray, errors: np.ndarray
) -> Iterator[tuple[float, float, tuple[int, ...]]]:
    """Yield (size in standard errors, value, index) of each value beyond `CLEAR` errors."""
    ratios = np.abs(values) / np.where(errors > 0, errors, np.inf)
    for place in zip(*np.nonzero(ratios > CLEAR), strict=True):
        yield float(ratios[place]), float(values[place]), tuple(map(int, place))


def _shift(value: float) -> str:
    return f"{'higher' if value > 0 else 'lower'} by {abs(value):.2g} sd"


def _stretch(value: float) -> str:
    return f"made {np.exp(abs(value)):.2g} times as {'wide' if value > 0 else 'narrow'}"


def columns_of(inputs: ArrayLike | None, n: int, dtype: Any) -> Float[Array, "n q"]:
    """Return inputs as columns [n, q], [n, 0] for None; ValueError for NaN or infinite inputs."""
    if inputs is None:
        return jnp.zeros((n, 0), dtype)
    return finite_rows(inputs, n, "inputs").astype(dtype)


def _count(predictions: Any, inputs: ArrayLike | None) -> int:
    """Return the number of predictions; for one without batch axis the number of inputs, or 1."""
    if not isinstance(predictions, Unnormalized):
        if predictions.batch_shape:
            return int(predictions.batch_shape[0])
        return 1 if inputs is None else len(checks.features(inputs, "inputs"))
    each = jax.vmap(lambda _: 0.0, in_axes=(predictions.in_axes,))
    return jax.eval_shape(each, predictions.params).shape[0]


@partial(jax.jit, static_argnames="n")
def moves_of(
    parameters: Parameters,
    features: Features,
    predictions: Predictions,
    inputs: Float[Array, "n q"],
    n: int,
) -> Move:
    """Return the moves of n predictions by fitted parameters, in the units of the data."""
    frame = features.frame(predictions, n, inputs)
    return in_data_units(parameters.moves(frame), features.units)
