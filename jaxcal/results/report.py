"""The sentences of a test's result, and its report."""

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array

from jaxcal.results.parts import FEW, Coordinates, Diagnostics, Means, Parts, tells
from jaxcal.results.verdicts import confidence, count_verdicts, in_words

if TYPE_CHECKING:
    from jaxcal.results.result import TestResult


def no_verdict(result: "TestResult") -> list[tuple[str, Any]]:
    """Reasons to give no verdict, and whether each holds; the first that does is named."""
    facts = result.diagnostics
    digits = 0.01 / np.finfo(np.asarray(result.p_value).dtype).eps
    return [
        ("target values are NaN or infinite", np.asarray(facts.nonfinite_targets) > 0),
        (
            "a density ends where it is not 0 (the identity that the test rests on fails there: "
            "take calibration_test, or transform the targets to the whole line)",
            False if facts.abrupt is None else facts.abrupt,
        ),
        ("score values at the targets are NaN or infinite", np.asarray(facts.nonfinite_scores) > 0),
        (
            "values that describe the predictions are NaN or infinite",
            np.asarray(facts.nonfinite_features) > 0,
        ),
        ("all targets are identical and their spread sets the scale", facts.identical_targets),
        (
            "no part of the statistic has anything to say (densities that are flat, or that lack "
            "what it asks for: see the warnings)",
            False if facts.silent is None else facts.silent,
        ),
        ("the statistic or its null is not finite", np.isnan(np.asarray(result.p_value))),
        (
            "a few targets lie so far out that the others lose their digits",
            np.asarray(facts.reach) > digits,
        ),
        (result.too_few, bool(result.too_few)),
        (
            "targets that the predictions call rare decide the statistic, and fewer than ten of "
            "them are expected (the null needs more of both signs)",
            False if facts.rare_targets is None else facts.rare_targets,
        ),
        *(
            (
                f"season of {lag} (errors depend on those {lag} before, which the null does not "
                f"allow for)",
                np.asarray(facts.season) == lag,
            )
            for lag in _seasons(facts)
        ),
        (
            "the largest statistic under these predictions is more probable than the level (there "
            "are too few observations) [too-few-observations]",
            _undecidable(result),
        ),
    ]


def _seasons(facts: Diagnostics) -> list[int]:
    """The lags at which errors return, of a batch all that there are."""
    return [] if facts.season is None else [int(k) for k in np.unique(facts.season) if k > 0]


def _undecidable(result: "TestResult") -> Any:
    """Whether no data could be rejected: more draws than the level share the largest value."""
    draws, p = np.asarray(result.null_samples), np.asarray(result.p_value)
    if draws.shape[-1] == 0 or result.parts is not None:
        return False
    with np.errstate(invalid="ignore", over="ignore"):  # draws that are not finite share no value
        size = np.sqrt(np.mean(draws**2, axis=-1, keepdims=True))
        near = np.max(draws, axis=-1, keepdims=True) - np.sqrt(np.finfo(draws.dtype).eps) * size
        return (np.mean(draws >= near, axis=-1) > result.level) & (p > result.level)


