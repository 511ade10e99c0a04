"""Repair predictions by what their targets say, and certify what that gains."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from jaxcal.entries import calibration_test
from jaxcal.moments.marginal_means import student_p_value, student_quantile
from jaxcal.read import Standardized, Units, Unnormalized, checks
from jaxcal.read.scores import is_distribution, states_an_end
from jaxcal.repairing.features import MOST, Features, too_many
from jaxcal.repairing.fit import Fitted, Parameters, densities_at, fit, log_likelihoods
from jaxcal.repairing.move import Move, move_all, no_move
from jaxcal.results import Result, Sentences, TestResult, counted, recorded
from jaxcal.typing import ArrayLike, Key, KeyLike, Predictions, Scalar, Vector

CLEAR = 2.0  # errors of a change that is printed


class Repair(Result):
    """A map that repairs predictions, and what it gains on pairs that it was not fitted to.

    Attributes:
        gain: Mean log score, in nats an observation, that predictions gain by maps that were fitted
            without these observations, [].
        low: Lower limit, [], of what these maps, one a fold, gain on the average of new
            observations, of confidence about 1 - level: .92 at n = 500 and .89 at 100 for .95
            (`experiments/repair`).
        high: Upper limit, [].
        p_value: One-sided p-value of "they gain nothing", [].
        gains: Gain of each observation, [n]; NaN where the density of a target is 0 before.
        unmoved: Number of predictions whose centre and scale were not found, which stay as they
            are, [].
        before: `calibration_test` of the predictions.
        after: The same of the repaired ones, each by the map of its fold.
        fitted: Parameters of the map that all pairs fit, with their prior deviations and errors.
        features: What the map varies with.
        names: Names of the coordinates, then of the inputs.
        n_folds: Number of folds.
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

    _scalar: ClassVar[str] = "gain"
    _long: ClassVar[tuple[str, ...]] = ("gains", "features", "fitted", "names")

    def predictions(self, predictions: Predictions, inputs: ArrayLike | None = None) -> Any:
        """New predictions, repaired: an `Unnormalized`, or a distribution, again.

        Args:
            predictions: Predictions of the same kind, as many as there are; those of the fit too.
            inputs: Their inputs, [n] or [n, q], where the fit had some.

        Raises:
            ValueError: Inputs are missing, or are others than those of the fit.
        """
        return move_all(predictions, self._move(predictions, inputs))

    def draws(
        self, draws: ArrayLike, predictions: Predictions, inputs: ArrayLike | None = None
    ) -> Float[Array, "n m *event"]:
        """Draws [n, m, ...event] of predictions as draws of the repaired ones."""
        values = checks.floats(draws, "draws")
        move = self._move(predictions, inputs)
        if values.ndim < 2 or len(values) != len(move.log_size):
            raise ValueError(
                f"draws: wanted shape [n, m, ..], n = {len(move.log_size)}, got {values.shape}"
            )
        rows = values.reshape(*values.shape[:2], -1)
        return jax.vmap(move.of, in_axes=1, out_axes=1)(rows).reshape(values.shape)

    def changes(self) -> list[str]:
        """A sentence for each parameter of more than 2 errors, the clearest first."""
        return [text for _, text in sorted(self._changes(), key=lambda one: -one[0])]

    def _move(self, predictions: Predictions, inputs: ArrayLike | None) -> Move:
        q = len(self.features.inputs.mix)
        n = _count(predictions, inputs)
        if inputs is None and q:
            raise ValueError(f"inputs: the repair was fitted with {q} of them; give those of these")
        dtype = self.features.units.center.dtype
        columns = _columns(inputs, n, dtype)
        if columns.shape[1] != q:
            raise ValueError(f"inputs: the repair was fitted with {q}, got {columns.shape[1]}")
        return _moves(self.fitted.parameters, self.features, predictions, columns, n)

    def _changes(self) -> list[tuple[float, str]]:
        """Each with how many errors it is."""
        (coordinates, inputs), said = self.names, []
        values, errors = self.fitted.parameters, self.fitted.errors
        for kind, words in (("shift", _shift), ("stretch", _stretch)):
            value, error = getattr(values, kind), getattr(errors, kind)
            for group, along in ALONG.items():
                for size, change, (k,) in _clear(value[group], error[group]):
                    said.append((size, f"{kind} of {coordinates[k]}: {words(change)}{along}"))
            if len(inputs) <= MOST:  # combinations have no names
                for size, change, (k, q) in _clear(value["inputs"], error["inputs"]):
                    along = f" for each deviation of {inputs[q]}"
                    said.append((size, f"{kind} of {coordinates[k]}: {words(change)}{along}"))
        pairs = list(combinations(coordinates, 2))
        for size, change, (k,) in _clear(values.correlation, errors.correlation):
            way = "lower" if change > 0 else "higher"
            said.append((size, f"correlation of {pairs[k][0]} and {pairs[k][1]}: {way}"))
        return said

    def _sentences(self) -> Sentences:
        beyond = int(np.sum(np.asarray(self.gains) == -np.inf))
        moved = counted(
            "{} {target lies|targets lie} where the density that was repaired without "
            "{it|them} is 0: it has an end, which the map moves with it [moved-edge]",
            beyond,
        )
        n = self.gains.shape[-1]
        left_out = too_many(n, *map(len, self.names))
        few = (
            f"{n} pairs are too few for a map that varies with "
            f"{', '.join(left_out)}: it does not [few-pairs]"
        )
        unmoved = int(np.sum(np.asarray(self.unmoved)))
        still = counted(
            "{} {prediction stays|predictions stay} as {it is|they are}: the points drawn near "
            "{it|them} rarely meet the mass [far-points]",
            unmoved,
        )
        said = [(text, True) for text in self.before.warnings()]
        return [*said, (moved, beyond > 0), (few, bool(left_out)), (still, unmoved > 0)]

    def _lines(self) -> list[str]:
        level = float(self.before.level)
        low, high = float(self.low), float(self.high)
        lines = [
            f"repair, n = {len(self.gains)}, {self.n_folds} folds",
            f"  gain    {float(self.gain):.3g} nats an observation   ({1 - level:.0%} limits "
            f"{low:.3g} to {high:.3g}, p = {float(self.p_value):.2g})",
        ]
        for name, test in (("before", self.before), ("after", self.after)):
            lines.append(f"  {name:<7} calibration test: {test.verdict}, p = {test.p_value:.2g}")
        changes = self.changes() or ["nothing by more than two errors"]
        lines += ["  what the map of all pairs changes:", *(f"    {text}" for text in changes)]
        table = self.after.table
        left = [] if table is None else table.sentences(level)
        if left:
            lines += ["  what it leaves:", *(f"    {text}" for text in left)]
        return lines


