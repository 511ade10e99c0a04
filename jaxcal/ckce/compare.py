r"""Which of several models is calibrated best? Every pairwise difference, with its uncertainty.

All models see the same observations and the same draws of the bootstrap: a difference of two is
far more certain than either value.
"""

from jaxcal.ckce import any_predictions, ranks
from jaxcal.ckce.any_predictions import are_classes
from jaxcal.ckce.class_comparison import by_kernel, by_probability, compared, of_groups, of_models
from jaxcal.ckce.inputs import Ridge, named
from jaxcal.ckce.results import Comparison
from jaxcal.read import Scores, checks
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
    n_draws: int = 999,
    level: float = 0.05,
    rank: int | None = None,
    prediction_kernel: KernelLike | None = None,
    similarity: ArrayLike | None = None,
    ridge: Ridge = None,
    bandwidth: ArrayLike | str | None = None,
) -> Comparison:
    r"""Compare how well M models are calibrated: values, every difference, and the best ones.

    By the measure "probability" the error is in units of probability: the residuals, one-hot
    targets minus class probabilities, are regressed on the predictions, and the error is the root
    mean square of what the regression finds, from every observation without its own residual.
    There is no bandwidth, ridge or rank to choose. It finds what a linear recalibration would
    correct, such as over- and underconfidence, and wrong frequencies of classes; a calibrated model
    has 0, and so has one whose errors are no linear function of its predictions. Of distributions,
    draws and densities known up to a constant, the events are "at most the t-quantile" of each
    coordinate, for ten t, and the regression is on the claimed centre and log scale. So it means
    the same of all kinds, which may be compared with each other.
    By the measure "ckce" it is the CKCE of Moskvichev and Sejdinovic, for predictions of any kind.
    By the measure "skce" it is the squared kernel calibration error of `jaxcal.skce_test`, also for
    any kind: the mean over pairs of observations of k(q, q') times the inner product of their
    residuals. Errors of the same sign at similar predictions add up, others cancel. For classes the
    root of half of it is at most the root mean square error of the probabilities, if no k(q, q) is
    above 1. One bandwidth serves all models, so that by "skce" a model whose predictions lie within
    it looks better, as its errors cancel: logits divided by 4 and multiplied by 3.3 have errors .19
    and .20 by "probability", and .03 and .13 by "skce". Both are norms without a unit, for the
    comparison of models with the same kernels.

    Intervals of values are never negative and invert a test of every value; intervals of
    differences hold together (95 % ones in .92 of data sets and more by "probability", .885 and
    more by "ckce": `experiments/compare`). The adjusted p-value compares with the largest
    standardized draw over all pairs. p >= 1 / (n_draws + 1). A model is called worse only if its
    own test, by labels drawn from its predictions, finds it wrong too, so that labels may be rare
    and a model that was fitted to the same labels accuses no other one. Predictions that are no
    class probabilities have random signs of their residuals in the place of drawn labels.

    Args:
        key: Random key: typed, legacy or an integer.
        models: A mapping from names to predictions, or a list of them: class probabilities
            [n, m] (or an array [M, n, m]); or numpyro distributions with batch shape [n],
            `jaxcal.Draws` and `jaxcal.Unnormalized`, of different kinds too. By "ckce" and "skce"
            distributions and draws are compared by kernel means, or, where one model is a
            `jaxcal.Unnormalized` or `jaxcal.Scores`, densities by scores in units of their own
            spread. Data frames with the same columns in another order are put into
            that of the first.
        targets: [n] Classes 0..m-1, or values [n] or [n, d].
        measure: "probability", "ckce" or "skce"; None is "probability", and "ckce" where a model
            is `jaxcal.Scores`, which leaves the ranks of targets unknown.
        groups: [n] Names of groups, text or integers, each of at least 3 observations: is the one
            model of ``models`` (its class probabilities) calibrated worse for some of them? Groups
            take the place of models.
        n_draws: Draws of the test.
        level: Up to it an adjusted p-value says "better"; intervals have confidence 1 - level.
        rank: Of "ckce" and "skce", the largest rank of a Gram matrix, by incomplete Cholesky; None
            is `default_rank`. What it leaves out is in ``left_out``.
        prediction_kernel: Of "ckce" and "skce", on probability vectors or else on a distance
            between predictions. By default Gaussian; by "ckce" plus `jaxcal.kernels.Linear` of
            probability vectors (`simplex_kernel`), and else plus a constant. Unset bandwidths take
            ``bandwidth``.
        similarity: Of "ckce" and "skce", the [m, m] Gram matrix of the classes; None is that of
            equality.
        ridge: Of "ckce": a number, a function of n, or None for n^(-1/4), with n the
            mean size of groups.
        bandwidth: Of "ckce" and "skce": None or "pooled" for the mean of the median distances of
            all models, each weighted by itself; a number; or "own", a median each.

    Returns:
        `Comparison`. Values do not depend on the order of the observations; the draws do.

    Cost: M n m (r + m) multiplications by "probability", with r at most 30, and M min(n, 1024)
    (min(n, 1024) + n_draws) r m for draws; of a density known up to a constant about 190 of its
    values for each observation. By the others M (n r^2 + min(n, 1024)^2 n_draws) multiplications
    and M min(n, 1024)^2 memory, for rank r; other predictions than class probabilities take 8 M n^3
    by "ckce" and O(M n^2) by "skce" instead. Class probabilities that take more than a few seconds
    show a bar on stderr.

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
    names, each = ((), []) if groups is not None else named(models)
    classes = groups is not None or are_classes(each)
    measure = _measure(measure, each)
    options = {
        "rank": rank,
        "prediction_kernel": prediction_kernel,
        "similarity": similarity,
        "ridge": ridge,
        "bandwidth": bandwidth,
    }
    for name, value in options.items():
        if value is not None and (measure == "probability" or (name, measure) == ("ridge", "skce")):
            of = '"ckce"' if name == "ridge" else '"ckce" or "skce"'
            raise ValueError(f'{name}: an option of measure={of}, not of measure="{measure}"')
    if isinstance(bandwidth, str) and bandwidth not in ("own", "pooled"):
        raise ValueError(f"bandwidth: wanted 'pooled', 'own' or a number, got {bandwidth!r}")
    counts = {"measure": measure, "n_draws": n_draws, "level": level}
    if classes and groups is None:
        problem = of_models(models, targets)
    elif classes:
        problem = of_groups(models, targets, groups)
    elif measure == "probability":
        fields = ranks.compared(key, names, each, targets, n_draws, level)
        return Comparison(**fields, names=names, **counts, things="models")
    else:
        shared = (names, each, targets, measure, n_draws, level)
        fields = any_predictions.compared(key, *shared, **options)
        return Comparison(**fields, names=names, **counts, things="models")
    kernels = measure != "probability"
    chosen = by_kernel(problem, measure, **options) if kernels else by_probability(problem)
    fields = compared(key, problem, chosen, n_draws, level)
    return Comparison(**fields, names=problem.names, **counts, things=problem.things)


def _measure(measure: object, models: list[PredictionsLike]) -> str:
    """Return the name of a measure that these predictions have."""
    if measure is None:
        return "ckce" if any(isinstance(model, Scores) for model in models) else "probability"
    if not isinstance(measure, str) or measure not in MEASURES:
        raise ValueError(f"measure: wanted one of {', '.join(MEASURES)}, got {checks.say(measure)}")
    return str(measure)
