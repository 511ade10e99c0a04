r"""Compare several models by calibration: estimate, bound and test the difference of every pair.

All models are evaluated on the same observations with the same random draws, so the difference of
two models is far more certain than their values.
"""

import math

from jaxcal.ckce import any_predictions, probability
from jaxcal.ckce.any_predictions import are_classes
from jaxcal.ckce.class_comparison import by_kernel, by_probability, compared, of_groups, of_models
from jaxcal.ckce.inputs import Ridge, named
from jaxcal.ckce.results import Comparison
from jaxcal.read import Scores, checks, convert
from jaxcal.results import recorded
from jaxcal.typing import ArrayLike, KernelLike, KeyLike, Models, PredictionsLike

MEASURES = ("probability", "ckce", "skce")


@recorded
def compare(
    key: KeyLike,
    models: Models | PredictionsLike,
    targets: ArrayLike,
    *,
    measure: str | None = None,
    groups: ArrayLike | None = None,
    given: ArrayLike | None = None,
    n_draws: int = 999,
    level: float = 0.05,
    rank: int | None = None,
    prediction_kernel: KernelLike | None = None,
    target_kernel: ArrayLike | None = None,
    ridge: Ridge = None,
    bandwidth: ArrayLike | str | None = None,
) -> Comparison:
    r"""Compare how well M models are calibrated: estimate each error and test every difference.

    The measure "probability" is the root mean square error of the probabilities. Residuals, one-hot
    targets minus class probabilities, are regressed on the predictions; the fit at an observation
    does not use its own residual. This measure needs no bandwidth, ridge or rank. It detects errors
    that a linear recalibration would correct, such as over- and underconfidence and wrong
    frequencies of classes. It is 0 for a calibrated model, but also for errors that are not linear
    in the predictions. For distributions, draws and unnormalized densities, the probabilities are
    P(y <= t-quantile), for each coordinate and ten levels t. The regressors are then the predicted
    centre and log scale, so models of different kinds can be compared. Half of a model's draws rank
    the targets; the other half estimate centre and scale. The bias of few draws is mostly
    corrected: with 80 draws or more, the squared error is within 2 %. For a wrong model it may be
    too small by up to 7 % with 40 draws, and by up to 24 % with 24 draws.
    The measure "ckce" is the CKCE of Moskvichev and Sejdinovic, for predictions of any kind.
    The measure "skce" is the squared kernel calibration error of `jaxcal.skce_test`, also for any
    kind: the mean over pairs of observations of k(q, q') times the inner product of their
    residuals. For classes sqrt(SKCE / 2) is at most the root mean square error of the
    probabilities, if no k(q, q) and no eigenvalue of ``target_kernel`` exceeds 1. Errors of
    opposite signs cancel at predictions that are closer than the bandwidth, so SKCE understates the
    errors of models with such predictions. CKCE and SKCE have no unit; compare their values only
    between models with the same kernels.

    An interval of an error contains the values >= 0 that a test does not reject. Intervals of
    differences are simultaneous: in simulations at level 95 % all differences were in their
    intervals in at least 93 % of data sets by "probability" and 92 % by "ckce" (in
    `experiments/compare`). Adjusted p-values use the largest standardized difference of all pairs.
    A model is called worse only if a test also rejects that it is calibrated. The test draws labels
    from class probabilities, and signs of residuals for other predictions. So a calibrated model is
    seldom called worse, even if labels are rare or the other model was fitted to these labels.

    Args:
        key: Random key: typed, legacy or an integer.
        models: A mapping from names to predictions, or a list of them: class probabilities
            [n, m] (or an array [M, n, m]); or numpyro distributions with batch shape [n],
            `jaxcal.Draws` and `jaxcal.Unnormalized`, also of different kinds. For "ckce" and "skce"
            the residual is the kernel at the target minus its predicted mean. If any model is a
            `jaxcal.Unnormalized` or `jaxcal.Scores`, residuals of all models are Stein features of
            scores, in units of the predicted spread. Columns of data frames are matched by name.
        targets: Classes 0..m-1, [n], or values [n] or [n, d].
        measure: "probability", "ckce" or "skce". By default "probability", or "ckce" if a model is
            `jaxcal.Scores`, from which ranks of targets cannot be computed.
        groups: Names of groups, text or integers, [n], each with at least 3 observations. Then
            ``models`` are the class probabilities of a single model, whose groups are compared.
        given: Further variables, [n] or [n, a]; errors are conditional on them and on the
            prediction. They are divided by their standard deviations. By "probability" they are
            further columns of the regression (ValueError if it has no room for so many); by "ckce"
            and "skce" the kernel is multiplied by a Gaussian kernel on them, whose bandwidth is
            their median distance.
        n_draws: Number of random draws for p-values and intervals; then p >= 1 / (n_draws + 1).
        level: Level of the tests of differences; intervals have confidence 1 - level.
        rank: For "ckce" and "skce" of class probabilities: largest rank of a Gram matrix, by
            incomplete Cholesky; by default max(128, 2 m + 8 n^(1/4)). `Comparison.left_out` is the
            omitted share of the trace.
        prediction_kernel: For "ckce" and "skce": kernel on predictions. By default Gaussian; for
            "ckce" plus `jaxcal.kernels.Linear` for class probabilities (`simplex_kernel`), or plus
            a constant for others. Unset bandwidths are set by ``bandwidth``.
        target_kernel: For "ckce" and "skce" of class probabilities: Gram matrix of the classes,
            [m, m]; by default the identity.
        ridge: For "ckce": a number, a function of n (mean size of groups), or None for n^(-1/4).
        bandwidth: For "ckce" and "skce": a number; None or "pooled" for :math:`\sum_k m_k^2 /
            \sum_k m_k`, with m_k the median distance of predictions of model k; or "own" for one
            median per model of class probabilities.

    Returns:
        `Comparison`. Values do not depend on the order of the observations; random draws do.

    Cost: by "probability" M n m (r + m) multiplications, with r <= 30 regressors, and M min(n,
    1024) (min(n, 1024) + n_draws) r m for draws; a density known up to a constant is evaluated
    about 190 times per observation. By "ckce" and "skce" M (n r^2 + min(n, 1024)^2 n_draws)
    multiplications and M min(n, 1024)^2 memory, for rank r; other predictions than class
    probabilities take 13/3 M n^3 by "ckce" and O(M n^2) by "skce". Labels of each draw take M n r m
    n_draws, if this is at most 2e9 M. A bar on stderr is shown if class probabilities take more
    than a few seconds.

    Source: Moskvichev and Sejdinovic for the ranking by CKCE, and for groups (Section 3.3).
    Intervals and the measure "probability" are ours.

    Example:
        >>> import jax, jaxcal
        >>> from jax.nn import softmax
        >>> logits = jax.random.normal(jax.random.key(0), (300, 3))
        >>> labels = jax.random.categorical(jax.random.key(1), logits)
        >>> models = {"right": softmax(logits), "too sure": softmax(3 * logits)}
        >>> print(jaxcal.compare(0, models, labels).best())
        ['right']
    """
    key = convert.key(key)
    level, n_draws = checks.level(level), convert.integer(n_draws, "n_draws")
    names, each = ((), []) if groups is not None else named(models)
    classes = groups is not None or are_classes(each)
    measure = _measure(measure, each)
    options = {
        "rank": rank,
        "prediction_kernel": prediction_kernel,
        "target_kernel": target_kernel,
        "ridge": ridge,
        "bandwidth": bandwidth,
    }
    for name, value in options.items():
        if value is not None and (measure == "probability" or (name, measure) == ("ridge", "skce")):
            of = '"ckce"' if name == "ridge" else '"ckce" or "skce"'
            raise ValueError(f'{name}: an option of measure={of}, not of measure="{measure}"')
    if isinstance(bandwidth, str) and bandwidth not in ("own", "pooled"):
        raise ValueError(f"bandwidth: wanted 'pooled', 'own' or a number, got {bandwidth!r}")
    variables = None if given is None else checks.features(given, "given")
    number = 0 if variables is None else math.prod(variables.shape[1:])
    counts = {"measure": measure, "n_draws": n_draws, "level": level, "given": number}
    if classes and groups is None:
        problem = of_models(models, targets, variables)
    elif classes:
        problem = of_groups(models, targets, groups, variables)
    elif measure == "probability":
        fields = probability.compared(key, names, each, targets, n_draws, level, variables)
        return Comparison(**fields, names=names, **counts, things="models")
    else:
        shared = (names, each, targets, measure, n_draws, level)
        fields = any_predictions.compared(key, *shared, **options, given=variables)
        return Comparison(**fields, names=names, **counts, things="models")
    kernels = measure != "probability"
    chosen = by_kernel(problem, measure, **options) if kernels else by_probability(problem)
    fields = compared(key, problem, chosen, n_draws, level)
    return Comparison(**fields, names=problem.names, **counts, things=problem.things)


def _measure(measure: object, models: list[PredictionsLike]) -> str:
    """Return the checked name of the measure. None stands for the default for these models."""
    if measure is None:
        return "ckce" if any(isinstance(model, Scores) for model in models) else "probability"
    if not isinstance(measure, str) or measure not in MEASURES:
        raise ValueError(
            f"measure: wanted one of {', '.join(MEASURES)}, got {convert.say(measure)}"
        )
    return str(measure)
