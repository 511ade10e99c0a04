"""Repair predictions by an affine map fitted to their targets, and certify the gain."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.entries.calibration import calibration_test
from jaxcal.nulls import DependentWild
from jaxcal.read import Draws, Unnormalized, checks, convert
from jaxcal.read.scores import is_distribution, states_an_end
from jaxcal.repairing.certificate import ENERGY, NATS, CrossFitted, certificate, cross_fitted
from jaxcal.repairing.fit import Parameters
from jaxcal.repairing.move import (
    Move,
    blocks,
    energy_scores,
    gaussians,
    independent,
    move_all,
    moved_draws,
    no_move,
    one_more,
)
from jaxcal.repairing.probabilities import ProbabilityRepair, of_classes, of_labels
from jaxcal.repairing.result import Repair, columns_of, moves_of
from jaxcal.results import TestResult, recorded
from jaxcal.typing import ArrayLike, Key, KeyLike, Predictions


@recorded
def repair(
    key: KeyLike,
    predictions: Predictions | Draws | ArrayLike,
    targets: ArrayLike,
    *,
    inputs: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    folds: int = 5,
    in_order: bool = False,
    level: float = 0.05,
) -> Repair | ProbabilityRepair:
    r"""Move and stretch predictions so that their targets are likely, and certify the gain.

    If u is a draw of a prediction, in units of its centre and scale, :math:`a + B u` is a draw of
    the repaired prediction. a and log B are affine in the centre and log scale of the prediction
    and in inputs. An unknown constant of a log density cancels, so maps are fitted by likelihood
    and gains are known in nats. Parameters without evidence stay near 0. The certificate is a mean
    gain with confidence limits. Each observation is repaired by the map fitted without its fold.
    Affine maps repair shifts, spreads, correlations and their trends, but not tails, weights of
    modes or shape. With fewer than 6 pairs per parameter, trends are left out with a warning.

    ==================================  ==============================  =====================
    predictions                         map                             certificate in
    ==================================  ==============================  =====================
    log densities                       as above, by likelihood         nats
    `jaxcal.Draws`                      the same, by the moments        energy score
    class probabilities, [n, m]         one temperature                 nats
    probabilities of label 1, [n]       `jaxcal.dce.recalibrate`        energy score, (p - y)^2
    ==================================  ==============================  =====================

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: n log densities on the whole space: an `Unnormalized`, or a numpyro
            distribution with batch shape [n]; `jaxcal.Draws`; or probabilities. If the model was
            trained on these targets, the certificate is invalid.
        targets: Observed targets, independent given the predictions, shape [n], [n, d] or
            [n, ...]; for probabilities, classes 0, .., m - 1, or labels 0 and 1.
        inputs: Numbers with which errors may vary, [n] or [n, q]. More than 10 columns are reduced
            to 10 principal components, so an error along a single column may be missed.
        names: Names of the d coordinates of a target; by default 0, 1, ...
        folds: Number of folds, 2 to n / 2. Each fold is moved by a map fitted to the other folds.
        in_order: Whether rows are in the order of time or place, and neighbours depend on each
            other. Folds are then blocks of rows, and limits and tests allow for correlations.
        level: Level of the tests before and after; limits have confidence 1 - level.

    Returns:
        `Repair`, or `ProbabilityRepair` for probabilities. ``repaired.predictions(new, inputs)``
        returns repaired predictions.

    Raises:
        ValueError: Shapes or values are wrong; the message names the argument.
        TypeError: There are no log densities, draws or probabilities, or densities have bounds.

    Cost: per fold and observation 24 (k + 10) log densities for k parameters (k = 29 for d = 2);
    per prediction about 130 + 384 max(2, d) to find centre and scale; and two `calibration_test`.

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
    key, level = convert.key(key), checks.level(level)
    in_order = convert.flag(in_order, "in_order")
    folds = convert.integer(folds, "folds", least=2)
    if not isinstance(predictions, Draws | Unnormalized) and not is_distribution(predictions):
        return _of_probabilities(key, predictions, targets, (inputs, names), folds, in_order, level)
    ys = checks.targets(targets)
    densities, likelihoods, lag, n_samples = predictions, None, jnp.zeros(()), 0
    if isinstance(predictions, Draws):
        predictions, lag = independent(predictions)
        densities, likelihoods = gaussians(predictions), one_more(predictions)
        n_samples = predictions.samples.shape[1]
    _without_end(densities)
    densities = checks.predictions(densities, ys)
    n, d = len(ys), ys[0].size
    _enough(n, folds)
    called = checks.names(names, d, "coordinate") or tuple(map(str, range(d)))
    columns = columns_of(inputs, n, ys.dtype)
    keys = jax.random.split(key)
    of_folds = None if in_order else keys[0]
    maps = cross_fitted(of_folds, densities, ys, columns, folds, likelihoods, n_samples)
    if isinstance(predictions, Draws):
        scores = _energy_gained(predictions, maps, ys, columns)
        gains, unit = jnp.where(jnp.isnan(maps.gains), jnp.nan, scores), ENERGY
    else:
        gains, unit = maps.gains, NATS

    options: Any = {"level": level} | ({"null": DependentWild()} if in_order else {})

    def tested(move: Move) -> TestResult:
        if isinstance(predictions, Draws):
            moved: Any = moved_draws(predictions, move)
        else:
            moved = move_all(predictions, move)
        return calibration_test(keys[1], moved, ys, inputs=inputs, names=called, **options)

    before = tested(no_move(maps.moves))
    # always true: under jit the second test waits for the first (`tests/laws/test_lapack.py`)
    finished = ~(before.p_value < -1)
    after = tested(jax.tree.map(lambda leaf: jnp.where(finished, leaf, jnp.nan), maps.moves))
    along = convert.input_names(inputs, columns.shape[1])
    whole = jnp.all(ys == jnp.round(ys)) & jnp.any(ys != ys[:1])
    parts = before, after, maps.fitted, maps.features, (called, along), folds
    gain, low, high, p, each = certificate(gains, maps.fold, level, in_order)
    chain = lag, n_samples, in_order, maps.axes
    return Repair(gain, low, high, p, each, maps.unmoved, *parts, whole, unit, *chain)


