"""Write the report that a `Comparison` prints."""

from typing import Any

import numpy as np

from jaxcal.results import confidence

COMPARABLE = "comparable only at equal n, ridge and kernel"
BOUND = (
    "the root of half a value is at most the error in units of probability, if no k(q, q) and no "
    "eigenvalue of target_kernel is > 1"
)
NARROW = "errors cancel where a model's predictions lie within the bandwidth, so it looks better"
SKILL = "calibration is not skill: a constant forecast can be calibrated"
SAYS = "what is said and what comes true, of the class where they differ most:"
COVERED = "how often targets lie in intervals of 90 % and below medians, where it is furthest off:"
PAIRS_SHOWN = 28  # all pairs of 8 models; the arrays hold all pairs


def lines(comparison: Any) -> list[str]:
    """Return the lines of the report: errors, skill, the best models, and pairs."""
    order = comparison.order()
    wide = max(5, *(len(name) for name in comparison.names))
    worded = comparison.says is not None or comparison.covered is not None
    return [
        *_values(comparison, order, wide),
        *(_words(comparison, order, wide) if worded else []),
        *_pairs(comparison, order),
        *([f"  {SKILL}"] * bool(comparison.skill)),
    ]


def _values(comparison: Any, order: np.ndarray, wide: int) -> list[str]:
    skill = {name: np.asarray(values) for name, values in comparison.skill.items()}
    values = [np.asarray(a) for a in (comparison.corrected, comparison.low, comparison.high)]
    many = f"{len(comparison.names)} {comparison.things}, n = {comparison.n}"
    many += f", given {comparison.given} further variable(s)" * bool(comparison.given)
    title, column = f"SKCE of {many}: comparable only with the same kernels", "corrected"
    if comparison.measure == "ckce":
        title = f"CKCE of {many}, ridge {float(comparison.ridge):.4g}: {COMPARABLE}"
    elif comparison.measure == "probability":
        values = [np.sqrt(a) for a in values]
        title, column = f"Calibration errors of {many}, in units of probability", "error"
    heading = f"{confidence(comparison.level)} interval"
    head = f"  {comparison.things[:-1]:{wide}s}   {column:9s}   {heading:22s}"
    said = [title, (head + "".join(f"   {k:>9s}" for k in skill)).rstrip()]
    for i in order:
        value, low, high = (float(a[i]) for a in values)
        said.append(
            f"  {comparison.names[i]:{wide}s}   {value:9.3g}   [{low:9.3g}, {high:9.3g}]"
            + "".join(f"   {v[i]:9.3g}" for v in skill.values())
        )
    if comparison.measure == "skce" and comparison.says is not None:
        said += [f"  {BOUND}", f"  {NARROW}"]
    return said


def _pairs(comparison: Any, order: np.ndarray) -> list[str]:
    valued = np.isfinite(np.asarray(comparison.corrected))
    best = comparison.best()
    worse = [name for i in order if valued[i] and (name := comparison.names[i]) not in best]
    squared = " of squared errors" if comparison.measure == "probability" else ""
    chosen = f"{', '.join(best) or 'none'}; worse: {', '.join(worse) or 'none shown'}"
    said = [
        f"  may be the best: {chosen}",
        f"  every pair, its interval{squared}, and the p-value adjusted for all pairs:",
    ]
    rows = comparison.table()
    for row in rows[:PAIRS_SHOWN]:
        says = "better" if row["shown"] else "no difference shown"
        if not np.isfinite(row["difference"]):
            says = "cannot tell"
        said.append(
            f"  {row['better']} - {row['worse']}: {row['difference']:.3g} "
            f"[{row['low']:.3g}, {row['high']:.3g}], p = {row['p_adjusted']:.3g}, {says}"
        )
    if len(rows) > PAIRS_SHOWN:
        said.append(f"  and {len(rows) - PAIRS_SHOWN} pairs more: see table()")
    return said


def _words(comparison: Any, order: np.ndarray, wide: int) -> list[str]:
    """Return a heading and one line per model on what it predicts, what occurs, and how it errs."""
    classes = comparison.says is not None
    one, p = _of_classes if classes else _of_intervals, np.asarray(comparison.p_calibrated)
    lines = [f"  {SAYS if classes else COVERED}"]
    for i in order.tolist():
        where, fault = one(comparison, i)
        if p[i] > comparison.level:
            fault = "not shown wrong"
        elif comparison.given:
            fault = "shown wrong given the variables"
        text = f"{where}; {fault} (p = {p[i]:.3g})" if np.isfinite(p[i]) else "not a number"
        lines.append(f"  {comparison.names[i]:{wide}s}   {text}")
    return lines


def _of_classes(comparison: Any, i: int) -> tuple[str, str]:
    """Return texts on the class that model i predicts worst: frequencies, and kind of error."""
    said, true = (np.asarray(a)[i] for a in comparison.says)
    k = int(np.argmax(np.max(np.abs(said - true), axis=1)))
    (low, high), (rare, often) = said[k], true[k]
    where = f"class {k}: says {high:.2f} where {often:.2f} comes true"
    if low < high:
        where += f", {low:.2f} where {rare:.2f} does"
    above, below = float(high - often), float(low - rare)
    if above * below <= 0:
        return where, "overconfident" if above > below else "underconfident"
    return where, "says too much" if above > 0 else "says too little"


def _of_intervals(comparison: Any, i: int) -> tuple[str, str]:
    """Return texts on the coordinate with the worst coverage: the coverage, and kind of error."""
    inside, below = (np.asarray(a)[i] for a in comparison.covered[:2])
    k = int(np.argmax(np.abs(inside - 0.9) + np.abs(below - 0.5)))
    spread, shift = inside[k] - 0.9, below[k] - 0.5
    fault = "overconfident" if spread < 0 else "underconfident"
    if abs(shift) > abs(spread):
        fault = "says too much" if shift > 0 else "says too little"
    where = f"coordinate {k}: " if inside.size > 1 else ""
    return f"{where}90 % hold {inside[k]:.2f}, {below[k]:.2f} below the median", fault