ALONG = {
    "common": "",
    "center": " for each deviation of its claimed centre",
    "scale": " for each deviation of its claimed log scale",
}


def _clear(values: Array, errors: Array) -> Iterator[tuple[float, float, tuple[int, ...]]]:
    """Values of more than `CLEAR` errors: how many, the value, and its place."""
    ratios = np.asarray(jnp.abs(values) / errors)
    for place in zip(*np.nonzero(ratios > CLEAR), strict=True):
        yield float(ratios[place]), float(values[place]), tuple(map(int, place))


def _shift(value: float) -> str:
    return f"{'higher' if value > 0 else 'lower'} by {abs(value):.2g} sd"


def _stretch(value: float) -> str:
    return f"made {np.exp(abs(value)):.2g} times as {'wide' if value > 0 else 'narrow'}"


@recorded
def repair(
    key: KeyLike,
    predictions: Predictions,
    targets: ArrayLike,
    *,
    inputs: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    folds: int = 5,
    level: float = 0.05,
) -> Repair:
    r"""Move and stretch predictions so that their targets are likely, and certify the gain.

    In the units of each prediction the repaired one is the law of :math:`a + B u`, where u is one
    of its draws, and a and the logarithms of B are affine in its claimed centre, its claimed log
    scale and inputs. The constant of a log density stays as it is, whatever it is, so that maps
    are fitted by likelihood and gains are known in nats. What the evidence does not ask for is not
    changed. The certificate comes from maps that were fitted without the observations that judge
    them. Affine maps repair shifts, spreads, correlations and their trends; not tails, the weights
    of modes or the form. With fewer than 6 pairs a parameter, trends are left out, and said.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: n log densities on the whole space: an `Unnormalized`, or a numpyro
            distribution with batch shape [n]. They must not have been trained by these targets,
            else the certificate is void.
        targets: Observed targets, independent given the predictions, shape [n], [n, d] or
            [n, ...].
        inputs: What errors may vary with, [n] or [n, q]; of more than 10 columns the leading
            principal components are taken.
        names: Names of the d coordinates of a target; by default 0, 1, ...
        folds: Number of parts, each judged by the map that the others fit; at most n / 2.
        level: Limits have confidence 1 - level; and the level of the tests before and after.

    Returns:
        `Repair`. ``repaired.predictions(predictions, inputs)`` are those to use from then on, new
        ones too.

    Raises:
        ValueError: Shapes or values are wrong; the message names the argument.
        TypeError: There are no log densities, or they end somewhere.

    Cost: each fold takes 24 steps of k + 10 log densities an observation for k parameters (29 for
    d = 2), beside about 900 to find the centre and scale of a prediction; two `calibration_test`.

    Source: MacKay (1992) for the priors; Bayle et al. (2020), Cross-validation confidence intervals
    for test error, for limits across folds.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> def log_density(center, y):
        ...     return -jnp.sum((y - center) ** 2) / 2
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 300, 2))
        >>> predictions = jaxcal.Unnormalized(log_density, centers)
        >>> repaired = jaxcal.repair(1, predictions, centers + 1.5 * noise)
        >>> repaired.before.verdict, repaired.after.verdict
        ('rejected', 'not rejected')
        >>> bool(repaired.low > 0)
        True
    """
    key, level = checks.key(key), checks.level(level)
    ys = checks.targets(targets)
    _with_densities_everywhere(predictions)
    predictions = checks.predictions(predictions, ys)
    n, d = len(ys), ys[0].size
    folds = checks.integer(folds, "folds", least=2)
    if folds > n // 2:
        raise ValueError(f"folds: wanted at most n / 2 = {n // 2}, got {folds}")
    called = checks.names(names, d, "coordinate") or tuple(map(str, range(d)))
    columns = _columns(inputs, n, ys.dtype)
    keys = jax.random.split(key)
    fits, features, gains, moves, unmoved = cross_fitted(keys[0], predictions, ys, columns, folds)
    before, after = (
        calibration_test(
            keys[1], move_all(predictions, move), ys, inputs=inputs, names=called, level=level
        )
        for move in (no_move(moves), moves)
    )
    along = tuple(f"input {k}" for k in range(columns.shape[1]))
    of_all = jax.tree.map(lambda leaf: leaf[-1], fits)
    numbers = *certificate(gains, level), gains, unmoved
    return Repair(*numbers, before, after, of_all, features, (called, along), folds)