def report(result: "TestResult") -> list[str]:
    """The report of one result, line by line."""
    p = float(result.p_value)
    draws = result.null_samples.shape[-1]
    how = f"{result.null}, {draws} draws" if draws else result.null
    if result.p_value_error is not None:
        how += f", may be off by {float(result.p_value_error):.1g}"
    unit = "squared" if result.parts is None else "in deviations of its null"
    lines = [
        f"{result.test}, n = {result.contributions.shape[-1]}",
        f"  estimate   {float(result.estimate):.4g}   ({unit}; standard error "
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
        lines.append(f"  averages   {result.route}" + _error(result))
    if result.parts is not None:
        lines += _parts(result.parts, result.verdict)
    if result.coordinates is not None:
        lines += _coordinates(result.coordinates, result.level)
    return lines


def _error(result: "TestResult") -> str:
    """How far off averages can be, where the route does not say it itself."""
    error = result.diagnostics.averages_error
    if error is None or "error" in result.route or not float(error) > 0:
        return ""
    return f", standard error {float(error):.1g}"


def about_coordinates(mean: Means | None, spread: Means | None) -> list[str]:
    """Why shift or spread of a coordinate by itself cannot be told; nothing where they can."""
    if mean is None:
        return [
            "which coordinate is shifted by itself cannot be told, only given the others: that "
            "needs the covariance of each prediction, from distributions of known form, or from "
            "scores at more base points than coordinates: raise n_nodes, or give Scores.at_nodes "
            "and Scores.nodes [shift-by-itself]"
        ]
    if not np.all(np.isfinite(np.asarray(mean.p_value))):
        return [
            "which coordinate is shifted by itself cannot be told: scores, at the targets or at "
            "the base points that the covariance of each prediction comes from, or moments that "
            "predictions offer are NaN or infinite [shift-by-itself]"
        ]
    if not tells(mean):
        return [
            "which coordinate is off by itself, and by how much, is exact for Gaussian "
            "predictions; these have scores that are not linear, and none is named from them"
            " [exact-for-gaussians]"
        ]
    if spread is not None and not tells(spread):
        return [
            "spreads and correlations of coordinates by themselves are exact for Gaussian "
            "predictions, and these are others: only shifts are told, from the means that they "
            "offer [exact-for-gaussians]"
        ]
    return []


MEANINGS = {  # of what comes last in the name of a part
    "shift": "predictions are shifted",
    "spread": "predictions are too wide or too narrow",
    "correlation": "predictions have wrong correlations",
    "weights": "the mass lies elsewhere: a shift, wrong weights of modes, or a spread by an edge",
    "shape": "a smooth error, most often a shift",
}


def _parts(parts: Parts, verdict: str) -> list[str]:
    """What the strongest part points to, then a line a part."""
    name = parts.names[int(parts.winner)]
    meaning = MEANINGS.get(name.rpartition(": ")[2])
    lines = (
        [] if verdict != "rejected" else [f"  strongest  {name}" + f" ({meaning})" * bool(meaning)]
    )
    columns = zip(parts.names, *map(np.asarray, (parts.statistics, parts.p_values)), strict=True)
    return lines + [
        f"  part       {name:24}"
        + ("left out" if np.isnan(size) else f"{size:8.2f} sd of its null, p = {p:.3g}")
        for name, size, p in columns
    ]


def _coordinates(split: Coordinates, level: float) -> list[str]:
    """A table: a line a coordinate; first by itself, then given the others. And pairs."""
    head, rows = "  coordinate", [f"  {c:10d}" for c in range(split.estimate.shape[-1])]
    if tells(split.marginal_mean):
        title = f"too high by ({confidence(level)} limits)"
        head += f"   {title:27}   p (Holm)"
        columns = zip(*map(np.asarray, split.marginal_mean), strict=True)
        rows = [
            row + f"   {mean:+7.3f} sd ({low:+7.3f} to {high:+7.3f})   {p:8.3g}"
            for row, (mean, _, _, p, low, high) in zip(rows, columns, strict=True)
        ]
    if tells(split.marginal_spread):
        title = "claimed / actual sd"
        head += f"   {title:24}   p (Holm)"
        rows = [
            row + f"   {np.exp(ratio):5.2f} ({np.exp(low):7.2f} to {np.exp(high):5.2f})   {p:8.3g}"
            for row, (ratio, low, high, p) in zip(rows, _limits(split.marginal_spread), strict=True)
        ]
    head += "   given the others: estimate   p (Holm)"
    columns = zip(np.asarray(split.estimate), np.asarray(split.p_adjusted), strict=True)
    rows = [
        row + f"   {part:26.3g}   {p:8.3g}" for row, (part, p) in zip(rows, columns, strict=True)
    ]
    return [head, *rows, *_pairs(split)]


def _pairs(split: Coordinates) -> list[str]:
    """A line a pair of coordinates, the clearest ten where there are more."""
    if not tells(split.correlation):
        return []
    order = np.argsort(np.asarray(split.correlation.p_value), kind="stable")[:10]
    pairs, limits = split.pairs(), list(_limits(split.correlation))
    lines = ["  pair         correlation too high by        p (Holm)"]
    for k in sorted(order):
        (i, j), (high, low, most, p) = pairs[k], limits[k]
        lines.append(f"  {f'{i}, {j}':10}   {high:+6.3f} ({low:+6.3f} to {most:+6.3f})   {p:8.3g}")
    return lines


def _limits(means: Means) -> zip:
    """Estimate, limits and adjusted p-value, one by one."""
    parts = (means.estimate, means.low, means.high, means.p_adjusted)
    return zip(*map(np.asarray, parts), strict=True)


def batch_report(result: "TestResult") -> list[str]:
    """The report of a batch of results: how many of each verdict."""
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
    return lines


def _shifts(smallest: np.ndarray) -> list[str]:
    """What the test would have found: a line, of the first coordinates where there are many."""
    clear = [f"{size:.2g} along {c}" for c, size in enumerate(smallest[:5]) if np.isfinite(size)]
    if not clear:
        return []
    return [f"  would find with 80 % a shift of {', '.join(clear)} (coordinate; units of the test)"]


def findings(diagnostics: Diagnostics, far: Any) -> list[tuple[str, bool]]:
    """Every sentence about the data, and whether it holds."""

    def any_of(flag: Any) -> bool:
        return flag is not None and bool(np.any(np.asarray(flag)))

    def number(flag: Array | None) -> int:
        return 0 if flag is None else int(np.sum(np.asarray(flag)))

    share = float(np.max(np.asarray(diagnostics.largest_share), initial=0.0))
    reach = float(np.max(np.asarray(diagnostics.reach), initial=0.0))
    shares = 0.0 if diagnostics.unsettled is None else diagnostics.unsettled
    unsettled = float(np.max(np.asarray(shares), initial=0.0))
    return [
        (
            f"{number(diagnostics.nonfinite_targets)} target values are NaN or infinite, so the "
            f"p-value is NaN: remove or repair those observations [nonfinite-targets]",
            any_of(diagnostics.nonfinite_targets),
        ),
        (
            f"{number(diagnostics.nonfinite_scores)} score values at the targets are NaN or "
            f"infinite, so the p-value is NaN: does the density reach all targets, and is "
            f"it differentiable? [nonfinite-scores]",
            any_of(diagnostics.nonfinite_scores),
        ),
        (
            f"{number(diagnostics.nonfinite_features)} values that describe the predictions are "
            f"NaN or infinite, so the p-value is NaN: look for parameters that are not finite, and "
            f"where scores are compared for base points at which a density is 0"
            " [nonfinite-predictions]",
            any_of(diagnostics.nonfinite_features),
        ),
        (
            "all predictions compared are identical, so this asks only whether the targets follow "
            "that one distribution [identical-predictions]",
            any_of(diagnostics.identical_predictions),
        ),
        (
            "all targets compared are identical: their spread sets the scale, so the result "
            "says nothing [identical-targets]",
            any_of(diagnostics.identical_targets),
        ),
        (
            f"{number(diagnostics.constant_coordinates)} target coordinates have no spread and "
            f"were not rescaled [constant-coordinates]",
            any_of(diagnostics.constant_coordinates),
        ),
        (
            f"the scale of {number(diagnostics.clamped)} predictions, in which they are brought "
            f"into units of their own, was not to be had from them and was clamped: the mean stays "
            f"0 under calibration, power may be lost [clamped-scales]",
            any_of(diagnostics.clamped),
        ),
        (
            f"{number(diagnostics.astray)} predictions have their centre away from a summit of "
            f"their density, which the steps did not reach: the mean stays 0 under calibration, "
            f"power may be lost: take more steps, or base points nearer to the predictions"
            " [centres-astray]",
            number(diagnostics.astray) > 0,
        ),
        (
            "the statistic or its null is not finite although everything that came in is, so the "
            "p-value is NaN: an overflow (rescale, or use float64), or blocks without spread"
            " [overflow]",
            any_of(diagnostics.overflow),
        ),
        (
            f"the targets reach {reach:.2g} times as far as their middle half: a few "
            f"set the scale of all (outliers, or a placeholder for what is missing?) [far-targets]",
            any_of(far),
        ),
        (
            f"the chains behind the draws of {unsettled:.0%} of the predictions have not settled "
            f"(R-hat, divergences): the test can reject calibrated models; make more steps, or use "
            f"kccsd_test [unsettled-chains]",
            unsettled > FEW,
        ),
        (
            f"one observation carries {share:.0%} of the absolute contributions, and the result "
            f"hangs on it: an outlier, or heavy tails [one-observation-decides]",
            share > 0.25,
        ),
        (
            f"{number(diagnostics.repeated_rows)} observations repeat another exactly, in target "
            f"and prediction: they are not independent, and p-values are too small: keep "
            f"one of each [repeated-rows]",
            number(diagnostics.repeated_rows) > 0,
        ),
        (
            f"{number(diagnostics.impossible)} targets lie where their own prediction has density "
            f"0, which calibration excludes [impossible-targets]",
            number(diagnostics.impossible) > 0,
        ),
        (
            "a density is 0 somewhere: parts that are right only where densities reach everywhere "
            "are left out (Balance and Exchangeable need no gradient and no transform)"
            " [density-with-edge]",
            number(diagnostics.bounded) > 0,
        ),
        (
            "a density ends where it is not 0: the Stein identity fails there, and the p-value "
            "cannot be trusted: take calibration_test or SKCE, or transform the targets to the "
            "whole line [abrupt-edge]",
            diagnostics.abrupt is not None and any_of(diagnostics.abrupt),
        ),
        (
            "a density is not twice differentiable (a network of ReLU?): curvature is left out"
            " [rough-density]",
            number(diagnostics.rough) > 0,
        ),
        (
            "the targets that decide the statistic are rare, and the predictions expect fewer than "
            "ten of them: where few come, residuals share one sign, and a null of signs or limits "
            "rejects calibrated models: use null=jaxcal.nulls.Redrawn() [rare-targets]",
            any_of(diagnostics.rare_targets),
        ),
        (
            "observations depend on each other over so long that fewer than ten independent "
            "stretches are left: the level is not assured, and little can be found"
            " [dependent-observations]",
            any_of(diagnostics.few_stretches),
        ),
        (
            f"errors return after {', '.join(map(str, _seasons(diagnostics)))} observations, which "
            f"signs that stay the same for a while do not imitate: calibrated models are rejected "
            f"too often [season]",
            bool(_seasons(diagnostics)),
        ),
        (
            "the features at the test locations are nearly collinear, and the test rejects too "
            "often: take fewer locations, or ones farther apart [collinear-features]",
            any_of(diagnostics.collinear_features),
        ),
        (
            "there are few observations for so many test locations, and the level may not be "
            "kept: take fewer locations, or the null Signs() [many-locations]",
            any_of(diagnostics.few_observations),
        ),
    ]
