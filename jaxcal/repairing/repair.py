"""Repair predictions by what their targets say, and certify what that gains."""

from collections.abc import Sequence
from typing import Any

import jax

from jaxcal.entries import calibration_test
from jaxcal.read import Unnormalized, checks
from jaxcal.read.scores import is_distribution, states_an_end
from jaxcal.repairing.certificate import certificate, of_own_fold
from jaxcal.repairing.cross_fitted import cross_fitted
from jaxcal.repairing.move import move_all, no_move
from jaxcal.repairing.result import Repair, columns_of
from jaxcal.results import recorded
from jaxcal.typing import ArrayLike, KeyLike, Predictions


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
    columns = columns_of(inputs, n, ys.dtype)
    keys = jax.random.split(key)
    maps = cross_fitted(keys[0], predictions, ys, columns, folds)
    before, after = (
        calibration_test(
            keys[1], move_all(predictions, move), ys, inputs=inputs, names=called, level=level
        )
        for move in (no_move(maps.moves), maps.moves)
    )
    along = tuple(f"input {k}" for k in range(columns.shape[1]))
    of_all = jax.tree.map(lambda leaf: leaf[-1], maps.fits)
    numbers = certificate(maps.gains, maps.fold, level)
    gains = of_own_fold(maps.gains, maps.fold)
    parts = before, after, of_all, maps.features, (called, along), folds
    return Repair(*numbers, gains, maps.unmoved, *parts)


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
