"""The demonstration's report in words. Nothing here computes more than sums of what was tested."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Shaped

from jaxcal.demo.days import SEASONS, Days, season
from jaxcal.results import TestResult, confidence, tells

TARGETS = ("highest", "lowest")


def opening(fitted: Days, tested: Days) -> str:
    """The question and the data."""
    return f"""\
Can the uncertainty of these weather forecasts be trusted?

  place      Seattle, daily, 2012 to 2015 (NOAA, public domain)
  input      today's highest and lowest temperature, precipitation, wind, time of year
  target     tomorrow's highest and lowest temperature, in degrees Celsius
  fitted on  {_span(fitted)}
  tested on  {_span(tested)}, never seen before
"""


def section(
    name: str,
    independent: TestResult,
    dependent: TestResult,
    shifts: Float[np.ndarray, "4 2"],
    dates: Shaped[np.ndarray, " n"],
) -> str:
    """One forecaster: how badly, how surely, where. ``shifts`` by season and target, degrees C."""
    estimate = float(dependent.estimate)
    lines = [
        f"\n{name}",
        f"  estimate  {estimate:.4f}   squared discrepancy, 0 if calibrated "
        f"(standard error {float(dependent.standard_error):.4f})",
        f"  p-value   {float(dependent.p_value):.3f}    days may depend on each other "
        f"(dependent wild bootstrap)",
        f"            {float(independent.p_value):.3f}    days taken as independent "
        f"(wild bootstrap)\n",
        *_temperatures(dependent),
    ]
    named = dependent.coordinates is not None and tells(dependent.coordinates.marginal_mean)
    head = "\n  season   days   estimate    share"
    lines.append(head + "   shift of highest, lowest (deg C)" * named)
    for word, days, part, (highest, lowest) in zip(
        SEASONS, _days(dates), by_season(dependent, dates).tolist(), shifts, strict=True
    ):
        line = f"  {word:6s}   {days:4d}   {part:8.4f}   {_share(part, estimate)}"
        lines.append(line + f"   {highest:+16.1f}   {lowest:+6.1f}" * named)
    return "\n".join(lines + [f"  warning: {text}" for text in dependent.warnings()])


def _temperatures(result: TestResult) -> list[str]:
    """A line a temperature: by itself where the forecasts tell that, and given the other."""
    split = result.coordinates
    assert split is not None
    head, rows = "  temperature", [f"  {target:11s}" for target in TARGETS]
    if tells(split.marginal_mean):
        means, title = split.marginal_mean, f"too high by ({confidence(result.level)} limits)"
        head += f"   {title:27}   p (Holm)"
        columns = (means.estimate, means.low, means.high, means.p_adjusted)
        rows = [
            row + f"   {high:+7.3f} sd ({low:+7.3f} to {most:+7.3f})   {p:8.3f}"
            for row, high, low, most, p in zip(rows, *(c.tolist() for c in columns), strict=True)
        ]
    columns = (split.estimate.tolist(), split.p_adjusted.tolist())
    rows = [
        row + f"   {part:25.4f}   {q:8.3f}" for row, part, q in zip(rows, *columns, strict=True)
    ]
    return [head + "   given the other: estimate   p (Holm)", *rows]


def conclusion(results: Sequence[tuple[str, TestResult]], dates: Shaped[np.ndarray, " n"]) -> str:
    """What follows, at the level of the test that allows for dependence."""
    notes = """
How to read this
  Days are dependent: what one day lacks, the next often lacks too. The dependent wild bootstrap
  finds from the scores for how long, and allows for that: go by its p-value.
  Too high by: in the standard deviation that each forecast claims, by itself; it is exact for
  Gaussian forecasts and told of these alone. Given the other: what a temperature adds to the
  estimate when the other is known; a fault of one may show in both.
  Shares are parts of the estimate and may be negative. Seasons have no p-value of their own, and
  shares of an estimate that is not significant are noise.
  Shift: how far the days lie above (+) or below (-) their forecasts, of Gaussian ones.
  The two estimates rest on different distances between predictions: they do not rank the models.

What to conclude"""
    return "\n".join([notes, *(_advice(name, result, dates) for name, result in results)])


def by_season(result: TestResult, dates: Shaped[np.ndarray, " n"]) -> Float[np.ndarray, " 4"]:
    """The estimate as a sum over the four `SEASONS`."""
    parts = np.asarray(result.contributions)
    return np.bincount(season(dates), weights=parts, minlength=len(SEASONS))


def _advice(name: str, result: TestResult, dates: Shaped[np.ndarray, " n"]) -> str:
    p = float(result.p_value)
    if result.verdict == "cannot tell":
        return f"  {name}: the test cannot tell ({result.reason})."
    if result.verdict == "not rejected":
        return (
            f"  {name}: {dates.size} days show no evidence against its uncertainty (p = {p:.3f}).\n"
            f"    That is not proof: a smaller error than these days can show may be there."
        )
    assert result.coordinates is not None
    means = result.coordinates.marginal_mean
    where = "which temperature is off, scores tell of Gaussian forecasts only, and these are others"
    if tells(means):
        shifted = [
            f"{target} temperature too {'high' if mean > 0 else 'low'} by {abs(mean):.2f} sd"
            for target, mean, q in zip(
                TARGETS, means.estimate.tolist(), means.p_adjusted.tolist(), strict=True
            )
            if q <= result.level
        ]
        where = " and ".join(shifted) or "neither temperature shifted by itself"
        where += "; spread and shape are not told apart here"
    return (
        f"  {name}: do not take its uncertainty at face value (p = {p:.3f}).\n"
        f"    Forecasts: {where}.\n"
        f"    Shares by season: {_seasons(result, dates)}.\n"
        f"    Look there first, mend the model, and test it again on days it has not seen."
    )


def _seasons(result: TestResult, dates: Shaped[np.ndarray, " n"]) -> str:
    """Seasons and their shares, the largest first."""
    parts, whole = by_season(result, dates), float(result.estimate)
    return ", ".join(
        f"{SEASONS[place]} {_share(float(parts[place]), whole).strip()}"
        for place in np.argsort(-parts)
    )


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:4.0f} %" if whole > 0 else "     -"


def _days(dates: Shaped[np.ndarray, " n"]) -> list[int]:
    return np.bincount(season(dates), minlength=len(SEASONS)).tolist()


def _span(days: Days) -> str:
    return f"{days.dates[0]} to {days.dates[-1]} ({days.dates.size} days)"
