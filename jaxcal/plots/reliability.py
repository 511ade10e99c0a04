"""Draw calibration curves (reliability, coverage, witness function), and error bounds."""

import numpy as np

from jaxcal.coverage import Coverage
from jaxcal.dce.distance import DistanceResult
from jaxcal.measures.classes import Reliability
from jaxcal.measures.quantiles import QuantileCalibration
from jaxcal.plots.canvas import BLACK, DARK, LIGHT, axes, axes_of, legend_above, one, say
from jaxcal.read import convert
from jaxcal.results import confidence
from jaxcal.typing import Axes

BINS = 15  # groups of observations drawn together with the witness


def reliability(
    result: Reliability, *, counts: bool = True, label: str = "confidence", ax: "Axes | None" = None
) -> "Axes":
    """Draw the observed frequency against the mean confidence of each non-empty bin.

    Error bars are 95 % Wilson intervals.

    Args:
        result: Result of `jaxcal.measures.reliability`.
        counts: Whether to draw the number of observations of each bin as a grey column. The
            highest column fills a fifth of the height of the axes.
        label: Label of the confidence axis.
        ax: Axes to draw on; new ones by default.

    Returns:
        The axes, with both scales from 0 to 1, on which other curves can be drawn.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> confidence, correct = jnp.linspace(0, 1, 100), jnp.arange(100) % 2 == 0
        >>> result = jaxcal.measures.reliability(confidence, correct)
        >>> axes = jaxcal.plots.reliability(result)
    """
    one(result, "ece")
    counts = convert.flag(counts, "counts")
    ax = axes(ax, (4.6, 4.6))
    ax.set(xlabel=label, ylabel="share that came true", xlim=(0, 1), ylim=(0, 1.01), aspect="equal")
    used = np.asarray(result.filled)
    count, edges = np.asarray(result.count), np.asarray(result.edges)
    if counts and used.any():
        ax.bar(
            edges[:-1],
            0.2 * count / count.max(),
            np.diff(edges),
            align="edge",
            color=LIGHT,
            edgecolor="white",
            linewidth=0.5,
            zorder=0,
            label=f"observations (at most {count.max()})",
        )
    ax.plot([0, 1], [0, 1], color=DARK, linestyle="--", zorder=1, label="calibrated")
    x, y, low, high = (
        np.asarray(values)[used]
        for values in (result.confidence, result.accuracy, result.low, result.high)
    )
    ends = np.clip(np.stack([y - low, high - y]), 0, None)  # rounding may leave -1e-17
    ax.errorbar(
        x,
        y,
        ends,
        fmt="o-",
        color=BLACK,
        ecolor=DARK,
        markersize=4,
        linewidth=1.2,
        elinewidth=1,
        capsize=2,
        zorder=2,
        label="observed",
    )
    ax.annotate(f"ECE {float(result.ece):.3f}", (0.03, 0.95), xycoords="axes fraction", va="top")
    legend_above(ax)
    return ax


