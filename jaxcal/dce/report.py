"""The report of a distance from calibration, and its sentences."""

from typing import TYPE_CHECKING

import numpy as np

from jaxcal.results import confidence, count_verdicts, in_words

if TYPE_CHECKING:
    from jaxcal.dce.bracket import DistanceResult


SHOWN = 20  # members of a batch that its report lists


def report(result: "DistanceResult") -> list[str]:
    """The report of one result, line by line."""
    bracket, p = result.bracket, float(result.p_value)
    if np.isnan(p):
        return [f"distance from calibration: {in_words(result)}"]
    low, high = bracket.sources
    interval, trust = result.interval, confidence(result.level)
    how = {"redraw": "labels drawn again from the predictions", "signs": "random signs"}
    return [
        f"distance from calibration, n = {result.predictions.shape[-1]}",
        f"  these data   {float(bracket.low):.4g} to {float(bracket.high):.4g}",
        f"               (low end: {low}; high end: {high})",
        f"  population   {float(interval.low):.4g} to {float(interval.high):.4g}   ({trust})",
        f"  p-value      {p:.4g}   ({how[result.null]}, {result.null_samples.shape[-1]} draws)"
        + ("" if result.adjusted is None else f", {float(result.adjusted):.4g} over all classes"),
        f"  verdict      {in_words(result)}",
        "  measures     "
        + ", ".join(f"{name} {float(value):.4g}" for name, value in result.measures.items()),
    ]


def batch_report(result: "DistanceResult") -> list[str]:
    """The report of a batch of results."""
    p = np.asarray(result.p_value)
    low, high = np.asarray(result.bracket.low), np.asarray(result.bracket.high)
    lines = [
        f"{p.size} distances from calibration, batch shape {p.shape}",
        f"  {count_verdicts(result)}",
        f"  low ends {np.nanmin(low):.4g} to {np.nanmax(low):.4g}, high ends "
        f"{np.nanmin(high):.4g} to {np.nanmax(high):.4g}",
    ]
    if p.ndim != 1:
        return lines
    lines.append(f"  {'':>5} {'these data':>19} {'population':>19} {'p-value':>8} {'adjusted':>8}")
    adjusted, interval = np.asarray(result.p_adjusted), result.interval
    ends = [np.asarray(x) for x in (low, high, interval.low, interval.high)]
    for k in np.argsort(adjusted, kind="stable")[:SHOWN]:
        of_data, of_population = (f"{a[k]:.4f} to {b[k]:.4f}" for a, b in (ends[:2], ends[2:]))
        lines.append(f"  {k:>5} {of_data:>19} {of_population:>19} {p[k]:>8.3g} {adjusted[k]:>8.3g}")
    if p.size > SHOWN:
        lines.append(f"  and {p.size - SHOWN} of larger adjusted p-values")
    return lines


def findings(result: "DistanceResult") -> list[tuple[str, bool]]:
    """Every sentence about the data, and whether it holds."""
    v, y, w = (np.asarray(a) for a in (result.predictions, result.targets, result.weights))
    if not np.all(np.isfinite(v)):
        return [
            (
                "predictions, targets or weights are NaN or out of range: it cannot tell"
                " [nonfinite-predictions]",
                True,
            )
        ]
    n, effective = v.size, float(1 / np.sum(w**2))
    different = np.unique(v).size
    return [
        (
            f"{n} observations are too few: coverage of the interval was measured from 50 on"
            " [few-observations]",
            n < 50,
        ),
        (
            "the bounds from below and from above contradict each other by more than rounding, so "
            "there is no bracket [bounds-contradict]",
            bool(np.isnan(float(result.bracket.low))),
        ),
        (
            "all predictions are equal, so this compares one number with the rate of label 1"
            " [identical-predictions]",
            different == 1 and n > 1,
        ),
        (
            "all labels are equal: the data hold one class [one-class]",
            n > 1 and bool(np.all(y == y[0])),
        ),
        (
            f"the weights leave the information of {effective:.0f} of {n} observations"
            " [uneven-weights]",
            effective < n / 2,
        ),
    ]