def _energy_gained(
    draws: Draws, maps: CrossFitted, ys: Array, inputs: Array
) -> Float[Array, "k n"]:
    parts = blocks(draws)

    def gained(parameters: Parameters) -> Array:
        def of_block(part: tuple[Draws, Draws]) -> Array:
            block, others = part
            move = moves_of(parameters, maps.features, gaussians(others), inputs, len(ys))
            return energy_scores(block, ys) - energy_scores(moved_draws(block, move), ys)

        return jnp.mean(jax.lax.map(of_block, parts), axis=0)

    return jax.lax.map(gained, maps.parameters)


def _of_probabilities(
    key: Key, predictions: Any, targets: ArrayLike, others: Any, *options: Any
) -> ProbabilityRepair:
    if not (isinstance(predictions, jax.Array | list | tuple) or convert.brought(predictions)):
        raise TypeError(
            f"predictions: a repair needs log densities, draws or probabilities, which "
            f"{type(predictions).__name__} does not give: pass a jaxcal.Unnormalized, a numpyro "
            f"distribution with batch shape [n], jaxcal.Draws or an array of probabilities"
        )
    if any(one is not None for one in others):
        raise ValueError(
            "inputs and names: a map of probabilities does not vary with inputs: leave them out"
        )
    p = convert.floats(predictions, "predictions")
    _enough(len(p), options[0])
    if p.ndim == 1:
        return of_labels(key, p, targets, *options)
    # columns of a data frame are classes by their names
    return of_classes(key, checks.probabilities(predictions), targets, *options)


def _enough(n: int, folds: int) -> None:
    if folds > n // 2:
        raise ValueError(f"folds: wanted at most n / 2 = {n // 2}, got {folds}")


def _without_end(predictions: Any) -> None:
    if is_distribution(predictions) and states_an_end(predictions):
        raise TypeError(
            f"predictions: {type(predictions).__name__} ends somewhere, or is of whole numbers, "
            f"where no map may move it: repair the predictions of transformed targets, such as "
            f"their logarithms"
        )