def with_witness(result: DistanceResult, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the rate of label 1 against the prediction, and the witness of `jaxcal.dce.smooth_ce`.

    Dots are mean labels of groups of about equal total weight. The witness (grey band, right axis)
    is the 1-Lipschitz function with the largest mean product with (label - prediction): positive
    where predictions are too low and negative where they are too high.
    """
    ax = axes_of(result, ax, (5.2, 5.0))
    ax.set(xlabel="predicted probability of label 1", ylabel="rate of label 1")
    v, y, w, witness = (
        np.asarray(a) for a in (result.predictions, result.targets, result.weights, result.witness)
    )
    if not np.all(np.isfinite(v)):
        return say(ax, "predictions are not probabilities:\nno verdict")
    order = np.argsort(v, kind="stable")
    v, y, w, witness = v[order], y[order], w[order], witness[order]
    # between neighbours the weight moves towards the middle with slope 1, as Lipschitz allows
    band = {"color": "0.9", "linewidth": 0, "label": "witness (right axis)"}
    ax.fill_between(v, 0.5, 0.5 + witness / 2, **band)
    ax.plot([0, 1], [0, 1], color=DARK, linewidth=0.8, linestyle="--", label="calibrated")
    mean, rate, mass = groups(v, y, w, BINS)
    per_mass = mass * float(result.effective)
    error = 2 * np.sqrt(np.maximum(mean * (1 - mean), 1e-12) / per_mass)
    low, high = np.clip(mean - error, 0, 1), np.clip(mean + error, 0, 1)
    ax.vlines(mean, low, high, color=LIGHT, linewidth=2, label="2 s.d. if calibrated")
    ax.plot(mean, rate, "o", color=BLACK, markersize=5, label="rate of a group")
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    right = ax.secondary_yaxis(
        "right", functions=(lambda t: 2 * np.asarray(t) - 1, lambda t: (np.asarray(t) + 1) / 2)
    )
    right.set_ylabel("witness: weight of (label - prediction)", color=DARK)
    right.spines["right"].set_color(LIGHT)
    legend_above(ax, columns=2)
    return ax


def groups(
    v: np.ndarray, y: np.ndarray, w: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean prediction, mean label and total weight of at most ``count`` groups of about
    equal weight. v: sorted predictions, equal ones in one group; y: labels; w: weights, sum 1."""
    before = np.cumsum(w) - w / 2
    group = np.minimum((before * count).astype(int), count - 1)
    first = np.concatenate([[True], v[1:] != v[:-1]])
    group = group[np.maximum.accumulate(np.where(first, np.arange(v.size), 0))]
    _, group = np.unique(group, return_inverse=True)
    mass = np.bincount(group, w)
    occupied = mass > 0
    mean, rate = (np.bincount(group, w * x)[occupied] / mass[occupied] for x in (v, y))
    return mean, rate, mass[occupied]


def bracket(result: DistanceResult, *, ax: "Axes | None" = None) -> "Axes":
    """Draw bounds of the distance from calibration, and its confidence interval."""
    ax = axes_of(result, ax, (6.8, 3.6))
    ax.set(xlabel="true distance from calibration (mean change of probability)")
    bounds = result.bracket
    if not np.isfinite(float(bounds.low)):
        return say(ax, "predictions are not probabilities:\nno verdict")
    below, above = (
        sorted(((float(x), name) for name, x in side.items()), reverse=True)
        for side in (bounds.lower, bounds.upper)
    )
    ax.axvspan(float(bounds.low), float(bounds.high), color="0.9", label="these data")
    interval = result.interval
    ax.plot(
        [float(interval.low), float(interval.high)],
        [0, 0],
        color=BLACK,
        linewidth=3,
        solid_capstyle="butt",
        label=f"population, {confidence(result.level)}",
    )
    middle, count = 1 + len(above), 1 + len(above) + len(below)
    ax.plot([x for x, _ in above], range(1, middle), "<", color=DARK, label="at most")
    ax.plot([x for x, _ in below], range(middle, count), ">", color=BLACK, label="at least")
    names = ["population", *(name for _, name in above + below)]
    ax.set_yticks(range(count), names, fontsize="small")
    ax.set_ylim(count - 0.5, -0.5)
    ax.set_xlim(left=-0.005)
    legend_above(ax, columns=4)
    return ax


def coverage(result: Coverage | QuantileCalibration, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the share of targets inside regions, or below quantiles, against the nominal level.

    For highest-density regions the band is pointwise: at each level it contains the share of a
    calibrated model with probability 1 - ``result.level``. Regions are too small (overconfident) if
    the curve is below the diagonal, too large (conservative) if it is above. For quantiles the band
    contains the whole curve of a calibrated model with probability >= 1 - ``result.level``. A curve
    that leaves the band has p-value < ``result.level``. With m draws, levels are k / (m + 1).
    """
    if isinstance(result, QuantileCalibration):
        one(result, "p_value")
        at, observed = _below_quantiles(result)
        half = np.sqrt(np.log(2 / result.level) / (2 * np.size(result.pit)))  # where p is the level
        low, high = at - half, at + half
        labels = "level of predicted quantile", "share of targets below"
        p_values = f"p = {float(result.p_value):.2g}"
        style = "default" if result.draws else "steps-post"
    else:
        one(result, "p_uniform")
        at, observed, low, high = (
            np.concatenate([[0.0], np.asarray(part), [1.0]])
            for part in (result.levels, result.observed, *result.band())
        )
        labels = "level of highest-density region", "share of targets inside"
        p, least = float(result.p_uniform), float(result.p_conservative)
        p_values = f"p = {p:.2g} (exact share)\np = {least:.2g} (at least)"
        style = "default"
    ax = axes(ax, (4.6, 4.6))
    ax.set(xlabel=labels[0], ylabel=labels[1], xlim=(0, 1), ylim=(0, 1), aspect="equal")
    if not np.all(np.isfinite(observed)):
        return say(ax, "ranks of targets are not numbers:\nno verdict")
    label = f"{confidence(result.level)} band"
    ax.fill_between(at, low, high, color=LIGHT, linewidth=0, label=label)
    ax.plot([0, 1], [0, 1], color=DARK, linestyle="--", label="calibrated")
    ax.plot(at, observed, color=BLACK, linewidth=1.6, label="observed", drawstyle=style)
    x, y, ha, va = 0.97, 0.03, "right", "bottom"
    if np.mean(observed - at) < 0:  # the corner without the curve
        x, y, ha, va = 0.03, 0.97, "left", "top"
    ax.text(x, y, p_values, ha=ha, va=va, fontsize="small", transform=ax.transAxes)
    legend_above(ax)
    return ax


def _below_quantiles(result: QuantileCalibration) -> tuple[np.ndarray, np.ndarray]:
    """Return levels of quantiles, from 0 to 1, and the shares of targets below; NaN if unknown."""
    pit, m = np.sort(np.asarray(result.pit)), result.draws
    if m:
        at = np.arange(m + 2) / (m + 1)
        share = np.searchsorted(pit, at, side="right") / pit.size
        return at, np.where(np.isfinite(pit).all(), share, np.nan)
    share = np.where(np.isfinite(pit), np.arange(1, pit.size + 1) / pit.size, np.nan)
    return np.concatenate([[0.0], pit, [1.0]]), np.concatenate([[0.0], share, [1.0]])