def _with_densities_everywhere(predictions: Any) -> None:
    if not (isinstance(predictions, Unnormalized) or is_distribution(predictions)):
        raise TypeError(
            f"predictions: a repair needs log densities, which {type(predictions).__name__} does "
            f"not give: pass a jaxcal.Unnormalized or a numpyro distribution with batch shape [n]; "
            f"class probabilities have jaxcal.measures.fit_temperature and jaxcal.dce.recalibrate"
        )
    if is_distribution(predictions) and states_an_end(predictions):
        raise TypeError(
            f"predictions: {type(predictions).__name__} ends somewhere, or is of whole numbers, "
            f"where no map may move it: repair the predictions of transformed targets, such as "
            f"their logarithms"
        )


def _columns(inputs: ArrayLike | None, n: int, dtype: Any) -> Float[Array, "n q"]:
    if inputs is None:
        return jnp.zeros((n, 0), dtype)
    values = checks.rows(inputs, n, "inputs").astype(dtype)
    if not isinstance(values, Tracer) and not bool(jnp.all(jnp.isfinite(values))):
        raise ValueError("inputs: wanted finite numbers, got NaN or infinite ones")
    return values


def _count(predictions: Any, inputs: ArrayLike | None) -> int:
    """How many predictions there are; of a distribution for all, as many as inputs, or one."""
    if not isinstance(predictions, Unnormalized):
        if predictions.batch_shape:
            return int(predictions.batch_shape[0])
        return 1 if inputs is None else len(checks.features(inputs, "inputs"))
    each = jax.vmap(lambda _: 0.0, in_axes=(predictions.in_axes,))
    return jax.eval_shape(each, predictions.params).shape[0]


