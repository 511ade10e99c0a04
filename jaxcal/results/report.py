"""Convert results to text, HTML, figures and data frames."""

import base64
import html
import io
import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import equinox as eqx
import numpy as np

from jaxcal.results.notes import LOST, REASONS
from jaxcal.results.parts import Coordinates, Means, Parts, Table, tells
from jaxcal.typing import Contents

ENDLESS = 10**6  # observations: with so many, only the number of draws limits a null


def count_verdicts(result: Any) -> str:
    """Return the number of results of a batch with each verdict, in words."""
    verdicts = np.asarray(result.verdict)
    shares = [
        f"{outcome} in {int(np.sum(verdicts == outcome))}"
        for outcome in ("rejected", "not rejected", "cannot tell")
    ]
    return f"at level {result.level:g}: {', '.join(shares)}"


def confidence(level: float) -> str:
    """Return the confidence 1 - ``level`` as a percentage, such as "95 %"."""
    return f"{100 * (1 - level):g} %"


def too_few(
    null: str, least_p_value: Callable[[int], float], n: int, level: float, tests: int = 1
) -> str:
    """Return a sentence if a test of n observations can never reject at ``level``; "" if it can.
    The sentence gives the reason. The level is divided by ``tests``, the number of tests that share
    it. ``null`` is the name of the null, ``least_p_value(n)`` its smallest p-value for n."""
    least, strictly = least_p_value(n), 1 - 1e-6 * (tests > 1)  # products are rounded in float32
    if tests * least <= level * strictly:
        return ""
    whose = f"{level:g}" + f" of {tests} tests together" * (tests > 1)
    if tests * least_p_value(ENDLESS) > level * strictly:
        advice = f", {math.ceil(tests / level / strictly) - 1} would do"
        advice *= not n or tests * 0.5 ** (n - 1) <= level  # with signs n may be too small as well
        return (
            f"too few draws for the level {whose}: the null {null} gives no p-value below "
            f"{least:.3g} with them{advice} [too-few-draws]"
        )
    return (
        f"too few observations for the level {whose}: with n = {n} the null {null} gives no "
        f"p-value below {least:.3g} (is the array transposed?) [too-few-observations]"
    )


def too_few_draws(result: Any, tests: int) -> str:
    """Return a sentence if null draws exist but are too few to reject at level / tests; else ""."""
    (draws,) = np.shape(getattr(result, "null_samples", ()))[-1:]
    least = 1 / (1 + draws) if draws else 0.0
    return too_few(getattr(result, "null", "of signs"), lambda _: least, 0, result.level, tests)


def in_words(result: Any) -> str:
    """Return the verdict on one result in words, or "cannot tell" and why."""
    at = f"at level {result.level:g}"
    match result.verdict:
        case "rejected":
            return f"rejected {at}: evidence against calibration"
        case "not rejected":
            return f"not rejected {at}: no evidence against calibration (which is not proof of it)"
    return f"cannot tell: {result.reason}"


def no_verdict(result: Any) -> list[tuple[str, Any]]:
    """Return pairs (reason for no verdict, whether it applies), in order of priority."""
    p = np.asarray(result.p_value)
    return [
        *reasons_of(result.notes | {"overflow": np.isnan(p)}, p.dtype),
        (result.too_few, bool(result.too_few)),
        (
            "the largest statistic under these predictions is more probable than the level (there "
            "are too few observations) [too-few-observations]",
            _undecidable(result),
        ),
    ]


def worth_saying(notes: Mapping[str, Any], n_reached: int, rejected: Any) -> dict[str, Any]:
    """Return a copy of the notes of a test, in which values that need no warning are 0. The limit
    for "far-targets" is 100 times ``n_reached``, the number of observations examined.
    "reversed-sign" and "skewed-moment" need a warning only if the test has ``rejected``."""
    said = dict(notes)
    # Cauchy targets exceed the limit 100 n in .3 % of data sets, for every n
    reach = np.asarray(said.get("far-targets", 0))
    said["far-targets"] = np.where(reach > 100 * n_reached, reach, 0)
    for code in {"reversed-sign", "skewed-moment"} & set(said):
        said[code] = said[code] & rejected
    return said


