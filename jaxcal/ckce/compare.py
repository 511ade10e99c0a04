r"""Which of several models is calibrated best? Every pairwise difference, with its uncertainty.

All models see the same observations and the same draws of the bootstrap: a difference of two is
far more certain than either value.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxcal.ckce import class_comparison
from jaxcal.ckce.any_predictions import (
    are_classes,
    expanded,
    floating,
    log_scores,
    specifications,
)
from jaxcal.ckce.class_comparison import judged, of_classes, of_groups, pooled
from jaxcal.ckce.estimator import positive
from jaxcal.ckce.inputs import Ridge, named, ridge_at, stacked
from jaxcal.ckce.kernels import simplex_kernel
from jaxcal.ckce.results import Comparison
from jaxcal.read import checks
from jaxcal.results import recorded
from jaxcal.typing import (
    ArrayLike,
    Contents,
    KernelLike,
    Key,
    KeyLike,
    Models,
    PredictionsLike,
    Scalar,
)

MEASURES = ("probability", "ckce")


@recorded
def compare(
    key: KeyLike,
    models: Models | PredictionsLike,
    targets: ArrayLike,
    *,
    measure: str | None = None,
    groups: ArrayLike | None = None,
    n_draws: int = 999,
    level: float = 0.05,
    rank: int | None = None,
    prediction_kernel: KernelLike | None = None,
    similarity: ArrayLike | None = None,
    ridge: Ridge = None,
    bandwidth: ArrayLike | str | None = None,
) -> Comparison:
    r"""Which of M models is calibrated best: values, every difference, and the best ones.

    By the measure "probability" the error of class probabilities is in units of probability: the
    residuals, one-hot targets minus predictions, are regressed on the predictions, and the error is
    the root mean square of what the regression finds, from every observation without its own
    residual. There is no bandwidth, ridge or rank to choose. It finds what a linear recalibration
    would correct, such as over- and underconfidence, and wrong frequencies of classes; a calibrated
    model has 0, and so has one whose errors are no linear function of its predictions.
    By the measure "ckce" it is the CKCE of Moskvichev and Sejdinovic, for predictions of any kind.

    Intervals of values are never negative and invert a test of every value; intervals of
    differences hold together. The adjusted p-value compares with the largest standardized draw
    over all pairs. p >= 1 / (n_draws + 1). By "probability" a model is called worse only if its own
    test, by labels drawn from its predictions, finds it wrong too, so that labels may be rare and a
    model that was fitted to the same labels accuses no other one.

    Args:
        key: Random key: typed, legacy or an integer.
        models: A mapping from names to predictions, or a list of them: class probabilities
            [n, m] (or an array [M, n, m]); numpyro distributions with batch shape [n] and
            `jaxcal.Draws`, compared by kernel means; or, where one is a
            `jaxcal.Unnormalized` or `jaxcal.Scores`, densities, compared by scores in units of
            their own spread. Data frames with the same columns in another order are put into
            that of the first.
        targets: [n] Classes 0..m-1, or values [n] or [n, d].
        measure: "probability" or "ckce"; None is "probability" for class probabilities, and "ckce"
            for other predictions.
        groups: [n] Names of groups, text or integers, each of at least 3 observations: is the one
            model of ``models`` (its class probabilities) calibrated worse for some of them? Groups
            take the place of models.
        n_draws: Draws of the test.
        level: Up to it an adjusted p-value says "better"; intervals have confidence 1 - level.
        rank: Of the measure "ckce", the largest rank of a Gram matrix, by incomplete Cholesky; None
            is `default_rank`. What it leaves out is in ``left_out``.
        prediction_kernel: Of the measure "ckce". On probability vectors, by default
            `simplex_kernel`; else on a distance between predictions, by default a Gaussian plus a
            constant. Unset bandwidths take ``bandwidth``.
        similarity: Of the measure "ckce", the [m, m] Gram matrix of the classes; None is that of
            equality.
        ridge: Of the measure "ckce": a number, a function of n, or None for n^(-1/4), with n the
            mean size of groups.
        bandwidth: Of the measure "ckce": None or "pooled" for the median distances of all models
            (`pooled_bandwidth`), a number, or "own", a median each.

    Returns:
        `Comparison`. Values do not depend on the order of the observations; the draws do.

    Raises:
        ValueError: Shapes disagree, an option belongs to the other measure, or there are fewer than
            2 models or 3 observations.
        TypeError: An argument has the wrong type, named.

    Cost: M n m (r + m) multiplications by "probability", with r at most 30, and M min(n, 1024)
    (min(n, 1024) + n_draws) r m for draws. By "ckce" M (n r^2 + min(n, 1024)^2 n_draws)
    multiplications and M min(n, 1024)^2 memory, for rank r; other predictions than class
    probabilities take 8 M n^3 instead. Class probabilities that take more than a few seconds show a
    bar on stderr.

    Source: Moskvichev and Sejdinovic rank models by CKCE, and condition on groups (Section 3.3);
    they have no intervals; these are ours. So is the measure "probability".

    Example:
        >>> import jax, jaxcal
        >>> from jax.nn import softmax
        >>> logits = jax.random.normal(jax.random.key(0), (300, 3))
        >>> labels = jax.random.categorical(jax.random.key(1), logits)
        >>> models = {"right": softmax(logits), "too sure": softmax(3 * logits)}
        >>> print(jaxcal.compare(0, models, labels).best())
        ['right']
    """
    key = checks.key(key)
    level, n_draws = checks.level(level), checks.integer(n_draws, "n_draws")
    options = {
        "rank": rank,
        "prediction_kernel": prediction_kernel,
        "similarity": similarity,
        "ridge": ridge,
        "bandwidth": bandwidth,
    }
    names, each = ((), []) if groups is not None else named(models)
    classes = groups is not None or are_classes(each)
    if _measure(measure, classes) == "probability":
        for name, value in options.items():
            if value is not None:
                raise ValueError(f'{name}: an option of measure="ckce" alone')
        if groups is None:
            fields = class_comparison.errors_of_models(key, models, targets, n_draws, level)
        else:
            fields, names = class_comparison.errors_of_groups(
                key, models, targets, groups, n_draws, level
            )
    else:
        fields, names = _by_ckce(
            key, models, targets, names, each, groups, options, n_draws=n_draws, level=level
        )
    things = "models" if groups is None else "groups"
    return Comparison(**fields, names=names, n_draws=n_draws, level=level, things=things)


def _measure(measure: object, classes: bool) -> str:
    """The name of a measure that these predictions have."""
    if measure is None:
        return "probability" if classes else "ckce"
    if not isinstance(measure, str) or measure not in MEASURES:
        raise ValueError(f"measure: wanted one of {', '.join(MEASURES)}, got {checks.say(measure)}")
    if measure == "probability" and not classes:
        raise ValueError('measure: "probability" is of class probabilities; wanted "ckce"')
    return str(measure)


def _by_ckce(
    key: Key,
    models: Any,
    targets: ArrayLike,
    names: tuple[str, ...],
    each: list[PredictionsLike],
    groups: ArrayLike | None,
    options: dict[str, Any],
    *,
    n_draws: int,
    level: float,
) -> tuple[Contents, tuple[str, ...]]:
    """The fields of a `Comparison` by CKCE, and the names of what is compared."""
    bandwidth = "pooled" if options["bandwidth"] is None else options["bandwidth"]
    if isinstance(bandwidth, str) and bandwidth not in ("own", "pooled"):
        raise ValueError(f"bandwidth: wanted 'pooled', 'own' or a number, got {bandwidth!r}")
    counts = {"n_draws": n_draws, "level": level}
    if groups is None and not are_classes(each):
        for name in ("rank", "similarity"):
            if options[name] is not None:
                raise ValueError(f"{name}: an option for class probabilities alone")
        if bandwidth == "own":
            raise ValueError("bandwidth: 'own' is an option for class probabilities alone")
        used = {name: options[name] for name in ("prediction_kernel", "ridge")}
        return _of_any(key, names, each, targets, bandwidth=bandwidth, **used, **counts), names
    if options["prediction_kernel"] is None:
        options = options | {"prediction_kernel": simplex_kernel()}
    if groups is None:
        options = options | {"bandwidth": bandwidth}
        return of_classes(key, stacked(models)[1], targets, **options, **counts), names
    width = None if isinstance(bandwidth, str) else bandwidth
    options = options | {"bandwidth": width}
    return of_groups(key, models, targets, groups, **options, **counts)


def _of_any(
    key: Key,
    names: tuple[str, ...],
    models: list[PredictionsLike],
    targets: ArrayLike,
    *,
    n_draws: int,
    level: float,
    prediction_kernel: KernelLike | None,
    ridge: Ridge,
    bandwidth: ArrayLike | str | None,
) -> Contents:
    each, ys, specs = specifications(names, models, targets, prediction_kernel)
    n, dtype = ys.shape[0], floating(ys)
    if n < 3:
        raise ValueError(f"targets: comparing needs at least 3 observations, got n={n}")
    fit_key, draws_key = jax.random.split(key)
    strength = ridge_at(ridge, n, dtype)
    width = None if isinstance(bandwidth, str) else positive(bandwidth, dtype)
    parts, widths = expanded(fit_key, each, ys, specs, strength, width)
    none = jnp.zeros(len(names), jnp.int32)
    return judged(parts.expansion, parts.curve, draws_key, level, n_draws) | {
        "skill": log_scores(each, ys),
        "bandwidths": widths,
        "ridge": strength,
        "left_out": jnp.zeros(len(names), dtype),
        "nonfinite_predictions": parts.nonfinite,
        "nonfinite_kernel": none,
        "n": n,
        "unit": "shift",
    }


def pooled_bandwidth(models: Models) -> Scalar:
    r"""One bandwidth for all models: the mean of their medians, each weighted by itself.

    :math:`\gamma = \sum_k m_k^2 / \sum_k m_k` with m_k the median distance of two different
    predictions of model k, 0 where all are equal or one is NaN; 1 where that is so of all models.
    A bandwidth far below a model's distances makes its Gram matrix the identity, and CKCE of that
    model noise; one far above leaves a model of little spread nearly constant, as it is. So a
    model counts by how far its predictions differ: where all medians agree this is their value, it
    lies between their mean and the largest, and one more model moves it from :math:`\gamma'` by
    :math:`m (m - \gamma') / \sum_k m_k`, which vanishes with m. The median of all distances
    together is ruled by a model whose predictions hardly differ: half of them are (nearly) 0.

    Args:
        models: As in `jaxcal.compare`, at least one.

    Returns:
        The bandwidth, [].

    Raises:
        ValueError: Shapes or probabilities are wrong; the message names the argument.
        TypeError: An argument is of the wrong type; the message names it.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> model = jnp.array([[1.0, 0.0], [0.0, 1.0]])
        >>> round(float(jaxcal.ckce.pooled_bandwidth([model])), 3)  # the distance, sqrt(2)
        1.414
    """
    return pooled(stacked(models, least=1)[1])
