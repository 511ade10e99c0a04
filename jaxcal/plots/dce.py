"""How far from calibrated: a reliability diagram with the witness, and the bracket's bounds."""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxcal import checks
from jaxcal.dce.bracket import DistanceResult
from jaxcal.dce.report import SHOWN
from jaxcal.plots.canvas import BLACK, DARK, LIGHT, axes, legend_above, one, say
from jaxcal.results import confidence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 15


def reliability_with_witness(result: DistanceResult, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the rate of label 1 against the prediction, and below it the weight that sees the error.

    Dots are mean labels of groups of equal mass. The witness (grey band, on the right axis) is the
    weight whose mean product with (label - prediction) is the smooth calibration error: it falls
    from predictions that are too low to those that are too high, and stays on one side of 0 where
    all of them err to one side.

    Args:
        result: Result of `jaxcal.distance_from_calibration`.
        ax: Axes to draw on; new ones by default.

    Returns:
        The axes.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> predictions = jnp.linspace(0.1, 0.9, 50)
        >>> targets = jax.random.bernoulli(jax.random.key(0), predictions)
        >>> result = jaxcal.distance_from_calibration(1, predictions, targets)
        >>> axes = jaxcal.plots.reliability_with_witness(result)
    """
    ax = _one(result, ax, (5.2, 5.0))
    ax.set(xlabel="predicted probability of label 1", ylabel="rate of label 1")
    v, y, w, witness = (
        np.asarray(a) for a in (result.predictions, result.targets, result.weights, result.witness)
    )
    if not np.all(np.isfinite(v)):
        return say(ax, "predictions are not probabilities:\nno verdict")
    order = np.argsort(v, kind="stable")
    v, y, w, witness = v[order], y[order], w[order], witness[order]
    # neighbours are joined at slope 1 towards the middle, as a Lipschitz weight may
    ax.fill_between(
        v,
        0.5,
        0.5 + witness / 2,
        color="0.9",
        linewidth=0,
        label="witness (right axis)",
    )
    ax.plot([0, 1], [0, 1], color=DARK, linewidth=0.8, linestyle="--", label="calibrated")
    mean, rate, mass = groups(v, y, w, BINS)
    error = 2 * np.sqrt(np.maximum(mean * (1 - mean), 1e-12) * mass**-1 * np.sum(w**2))
    low, high = np.clip(mean - error, 0, 1), np.clip(mean + error, 0, 1)
    ax.vlines(mean, low, high, color=LIGHT, linewidth=2, label="2 s.d. if calibrated")
    ax.plot(mean, rate, "o", color=BLACK, markersize=5, label="rate of a group")
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    right = ax.secondary_yaxis("right", functions=(_to_weight, _from_weight))
    right.set_ylabel("witness: weight of (label - prediction)", color=DARK)
    right.spines["right"].set_color(LIGHT)
    legend_above(ax)
    legend = ax.get_legend()
    assert legend is not None
    legend.set_ncols(2)
    return ax


def reliability_of_classes(result: DistanceResult, *, columns: int = 4) -> "Figure":
    """Draw `reliability_with_witness` of each class, with its population interval and p-value.

    Args:
        result: A batch, as of `jaxcal.distance_from_calibration` with ``notion="class-wise"``.
        columns: Panels in a row.

    Returns:
        The figure; at most 20 classes, those of the least adjusted p-values.

    Raises:
        ValueError: The result is no batch of one axis.
        TypeError: It is no `jaxcal.dce.DistanceResult`.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> probabilities = jax.random.dirichlet(jax.random.key(0), jnp.ones(3), (90,))
        >>> targets = jax.random.categorical(jax.random.key(1), jnp.log(probabilities))
        >>> result = jaxcal.distance_from_calibration(
        ...     2, probabilities, targets, notion="class-wise"
        ... )
        >>> len(jaxcal.plots.reliability_of_classes(result).axes)
        3
    """
    from matplotlib.figure import Figure

    columns = checks.integer(columns, "columns")
    if not isinstance(result, DistanceResult):
        raise TypeError(f"result: wanted a DistanceResult, got {checks.say(result)}")
    if np.ndim(result.p_value) != 1:
        raise ValueError("result: wanted a batch of one axis, such as notion='class-wise' makes")
    p = np.asarray(result.p_adjusted)
    shown = np.sort(np.argsort(p, kind="stable")[:SHOWN])
    columns = min(columns, shown.size)
    rows = -(-shown.size // columns)
    figure = Figure(figsize=(2.6 * columns, 2.9 * rows), layout="constrained")
    for panel, k in enumerate(shown):
        ax = figure.add_subplot(rows, columns, panel + 1)
        member = jax.tree.map(lambda leaf, k=k: leaf[k], result)
        reliability_with_witness(member, ax=ax)
        legend = ax.get_legend()
        if legend is not None:
            legend.remove()
        for side in ax.child_axes:
            side.set_ylabel("")
        interval = member.interval
        ax.set_title(
            f"class {k}: {float(interval.low):.3f} to {float(interval.high):.3f}\n"
            f"adjusted p = {p[k]:.3g}",
            fontsize="small",
        )
        ax.set(xlabel="", ylabel="")
    figure.supxlabel("predicted probability of the class", fontsize="medium")
    figure.supylabel("rate of the class", fontsize="medium")
    return figure


def _to_weight(t: Any) -> Any:
    return 2 * t - 1


def _from_weight(t: Any) -> Any:
    return (t + 1) / 2


def groups(
    v: np.ndarray, y: np.ndarray, w: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorted predictions in groups of about equal mass, ties kept together: mean prediction, mean
    label and mass of each."""
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
    """Draw the bounds of the true distance from below and from above, and what they leave.

    Args:
        result: Result of `jaxcal.distance_from_calibration`.
        ax: Axes to draw on; new ones by default.

    Returns:
        The axes.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> predictions = jnp.linspace(0.1, 0.9, 50)
        >>> targets = jax.random.bernoulli(jax.random.key(0), predictions)
        >>> result = jaxcal.distance_from_calibration(1, predictions, targets)
        >>> axes = jaxcal.plots.bracket(result)
    """
    ax = _one(result, ax, (6.8, 3.6))
    ax.set(xlabel="true distance from calibration (mean change of probability)")
    bounds = result.bracket
    if not np.isfinite(float(bounds.low)):
        return say(ax, "predictions are not probabilities:\nno verdict")
    below = sorted(((float(x), name) for name, x in bounds.lower.items()))
    above = sorted(((float(x), name) for name, x in bounds.upper.items()))
    rows = [
        ("population", None),
        *[(n, x) for x, n in above[::-1]],
        *[(n, x) for x, n in below[::-1]],
    ]
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
    high = [(k, x) for k, (_, x) in enumerate(rows) if 0 < k <= len(above)]
    low = [(k, x) for k, (_, x) in enumerate(rows) if k > len(above)]
    ax.plot([x for _, x in high], [k for k, _ in high], "<", color=DARK, label="at most")
    ax.plot([x for _, x in low], [k for k, _ in low], ">", color=BLACK, label="at least")
    ax.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize="small")
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(left=-0.005)
    legend_above(ax)
    legend = ax.get_legend()
    assert legend is not None
    legend.set_ncols(4)
    return ax


def _one(result: DistanceResult, ax: "Axes | None", size: tuple[float, float]) -> "Axes":
    one(result, "p_value")
    return axes(ax, size)