def reasons_of(notes: dict[str, Any], dtype: Any) -> list[tuple[str, Any]]:
    """Return pairs (reason for no verdict, whether it applies); some limits depend on ``dtype``."""
    digits = 0.01 / np.finfo(dtype).eps
    above = {"far-targets": digits, "coarse-logs": 0.25, "small-residuals": LOST}
    reasons = []
    for code, reason in REASONS.items():
        numbers = np.asarray(notes.get(code, 0))
        if code == "season":  # members of a batch may differ
            lags = np.unique(numbers[numbers > 0])
            reasons += [(reason.format(lag), numbers == lag) for lag in lags]
        else:
            reasons.append((reason, numbers > above.get(code, 0)))
    return reasons


def _undecidable(result: Any) -> Any:
    """Return whether p > level, and the share of null draws equal to their maximum is > level."""
    draws, p = np.asarray(result.null_samples), np.asarray(result.p_value)
    if draws.shape[-1] == 0 or result.parts is not None:
        return False
    with np.errstate(invalid="ignore", over="ignore"):  # non-finite draws do not count as ties
        size = np.sqrt(np.mean(draws**2, axis=-1, keepdims=True))
        near = np.max(draws, axis=-1, keepdims=True) - np.sqrt(np.finfo(draws.dtype).eps) * size
        return (np.mean(draws >= near, axis=-1) > result.level) & (p > result.level)


