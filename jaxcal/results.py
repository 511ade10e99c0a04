"""The one family of results: pytrees of arrays that print as a short report."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from jaxcal.typing import Scalar

FEW = 0.05  # the share of predictions whose chains may seem unsettled by chance


class Estimate(NamedTuple):
    """Estimates of a squared discrepancy, each []: ``unbiased`` (U-statistic, may be negative) and
    ``biased`` (V-statistic, never negative)."""

    unbiased: Scalar
    biased: Scalar


class Means(NamedTuple):
    """Means of q moments over the observations, each 0 where the predictions are right; all [q].

    ``p_value``: of its being 0, two-sided, and ``p_adjusted`` after Holm; ``low``, ``high``: 95 %
    limits, each for itself.
    """

    estimate: Float[Array, " q"]
    standard_error: Float[Array, " q"]
    p_value: Float[Array, " q"]
    p_adjusted: Float[Array, " q"]
    low: Float[Array, " q"]
    high: Float[Array, " q"]


class Coordinates(NamedTuple):
    r"""Which of d target coordinates is off: by itself, and given the others.

    ``marginal_mean``: how far the predictions lie too high in each coordinate (negative: too low),
    in the standard deviation that each prediction claims for it: the mean of
    :math:`(\Sigma_p s_p)_q / \sqrt{(\Sigma_p)_{qq}}`. Where predictions are Gaussian and
    :math:`\Sigma_p` is their covariance this is (claimed - actual mean) / claimed deviation, and a
    coordinate is not accused of what another does. For other predictions it still has mean 0 where
    they are right, so the p-value holds; but its limits are those of this mean and not of a shift:
    its size is to first order, and another coordinate may leak in where the two depend on each
    other in more than correlation. None where :math:`\Sigma_p` is not to be had, with a sentence.

    The others split the statistic, of which h is a sum over coordinates: each part asks about its
    coordinate **given the others** and may be large because another, correlated one is off.
    ``estimate`` [d] sums to the result's estimate; ``p_value`` [d] is each coordinate's own;
    ``p_adjusted`` [d] after Holm's correction for d tests; ``contributions`` [d, n].
    """

    estimate: Float[Array, " d"]
    p_value: Float[Array, " d"]
    p_adjusted: Float[Array, " d"]
    contributions: Float[Array, "d n"]
    marginal_mean: Means | None = None


class Diagnostics(NamedTuple):
    """What could make a result mean something else than it seems to; each of shape [].

    ``nonfinite_targets``, ``nonfinite_scores``, ``nonfinite_features``: how many entries are NaN or
    infinite. ``identical_predictions``, ``identical_targets``: no two of those compared differ.
    ``constant_coordinates``: coordinates of the targets without spread. ``clamped``: predictions
    whose estimated precision was clamped. ``largest_share``: the largest part that one observation
    has in the sum of absolute contributions. ``reach``: the range of the targets in a coordinate
    over the typical difference of two of them, the largest over coordinates. ``overflow``: the
    statistic or its null is not finite although everything that came in is. Of tests at locations:
    ``collinear_features``, the features say nearly the same at several of them;
    ``few_observations``, for so many locations. ``unsettled``, of draws by MCMC: the share of
    predictions whose chains have not settled. Of marginal means: ``common_covariances``,
    predictions that share one covariance because their scores at the base points are not near
    linear. Of series: ``few_stretches``, fewer than ten independent ones. ``repeated_rows``:
    observations equal to another in target and prediction, beyond chance (`jaxcal.repeats`).
    """

    nonfinite_targets: Int[Array, ""]
    nonfinite_scores: Int[Array, ""]
    nonfinite_features: Int[Array, ""]
    identical_predictions: Bool[Array, ""]
    identical_targets: Bool[Array, ""]
    constant_coordinates: Int[Array, ""]
    clamped: Int[Array, ""]
    largest_share: Scalar
    reach: Scalar | float = 0.0
    overflow: Bool[Array, ""] | bool = False
    collinear_features: Bool[Array, ""] | None = None
    few_observations: Bool[Array, ""] | None = None
    unsettled: Scalar | None = None
    common_covariances: Int[Array, ""] | None = None
    few_stretches: Bool[Array, ""] | None = None
    repeated_rows: Int[Array, ""] | None = None


def known(diagnostics: Diagnostics) -> Bool[Array, ""]:
    """Whether everything that came in is finite: otherwise no number of a result is."""
    scores, features = diagnostics.nonfinite_scores, diagnostics.nonfinite_features
    return (diagnostics.nonfinite_targets == 0) & (scores == 0) & (features == 0)


class Interval(NamedTuple):
    """An interval that holds the true value with probability ``level``, ends each []."""

    low: Scalar
    high: Scalar
    level: float


def plain(value: Any) -> Any:
    """Arrays and tuples as the numbers and lists of JSON; nested, names kept."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, eqx.Module):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return np.asarray(value).tolist() if hasattr(value, "shape") else value


