"""Text of the report of a `Comparison`."""

from typing import Any

import numpy as np

from jaxcal.results import confidence

COMPARABLE = "comparable only at equal n, ridge and kernel"
BOUND = "the root of half a value is at most the error in units of probability, if no k(q, q) > 1"
NARROW = "errors cancel where a model's predictions lie within the bandwidth, so it looks better"
PAIRS_SHOWN = 28  # all pairs of 8 models; the arrays hold all pairs


def lines(comparison: Any) -> list[str]:
    """Return the lines of the report: values, skill, the best models, and pairs."""
    order = comparison.order()
    wide = max(5, *(len(name) for name in comparison.names))
    words = _says_lines if comparison.says is not None else _covered_lines
    worded = comparison.says is not None or comparison.covered is not None
    return [
        *_values(comparison, order, wide),
        *(words(comparison, order, wide) if worded else []),
        *_pairs(comparison, order),
        *(
            ["  calibration is not skill: a constant forecast can be calibrated"]
            * bool(comparison.skill)
        ),
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


def _says_lines(comparison: Any, order: np.ndarray, wide: int) -> list[str]:
    """Return a line per model on the class whose probability differs most from its frequency."""
    assert comparison.says is not None
    said, true = (np.asarray(a) for a in comparison.says)
    p = np.asarray(comparison.p_calibrated)
    text = ["  what is said and what comes true, of the class where they differ most:"]
    for i in order:
        name = f"  {comparison.names[i]:{wide}s}   "
        if not np.isfinite(p[i]):
            text.append(name + "not a number")
            continue
        k = int(np.argmax(np.max(np.abs(said[i] - true[i]), axis=1)))
        (low, high), (rare, often) = said[i, k], true[i, k]
        where = f"says {high:.2f} where {often:.2f} comes true"
        if low < high:
            where += f", {low:.2f} where {rare:.2f} does"
        fault = _fault(float(high - often), float(low - rare))
        fault = _judged(fault, comparison, p[i])
        text.append(f"{name}class {k}: {where}; {fault} (p = {p[i]:.3g})")
    return text


def _judged(fault: str, comparison: Any, p: float) -> str:
    """Return the fault if the model's own test shows an error, which further variables may hold."""
    if p > comparison.level:
        return "not shown wrong"
    return "shown wrong given the variables" if comparison.given else fault


def _fault(above: float, below: float) -> str:
    """Return the name of an error, from the errors of the high and of the low probability."""
    if above * below <= 0:
        return "overconfident" if above > below else "underconfident"
    return "says too much" if above > 0 else "says too little"


def _covered_lines(comparison: Any, order: np.ndarray, wide: int) -> list[str]:
    """Return a line per model on the coverage of intervals and medians of its worst coordinate."""
    inside, below = (np.asarray(a) for a in comparison.covered)
    p = np.asarray(comparison.p_calibrated)
    lines = [
        "  how often targets lie in intervals of 90 % and below medians, where it is furthest off:"
    ]
    for i in order:
        name = f"  {comparison.names[i]:{wide}s}   "
        if not np.isfinite(p[i]):
            lines.append(name + "not a number")
            continue
        k = int(np.argmax(np.abs(inside[i] - 0.9) + np.abs(below[i] - 0.5)))
        spread, shift = inside[i, k] - 0.9, below[i, k] - 0.5
        fault = "overconfident" if spread < 0 else "underconfident"
        if abs(shift) > abs(spread):
            fault = "says too much" if shift > 0 else "says too little"
        fault = _judged(fault, comparison, p[i])
        where = f"coordinate {k}: " if inside.shape[1] > 1 else ""
        share = f"90 % hold {inside[i, k]:.2f}, {below[i, k]:.2f} below the median"
        lines.append(f"{name}{where}{share}; {fault} (p = {p[i]:.3g})")
    return lines
