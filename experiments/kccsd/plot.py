"""Figure 1 and Figures F.1-F.12: rejection rates over n, ours filled and published ones hollow.

``plot.py [results.csv] [published_curves.csv]``.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import scipy.stats

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import figures
import published
import runner

FOLDER = Path(__file__).parent
STYLES = {"GFD": ("o", "-"), "KGFD": ("s", "--"), "MMD": ("^", "-."), "W2": ("D", ":")}
LEVEL = 0.05


def interval(count: int, trials: int) -> tuple[float, float]:
    """Clopper and Pearson's 95 % interval of a rate."""
    limits = scipy.stats.binomtest(count, trials).proportion_ci(0.95)
    return limits.low, limits.high


def panel(axes, rows, readings, slot: int) -> None:
    """One series over n with its binomial intervals, moved sideways so that series stay apart."""
    marker, line = STYLES[rows[0]["divergence"]]
    preconditioned = rows[0]["test"].startswith("preconditioned")
    color = "0.55" if preconditioned else "black"
    shift = 2 ** (0.09 * (slot - 1.5))
    n = [int(row["n"]) * shift for row in rows]
    rates = [int(row["rejected_05"]) / int(row["data_sets"]) for row in rows]
    ends = [interval(int(row["rejected_05"]), int(row["data_sets"])) for row in rows]
    low = [rate - end[0] for rate, end in zip(rates, ends, strict=True)]
    high = [end[1] - rate for rate, end in zip(rates, ends, strict=True)]
    label = "preconditioned GFD" if preconditioned else rows[0]["divergence"]
    axes.errorbar(
        n,
        rates,
        yerr=[low, high],
        fmt=marker + line,
        color=color,
        markersize=3.5,
        linewidth=0.9,
        elinewidth=0.6,
        label=label,
    )
    names = [
        (*(row[c] for c in ("model", "test", "divergence", "target", "exactness")), int(row["n"]))
        for row in rows
    ]
    points = [(x, readings[name]) for x, name in zip(n, names, strict=True) if name in readings]
    if points:
        axes.plot(*zip(*points, strict=True), marker, mfc="none", mec="0.45", markersize=7)


def draw(rows, readings, exactness: str, target: str, path: Path) -> Path:
    """Models down, tests across, for one target kernel and one way of computing expectations."""
    models = list(dict.fromkeys(row["model"] for row in rows))

    def drawn(row) -> bool:
        same = row["exactness"] == exactness or row["test"].startswith("preconditioned")
        return row["target"] == target and same

    rows = [row for row in rows if drawn(row)]
    tests = [test for test in ("KCCSD", "SKCE") if any(test in row["test"] for row in rows)]
    trials = int(rows[0]["data_sets"])
    figure, grid = plt.subplots(
        len(tests),
        len(models),
        figsize=(2.35 * len(models) + 0.6, 1.9 * len(tests) + 0.8),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for down, test in enumerate(tests):
        for across, model in enumerate(models):
            axes = grid[down, across]
            figures.shade(axes, LEVEL, trials, 0.95)
            chosen = [row for row in rows if row["model"] == model and test in row["test"]]
            lines = dict.fromkeys((row["test"], row["divergence"]) for row in chosen)
            for slot, series in enumerate(lines):
                line = [row for row in chosen if (row["test"], row["divergence"]) == series]
                panel(axes, line, readings, slot)
            axes.set_xscale("log", base=2)
            axes.set_ylim(-0.03, 1.03)
            if down == 0:
                axes.set_title(model, fontsize=10)
            if down == len(tests) - 1:
                axes.set_xlabel("n")
        grid[down, 0].set_ylabel(f"{test}: rejection rate")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    for divergence, (marker, _) in STYLES.items():
        if any((divergence, target, exactness) == name[2:5] for name in readings):
            handles += grid[0, 0].plot([], [], marker, mfc="none", mec="0.45", markersize=7)
            labels.append(f"{divergence}, published")
    title = (
        None if "SKCE" in tests else "SKCE is left out: the paper has no closed form for it here"
    )
    figure.legend(
        handles,
        labels,
        ncols=len(handles),
        frameon=False,
        loc="lower center",
        fontsize=9,
        title=title,
        title_fontsize=9,
    )
    figure.tight_layout(rect=(0, 0.06 if title is None else 0.18, 1, 1))
    figures.save(figure, path)
    return path


def main(arguments: Sequence[str] | None = None) -> Path:
    """One figure for every target kernel and exactness; the first is Figure 1 of the paper."""
    argv = [Path(a) for a in (sys.argv[1:] if arguments is None else arguments)]
    source = argv[0] if argv else FOLDER / "results.csv"
    rows = runner.read(source)
    readings = published.readings(argv[1]) if len(argv) > 1 else {}
    first = None
    for exactness in ("exact", "approx"):
        for target in ("Gaussian", "IMQ"):
            path = source.with_name(f"figure_{exactness}_{target}.png")
            first = first or draw(rows, readings, exactness, target, path)
            if first != path:
                draw(rows, readings, exactness, target, path)
    assert first is not None
    return first


if __name__ == "__main__":
    main()