class TestResult(eqx.Module):
    """The outcome of a test of n observations.

    ``estimate`` []: unbiased estimate of the squared discrepancy; may be negative.
    ``biased`` []: the V-statistic, never negative. ``standard_error`` []: of the estimate where the
    model is clearly NOT calibrated; under calibration use the p-value.
    ``statistic`` []: what the null is about. ``p_value`` []. ``null_samples`` [b]: draws of the
    statistic under calibration, empty where the null is a formula.
    ``bandwidths``: those used, by name, in the units of the test.
    ``contributions`` [n]: each observation's share; they sum to the estimate.
    ``coordinates``: the split over target coordinates, where asked for.
    ``route``: how averages over the predictions were taken, with the error where not exactly.
    ``level``: the probability of rejecting a calibrated model that was asked for. `verdict` is
    "rejected" where p <= level, "not rejected" where it is not, and "cannot tell" where the test
    could not have rejected whatever the model, or has no p-value; `reason` says why.
    ``sensitivity`` [d]: growth of the expected statistic with the square of a shift of the targets
    by one unit of the test along a coordinate; NaN where it is not clear, None where not to be had.
    ``too_few``: why no data of this size can be rejected by this null, empty where they can.
    """

    __test__ = False  # a result, not a pytest class

    estimate: Scalar
    biased: Scalar
    standard_error: Scalar
    statistic: Scalar
    p_value: Scalar
    null_samples: Float[Array, " b"]
    bandwidths: dict[str, Scalar]
    contributions: Float[Array, " n"]
    coordinates: Coordinates | None
    diagnostics: Diagnostics
    test: str = eqx.field(static=True)
    null: str = eqx.field(static=True)
    sensitivity: Float[Array, " d"] | None = None
    route: str = eqx.field(static=True, default="")
    level: float = eqx.field(static=True, default=0.05)
    too_few: str = eqx.field(static=True, default="")

    @classmethod
    def of(cls, diagnostics: Diagnostics, **fields: Any) -> "TestResult":
        """The one place where results are made: where something that came in is not finite, every
        number is NaN, from the very counts that `warnings` and `reason` speak of."""
        finite = known(diagnostics)
        numbers = ("estimate", "biased", "standard_error", "statistic", "p_value", "contributions")
        fields |= {
            name: jax.tree.map(lambda x: jnp.where(finite, x, jnp.nan), fields[name])
            for name in (*numbers, "coordinates", "sensitivity")
            if name in fields
        }
        lost = ~jnp.isfinite(fields["p_value"]) | ~jnp.isfinite(fields["estimate"])
        diagnostics = diagnostics._replace(overflow=finite & lost)
        return cls(diagnostics=diagnostics, **fields)

    def at_level(self, level: float, least_p_value: Callable[[int], float]) -> "TestResult":
        """The same result judged at a level, by a null that has this least p-value for n."""
        n = self.contributions.shape[-1]
        return replace(self, level=level, too_few=too_few(self.null, least_p_value, n, level))

    @property
    def reason(self) -> Any:
        """Why it cannot tell, or ""; an array for a batch. Outside of jit only."""
        return first_that_holds(_no_verdict(self), np.shape(self.p_value))

    @property
    def verdict(self) -> Any:
        """One of "rejected", "not rejected", "cannot tell"; an array for a batch. No jit."""
        return judge(self)

    @property
    def smallest_shift(self) -> Any:
        r"""The shift of all targets along each coordinate, [d] in units of the test (standard
        deviations of the targets), that a test like this would find with 80 %. None where it is not
        to be had, NaN in coordinates where it is not clear. Outside of jit only.

        With q the critical value and :math:`\sigma` the deviation of the null's draws, a shift that
        moves the statistic by c is found with 80 % where
        :math:`c = q + z_{.8} \sqrt{\sigma^2 + 2\sqrt2\,\sigma c}`: c adds the variance
        :math:`4 \zeta / n` with :math:`\zeta \leq c\,n\,\sigma / \sqrt2`, the largest eigenvalue
        being below the root of the sum of their squares. To first order in the shift.
        """
        if self.sensitivity is None:
            return None
        draws, z2 = np.asarray(self.null_samples), 0.8416**2
        q = np.quantile(draws, 1 - self.level, axis=-1, method="higher")
        sd = np.std(draws, axis=-1)
        middle = q + 2**0.5 * z2 * sd
        move = middle + np.sqrt(middle**2 - q**2 + z2 * sd**2)
        return np.sqrt(move[..., None] / np.asarray(self.sensitivity))

    def warnings(self) -> list[str]:
        """Sentences about anything that limits what this result says; empty where nothing does."""
        if isinstance(self.p_value, Tracer):
            return []
        texts = [text for text, holds in _findings(self.diagnostics, self._far()) if holds]
        if self.coordinates is not None:
            texts += _about_marginal_mean(self.coordinates.marginal_mean)
        return texts + [self.too_few] * bool(self.too_few)

    def _far(self) -> Any:
        """Whether targets reach farther than a Cauchy sample's do in one of a hundred data sets."""
        return np.asarray(self.diagnostics.reach) > 100 * self.contributions.shape[-1]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON. Draws of the null are left out."""
        names = [n for n in self.__dataclass_fields__ if n not in ("null_samples", "too_few")]
        judged = {"verdict": self.verdict, "reason": self.reason, "warnings": self.warnings()}
        judged["smallest_shift"] = self.smallest_shift
        return {name: plain(getattr(self, name)) for name in names} | plain(judged)

    def __repr__(self) -> str:
        if isinstance(self.p_value, Tracer):
            return f"TestResult({self.test}, traced)"
        return _batch_report(self) if np.ndim(self.p_value) else _report(self)

    __str__ = __repr__


ENDLESS = 10**6  # observations, for a null whose draws alone limit it


@runtime_checkable
class Judged(Protocol):
    """A result with a p-value, one or a batch, to be judged at a level unless there is a reason."""

    @property
    def p_value(self) -> Any: ...
    @property
    def level(self) -> float: ...
    @property
    def reason(self) -> Any: ...


def first_that_holds(cases: Sequence[tuple[str, Any]], shape: tuple[int, ...]) -> Any:
    """The first text whose condition holds, or ""; an array for a batch of this shape."""
    holds = [np.broadcast_to(np.asarray(where), shape) for _, where in cases]
    texts = np.select(holds, [text for text, _ in cases], default="")
    return texts if shape else str(texts)


def judge(result: Judged) -> Any:
    """One of "rejected", "not rejected", "cannot tell"; an array for a batch."""
    p = np.asarray(result.p_value)
    decided = np.where(p <= np.asarray(result.level, p.dtype), "rejected", "not rejected")
    told = np.where(np.asarray(result.reason) == "", decided, "cannot tell")
    return told if p.ndim else str(told)


def count_verdicts(result: Judged) -> str:
    """How many results of a batch came out which way, in words."""
    verdicts = np.asarray(judge(result))
    shares = [
        f"{outcome} in {int(np.sum(verdicts == outcome))}"
        for outcome in ("rejected", "not rejected", "cannot tell")
    ]
    return f"at level {result.level:g}: {', '.join(shares)}"


def too_few(null: str, least_p_value: Callable[[int], float], n: int, level: float) -> str:
    """Why the null can give no p-value up to the level for n observations; "" where it can."""
    least = least_p_value(n)
    if least <= level:
        return ""
    if least_p_value(ENDLESS) > level:
        return (
            f"too few draws for the level {level:g}: the null {null} gives no p-value below "
            f"{least:.3g} with them"
        )
    return (
        f"too few observations for the level {level:g}: with n = {n} the null {null} gives no "
        f"p-value below {least:.3g} (is the array transposed?)"
    )


def _no_verdict(result: TestResult) -> list[tuple[str, Any]]:
    """What takes the verdict away, the first that holds speaking."""
    facts = result.diagnostics
    digits = 0.01 / np.finfo(np.asarray(result.p_value).dtype).eps
    return [
        ("target values are NaN or infinite", np.asarray(facts.nonfinite_targets) > 0),
        ("score values at the targets are NaN or infinite", np.asarray(facts.nonfinite_scores) > 0),
        (
            "values that describe the predictions are NaN or infinite",
            np.asarray(facts.nonfinite_features) > 0,
        ),
        ("all targets are identical and their spread sets the scale", facts.identical_targets),
        ("the statistic or its null is not finite", np.isnan(np.asarray(result.p_value))),
        (
            "a few targets lie so far out that the others lose their digits",
            np.asarray(facts.reach) > digits,
        ),
        (result.too_few, bool(result.too_few)),
    ]


def _report(result: TestResult) -> str:
    p = float(result.p_value)
    draws = result.null_samples.shape[-1]
    how = f"{result.null}, {draws} draws" if draws else result.null
    lines = [
        f"{result.test}, n = {result.contributions.shape[-1]}",
        f"  estimate   {float(result.estimate):.4g}   (standard error "
        f"{float(result.standard_error):.2g} if not calibrated)",
        f"  p-value    {p:.4g}   ({how})",
        f"  verdict    {in_words(result)}",
    ]
    if result.verdict == "not rejected" and result.smallest_shift is not None:
        lines += _shifts(result.smallest_shift)
    used = ", ".join(f"{name} {float(value):.4g}" for name, value in result.bandwidths.items())
    if used:
        lines.append(f"  bandwidths {used}")
    if result.route:
        lines.append(f"  averages   {result.route}")
    if result.coordinates is not None:
        lines += _coordinates(result.coordinates)
    return "\n".join(lines + [f"  warning: {text}" for text in result.warnings()])


def _about_marginal_mean(marginal_mean: Means | None) -> list[str]:
    if marginal_mean is None:
        return [
            "which coordinate is shifted by itself cannot be told, only given the others: that "
            "needs the covariance of each prediction, from distributions of known form, or from "
            "scores at more base points than coordinates: raise n_nodes, or give Scores.at_nodes "
            "and Scores.nodes"
        ]
    if np.all(np.isfinite(np.asarray(marginal_mean.p_value))):
        return []
    return [
        "which coordinate is shifted by itself cannot be told: scores, at the targets or at the "
        "base points that the covariance of each prediction comes from, are NaN or infinite"
    ]


def _coordinates(split: Coordinates) -> list[str]:
    """A table: a line a coordinate; first by itself, then given the others."""
    head, rows = "  coordinate", [f"  {c:10d}" for c in range(split.estimate.shape[-1])]
    if split.marginal_mean is not None:
        head += "   too high by (95 % limits)     p (Holm)"
        columns = zip(*map(np.asarray, split.marginal_mean), strict=True)
        rows = [
            row + f"   {mean:+7.3f} sd ({low:+7.3f} to {high:+7.3f})   {p:8.3g}"
            for row, (mean, _, _, p, low, high) in zip(rows, columns, strict=True)
        ]
    head += "   given the others: estimate   p (Holm)"
    columns = zip(np.asarray(split.estimate), np.asarray(split.p_adjusted), strict=True)
    rows = [
        row + f"   {part:26.3g}   {p:8.3g}" for row, (part, p) in zip(rows, columns, strict=True)
    ]
    return [head, *rows]


def _batch_report(result: TestResult) -> str:
    p = np.asarray(result.p_value)
    numbers = p[~np.isnan(p)]
    lines = [
        f"{p.size} results of {result.test}, batch shape {p.shape}",
        f"  {count_verdicts(result)}",
    ]
    if numbers.size:
        estimates = np.asarray(result.estimate)
        lines.append(
            f"  p-values from {numbers.min():.4g} to {numbers.max():.4g}, "
            f"estimates from {np.nanmin(estimates):.4g} to {np.nanmax(estimates):.4g}"
        )
    return "\n".join(lines + [f"  warning: {text}" for text in result.warnings()])


def _shifts(smallest: np.ndarray) -> list[str]:
    """What the test would have found: a line, of the first coordinates where there are many."""
    clear = [f"{size:.2g} along {c}" for c, size in enumerate(smallest[:5]) if np.isfinite(size)]
    if not clear:
        return []
    return [f"  would find with 80 % a shift of {', '.join(clear)} (coordinate; units of the test)"]


def in_words(result: Judged) -> str:
    """The verdict on one result, or why there is none."""
    at = f"at level {result.level:g}"
    match judge(result):
        case "rejected":
            return f"rejected {at}: evidence against calibration"
        case "not rejected":
            return f"not rejected {at}: no evidence against calibration (which is not proof of it)"
    return f"cannot tell: {result.reason}"


def _findings(found: Diagnostics, far: Any) -> list[tuple[str, bool]]:
    def any_of(flag: Any) -> bool:
        return bool(np.any(np.asarray(flag)))

    def number(flag: Array | None) -> int:
        return 0 if flag is None else int(np.sum(np.asarray(flag)))

    share = float(np.max(np.asarray(found.largest_share), initial=0.0))
    reach = float(np.max(np.asarray(found.reach), initial=0.0))
    shares = 0.0 if found.unsettled is None else found.unsettled
    unsettled = float(np.max(np.asarray(shares), initial=0.0))
    return [
        (
            f"{number(found.nonfinite_targets)} target values are NaN or infinite, so the p-value "
            f"is NaN: remove or repair those observations",
            any_of(found.nonfinite_targets),
        ),
        (
            f"{number(found.nonfinite_scores)} score values at the targets are NaN or infinite, so "
            f"the p-value is NaN: does the density reach all targets, and is it differentiable?",
            any_of(found.nonfinite_scores),
        ),
        (
            f"{number(found.nonfinite_features)} values that describe the predictions are NaN or "
            f"infinite, so the p-value is NaN: look for parameters that are not finite, and where "
            f"scores are compared for base points at which a density is 0",
            any_of(found.nonfinite_features),
        ),
        (
            "all predictions compared are identical, so this asks only whether the targets follow "
            "that one distribution",
            any_of(found.identical_predictions),
        ),
        (
            "all targets compared are identical: their spread sets the scale, so the result "
            "says nothing",
            any_of(found.identical_targets),
        ),
        (
            f"{number(found.constant_coordinates)} target coordinates have no spread and were not "
            f"rescaled",
            any_of(found.constant_coordinates),
        ),
        (
            f"the precision of {number(found.clamped)} predictions could not be estimated from "
            f"their scores and was clamped; the level is kept, power may be lost",
            any_of(found.clamped),
        ),
        (
            "the statistic or its null is not finite although everything that came in is, so the "
            "p-value is NaN: an overflow (rescale, or use float64), or blocks without spread",
            any_of(found.overflow),
        ),
        (
            f"the targets reach {reach:.2g} times as far as two of them typically differ: a few "
            f"set the scale of all (outliers, or a placeholder for what is missing?)",
            any_of(far),
        ),
        (
            f"the chains behind the draws of {unsettled:.0%} of the predictions have not settled "
            f"(R-hat): the test can reject calibrated models; make more steps, or use kccsd_test",
            unsettled > FEW,
        ),
        (
            f"one observation carries {share:.0%} of the absolute contributions, and the result "
            f"hangs on it: an outlier, or heavy tails",
            share > 0.25,
        ),
        (
            f"{number(found.common_covariances)} predictions do not look Gaussian in their scores "
            f"at the base points: one covariance in common stands for theirs, and shifts of "
            f"coordinates by themselves are those that such predictions would have in common",
            number(found.common_covariances) > 0,
        ),
        (
            f"{number(found.repeated_rows)} observations repeat another exactly, in target and "
            f"prediction: they are not independent, and p-values are too small: keep one of each",
            number(found.repeated_rows) > 0,
        ),
        (
            "observations depend on each other over so long that fewer than ten independent "
            "stretches are left: the level is not assured, and little can be found",
            found.few_stretches is not None and any_of(found.few_stretches),
        ),
        (
            "the features at the test locations are nearly collinear, and the test rejects too "
            "often: take fewer locations, or ones farther apart",
            found.collinear_features is not None and any_of(found.collinear_features),
        ),
        (
            "there are few observations for so many test locations, and the level may not be "
            "kept: take fewer locations, or the null Signs()",
            found.few_observations is not None and any_of(found.few_observations),
        ),
    ]


def largest_share(contributions: Float[Array, " n"]) -> Scalar:
    """The largest part of one observation in the sum of absolute contributions; 0 if all are 0."""
    sizes = jnp.abs(contributions)
    total = jnp.sum(sizes)
    return jnp.where(total > 0, jnp.max(sizes) / jnp.where(total > 0, total, 1), 0.0)
