r"""Which of several models is calibrated best? Every pairwise difference, with its uncertainty.

All models see the same observations and the same draws of the bootstrap: a difference of two is
far more certain than either value.
"""

from typing import Any

import jax
import jax.numpy as jnp

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


@recorded
def compare(
    key: KeyLike,
    models: Models | PredictionsLike,
    targets: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    n_draws: int = 999,
    level: float = 0.05,
    rank: int | None = None,
    prediction_kernel: KernelLike | None = None,
    similarity: ArrayLike | None = None,
    ridge: Ridge = None,
    bandwidth: ArrayLike | str | None = "pooled",
) -> Comparison:
    r"""Which of M models is calibrated best: values, every difference, and the best ones.

    The error is CKCE at one ridge and kernel for all models, without the products of observations
    with themselves, :math:`\sum_{i \ne j} W_{ij} r_i^\top r_j`, W = A^-1 K A^-1: label noise,
    which differs between models, adds nothing to it on average. Intervals of values, which are
    never negative, invert a test of every value. Intervals of differences, which hold together,
    and p-values are of the difference of the means at this ridge, by a multiplier bootstrap of
    standardized differences (`jaxcal.ckce.expansion`) with both terms of the expansion of CKCE
    (`jaxcal.ckce.expansion`): the second rules between calibrated models, where the first one
    vanishes. Everything is tested with the noise of the residuals and with that which class
    probabilities claim, so that labels may be rare. The adjusted p-value compares with the largest
    standardized draw over all pairs. Where both models are calibrated the test is somewhat
    conservative. p >= 1 / (n_draws + 1). A model that was fitted to the same labels is not found to
    be wrong by them.
    Class probabilities that take more than a few seconds show a bar on stderr.

    Args:
        key: Random key: typed, legacy or an integer.
        models: A mapping from names to predictions, or a list of them: class probabilities
            [n, m] (or an array [M, n, m]); numpyro distributions with batch shape [n] and
            `jaxcal.Draws`, compared by kernel means; or, where one is a
            `jaxcal.Unnormalized` or `jaxcal.Scores`, densities, compared by scores in units of
            their own spread.
        targets: [n] Classes 0..m-1, or values [n] or [n, d].
        groups: [n] Names of groups, text or integers, each of at least 3 observations: is the one
            model of ``models`` (its class probabilities) calibrated worse for some of them? Groups
            take the place of models, at one ridge, by default that of their mean size, and one
            bandwidth. The level holds where groups are calibrated. Between equally wrong groups of
            very different sizes p-values are too small (of 60 and 140 observations, .09 reject at
            .05), and a small wrong group is rarely found (`experiments/ckce_intervals`).
        n_draws: Draws of the bootstrap.
        level: Up to it an adjusted p-value says "better"; intervals have confidence 1 - level.
        rank: Largest rank of a Gram matrix, by incomplete Cholesky; None is `default_rank`. What
            it leaves out is in ``left_out``.
        prediction_kernel: On probability vectors, by default `simplex_kernel`; else on a distance
            between predictions, by default a Gaussian plus a constant. Unset bandwidths take
            ``bandwidth``.
        similarity: [m, m] Gram matrix of the classes; None is that of equality.
        ridge: A number, a function of n, or None for n^(-1/4).
        bandwidth: "pooled" for the median distances of all models (`pooled_bandwidth`), a number,
            or "own", a median each.

    Returns:
        `Comparison`. Values do not depend on the order of the observations; the draws do.

    Raises:
        ValueError: Shapes disagree, or there are fewer than 2 models or 3 observations.
        TypeError: An argument has the wrong type, named.

    Cost: M (n r^2 + min(n, 1024)^2 n_draws) multiplications and M min(n, 1024)^2 memory, for rank
    r; other predictions than class probabilities take 8 M n^3 instead.

    Source: Moskvichev and Sejdinovic rank models by CKCE, and condition on groups (Section 3.3);
    they have no intervals; these are ours.

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
    if isinstance(bandwidth, str) and bandwidth not in ("own", "pooled"):
        raise ValueError(f"bandwidth: wanted 'pooled', 'own' or a number, got {bandwidth!r}")
    of_probabilities: dict[str, Any] = {
        "n_draws": n_draws,
        "level": level,
        "rank": rank,
        "prediction_kernel": simplex_kernel() if prediction_kernel is None else prediction_kernel,
        "similarity": similarity,
        "ridge": ridge,
    }
    if groups is not None:
        width = None if isinstance(bandwidth, str) else bandwidth
        return of_groups(key, models, targets, groups, bandwidth=width, **of_probabilities)
    names, each = named(models)
    if are_classes(each):
        stack = stacked(models)[1]
        fields = of_classes(key, stack, targets, bandwidth=bandwidth, **of_probabilities)
    else:
        for name, value in (("rank", rank), ("similarity", similarity)):
            if value is not None:
                raise ValueError(f"{name}: an option for class probabilities alone")
        if bandwidth == "own":
            raise ValueError("bandwidth: 'own' is an option for class probabilities alone")
        fields = _of_any(
            key,
            names,
            each,
            targets,
            n_draws=n_draws,
            level=level,
            prediction_kernel=prediction_kernel,
            ridge=ridge,
            bandwidth=bandwidth,
        )
    return Comparison(**fields, names=names, n_draws=n_draws, level=level, things="models")


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