def report(result: Any) -> list[str]:
    """Return the lines of the report of one `TestResult`."""
    p = float(result.p_value)
    draws = result.null_samples.shape[-1]
    how = f"{result.null}, {draws} draws" if draws else result.null
    if result.p_value_error is not None:
        how += f", may be off by {float(result.p_value_error):.1g}"
    size = f"{float(result.estimate):.4g}   (squared; standard error "
    size += f"{float(result.standard_error):.2g} if not calibrated)"
    if result.parts is not None:
        size = f"{float(result.statistic):.4g}   (log of averaged evidence)"
    lines = [
        f"{result.test}, n = {result.contributions.shape[-1]}",
        f"  {'estimate' if result.parts is None else 'statistic':10} {size}",
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
        lines += _parts(result.parts)
    if result.table is not None:
        lines += strongest_cells(result.table, result.verdict, result.level)
    if result.coordinates is not None:
        lines += _coordinates(result.coordinates, result.level)
    return lines


def _error(result: Any) -> str:
    """Return the standard error of kernel means as text; "" if it is 0 or stated in ``route``."""
    error = float(result.notes.get("averages-error", 0))
    if "error" in result.route or not error > 0:
        return ""
    return f", standard error {error:.1g}"


def about_coordinates(mean: Means | None, spread: Means | None) -> list[str]:
    """Return a list with the reason why marginal shifts or spreads are missing; [] if none is."""
    if mean is None:
        return [
            "shifts of coordinates by themselves are not available, only given the others: they "
            "need the covariance of each prediction, from distributions of known form, or from "
            "scores at more base points than coordinates: raise n_nodes, or give Scores.at_nodes "
            "and Scores.nodes [shift-by-itself]"
        ]
    if not np.all(np.isfinite(np.asarray(mean.p_value))):
        return [
            "shifts of coordinates by themselves are not available: scores, at the targets or at "
            "the base points that the covariance of each prediction comes from, or moments that "
            "predictions offer are NaN or infinite [shift-by-itself]"
        ]
    if not tells(mean):
        return [
            "errors of coordinates by themselves are exact for Gaussian predictions; the scores of "
            "these are not linear, so no coordinate is named [exact-for-gaussians]"
        ]
    if spread is not None and not tells(spread):
        return [
            "spreads and correlations of coordinates by themselves are exact for Gaussian "
            "predictions, and these are others: only shifts are told, from the means that they "
            "offer [exact-for-gaussians]"
        ]
    return []


def _parts(parts: Parts) -> list[str]:
    evidence = np.asarray(parts.statistics)
    shares = np.exp(evidence - np.max(evidence))
    shares = shares / np.sum(shares)
    columns = zip(parts.names, shares, np.asarray(parts.p_values), strict=True)
    return [
        f"  {name:16}{share:5.0%} of the evidence, p = {p:.3g} by itself"
        for name, share, p in columns
    ]


def strongest_cells(table: Table, verdict: str, level: float) -> list[str]:
    """Return lines on the ten most significant cells of the table; [] unless rejected."""
    cells = table.sentences(level) if verdict == "rejected" else []
    more = [f"  .. and {len(cells) - 10} more in result.table"] if len(cells) > 10 else []
    head = f"  what is off, {confidence(level)} limits, p after Holm's correction:"
    return [head, *(f"    {line}" for line in cells[:10]), *more] if cells else []


def _coordinates(split: Coordinates, level: float) -> list[str]:
    """Return a table as lines: marginal and conditional errors of coordinates, then of pairs."""
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
    """Return lines on the ten most significant pairs; [] if correlations are not exact."""
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
    """Return an iterator over tuples (estimate, low, high, adjusted p-value), one per mean."""
    parts = (means.estimate, means.low, means.high, means.p_adjusted)
    return zip(*map(np.asarray, parts), strict=True)


def batch_report(result: Any) -> list[str]:
    """Return the lines of the report of a batch: counts of verdicts, ranges of p and estimate."""
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
    """Return a line on the detectable shift of each of the first five coordinates, if any."""
    clear = [f"{size:.2g} along {c}" for c, size in enumerate(smallest[:5]) if np.isfinite(size)]
    if not clear:
        return []
    return [f"  detectable shift (80 % power): {', '.join(clear)} (coordinate; units of the test)"]


def panels(result: Any, names: Sequence[str]) -> Any:
    """Return a matplotlib figure with one panel per name, a "module.function" of `jaxcal.plots`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8 * len(names), 3.2), layout="constrained")
    for name, ax in zip(names, np.ravel(figure.subplots(1, len(names))), strict=True):
        module, function = name.split(".")  # imported late: plots depend on results
        getattr(import_module(f"jaxcal.plots.{module}"), function)(result, ax=ax)
    return figure


def image(drawing: Any, *, dpi: int = 80, alt: str = "") -> str:
    """Return a matplotlib figure as an HTML ``img`` with embedded PNG."""
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=dpi)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #111; background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.verdict { border-left: .4rem solid #111; padding: .4rem 1rem; font-size: 1.15rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { padding: .2rem 1.2rem .2rem 0; text-align: left; border-bottom: 1px solid #ccc; }
pre { background: #f5f5f5; padding: .8rem; overflow-x: auto; font-size: .8rem; line-height: 1.35; }
img { max-width: 100%; } li { margin: .3rem 0; }
"""


def page(title: str, body: str) -> str:
    """Return a self-contained HTML page; ``title`` is text and ``body`` is HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width, initial-scale=1"><title>'
        f"{html.escape(title)}</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def shown(result: Any) -> str:
    """Return the HTML alt text of the figure of a result: the first lines of its report."""
    lines = [" ".join(line.split()) for line in repr(result).split("\n")[:4]]
    return f"Figure of {', '.join(lines)}"


def in_html(result: Any) -> str:
    """Return the report as HTML. One result outside of jit gets a figure, if one can be drawn."""
    text = f"<pre>{html.escape(repr(result))}</pre>"
    if result.traced or result.batch_shape:
        return text
    try:
        drawing = result.figure()
        return text if drawing is None else f"<div>{text}{image(drawing, alt=shown(result))}</div>"
    except Exception:  # without a figure the notebook still shows the numbers
        return text


def to_frame(result: Any, rows: Sequence[str]) -> Any:
    """Return a pandas data frame. For one result, columns are the fields named in ``rows``. For a
    batch, or if ``rows`` is empty, each result is one row, and its scalar fields are columns."""
    try:
        import pandas as pd  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError("to_frame needs pandas: pip install pandas") from None
    if rows and not result.batch_shape:
        return pd.DataFrame({name: np.asarray(getattr(result, name)) for name in rows})
    shape = result.batch_shape
    columns = {
        name: np.ravel(np.broadcast_to(np.asarray(value), shape))
        for name, value in _flat(result._contents())
        if np.shape(value) in ((), shape)
    }
    return pd.DataFrame(columns)


def _flat(content: Contents, before: str = "") -> list[tuple[str, Any]]:
    """Return pairs (name, value) without lists and tuples. Names of nested fields are joined by
    dots; ``before`` is put before each name."""
    pairs = []
    for name, value in content.items():
        value = value._asdict() if hasattr(value, "_asdict") else value
        if isinstance(value, eqx.Module):
            value = {inner: getattr(value, inner) for inner in value.__dataclass_fields__}
        if isinstance(value, dict):
            pairs += _flat(value, f"{before}{name}.")
        elif not isinstance(value, list | tuple):
            pairs.append((before + name, value))
    return pairs