@partial(jax.jit, static_argnames="n")
def _moves(
    parameters: Parameters,
    features: Features,
    predictions: Predictions,
    inputs: Float[Array, "n q"],
    n: int,
) -> Move:
    """Those of n predictions, in the units of the data."""
    frame = features.frame(predictions, n, inputs)
    return in_data_units(parameters.moves(frame), features.units)


@partial(jax.jit, static_argnames="folds")
def cross_fitted(
    key: Key, predictions: Predictions, ys: Array, inputs: Float[Array, "n q"], folds: int
) -> tuple[Fitted, Features, Vector, Move, Int[Array, ""]]:
    """Fits without each fold, then of all pairs; gains and moves, in the units of the data, of each
    pair by the map that the other folds fit; and how many predictions stay as they are."""
    n = len(ys)
    features, frame = Features.of(predictions, ys, inputs)
    seen = Standardized(predictions, features.units, ys.shape[1:])
    ts = features.units.points(ys.reshape(n, -1))
    old = densities_at(seen, ts)
    usable = jnp.isfinite(old) & jnp.all(jnp.isfinite(ts), axis=1)
    fold = jax.random.permutation(key, jnp.arange(n) % folds)

    def of_others(number: Int[Array, ""]) -> Fitted:
        return fit(frame, seen, ts, usable & (fold != number))

    fits = jax.lax.map(of_others, jnp.arange(folds + 1))  # the last leaves none out

    def judged(parameters: Parameters) -> tuple[Vector, Move]:
        logs = log_likelihoods(parameters, frame, seen, ts)
        return logs, in_data_units(parameters.moves(frame), features.units)

    everywhere = jax.lax.map(judged, fits.parameters)
    new, moves = jax.tree.map(lambda leaf: leaf[fold, jnp.arange(n)], everywhere)
    gains = jnp.where(usable, new - old, jnp.nan)
    return fits, features, gains, moves, jnp.sum(~frame.reliable)


def certificate(gains: Vector, level: float) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Mean, limits and one-sided p-value by Student's t."""
    count = jnp.sum(~jnp.isnan(gains), dtype=gains.dtype)
    mean = jnp.nanmean(gains)
    error = jnp.sqrt(jnp.nansum((gains - mean) ** 2) / (count - 1) / count)
    reach = student_quantile(1 - level / 2, count - 1) * error
    two_sided = student_p_value(mean, error, count - 1)
    p = jnp.where(mean > 0, two_sided / 2, 1 - two_sided / 2)
    lost = mean == -jnp.inf  # a target where the repaired density is 0
    low, high = (jnp.where(lost, mean, mean + side * reach) for side in (-1, 1))
    return mean, low, high, jnp.where(lost, 1, p)


def in_data_units(move: Move, units: Units) -> Move:
    """Moves of points in common units as moves of targets."""
    ratio = units.scale[:, None] / units.scale[None]
    return move._replace(
        center=units.original(move.center),
        forward=move.forward * ratio[None],
        inverse=move.inverse * ratio[None],
        shift=move.shift * units.scale[None],
    )
