"""False rejection rates over the number of MCMC steps, from the results of ``run.py``."""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import runner

FOLDER = Path(__file__).parent
LEVEL = 0.05
BLACK, GREY, BLUE = ({"color": color} for color in ("black", "0.5", "tab:blue"))
LINES = {  # sampler, step, start -> label, style
    ("MALA", "0.1", "normal"): ("MALA, step 0.1", BLACK | {"linestyle": "-", "marker": "o"}),
    ("MALA", "0.3", "normal"): ("MALA, step 0.3", BLACK | {"linestyle": "--", "marker": "s"}),
    ("MALA", "adapted", "normal"): ("MALA, adapted", GREY | {"linestyle": "-", "marker": "^"}),
    ("HMC", "adapted", "normal"): ("HMC, adapted", GREY | {"linestyle": "--", "marker": "v"}),
    ("NUTS", "adapted", "normal"): ("NUTS, adapted", GREY | {"linestyle": ":", "marker": "D"}),
    ("MALA", "0.1", "target"): ("0.1, from the target", BLUE | {"linestyle": "-", "marker": "o"}),
    ("MALA", "0.3", "target"): ("0.3, from the target", BLUE | {"linestyle": "--", "marker": "s"}),
    ("MALA", "random", "target"): ("exchangeability test", BLUE | {"linestyle": "", "marker": "*"}),
}
FLAT = {"KCCSD": ("KCCSD, no steps", "-."), "SKCE": ("SKCE in closed form", ":")}


def report(rows: Sequence[dict[str, str]]) -> None:
    """The table of the README."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    names = ("test", "sampler", "step", "start")
    kinds = list(dict.fromkeys(tuple(row[name] for name in names) for row in rows))
    for model in models:
        print(
            f"\n{model}: share of calibrated data sets rejected at .05 (in brackets: by the check)"
        )
        for kind in kinds:
            chosen = [
                row
                for row in rows
                if (row["model"], *(row[name] for name in names)) == (model, *kind)
            ]
            if not chosen:
                continue
            said = [
                f"{row['steps']}: {rate(row):.3f}"
                + ("" if row["check_05"] == "nan" else f" ({rate(row, 'check_05'):.3f})")
                for row in chosen
            ]
            print(" ".join(kind), "|", ", ".join(said))
    print("NaN p-values:", sum(int(row["not_a_number"]) for row in rows))


def rate(row: dict[str, str], column: str = "rejected_05") -> float:
    return int(row[column]) / int(row["data_sets"])


def main(arguments: Sequence[str] | None = None) -> Path:
    source = Path(arguments[0]) if arguments else FOLDER / "results.csv"
    rows = runner.read(source)
    report(rows)
    models = list(dict.fromkeys(row["model"] for row in rows))
    trials = int(rows[0]["data_sets"])
    figure, panels = plt.subplots(
        1, len(models), figsize=(2.9 * len(models) + 0.8, 3.1), sharey=True, squeeze=False
    )
    for axes, model in zip(panels[0], models, strict=True):
        figures.shade(axes, LEVEL, trials, 0.99)
        mine = [row for row in rows if row["model"] == model]
        for line_of, (label, style) in LINES.items():
            line = [row for row in mine if (row["sampler"], row["step"], row["start"]) == line_of]
            if line:
                axes.plot(
                    [int(row["steps"]) for row in line],
                    [rate(row) for row in line],
                    label=label,
                    markersize=3.5,
                    linewidth=1.1,
                    **style,
                )
        for test, (label, style) in FLAT.items():
            for row in mine:
                if row["test"] == test:
                    axes.axhline(rate(row), color="0.2", linestyle=style, linewidth=1, label=label)
        axes.set_xscale("log")
        axes.set_title(f"{model}, n = {mine[0]['n']}", fontsize=10)
        axes.set_xlabel("MCMC steps")
        axes.set_ylim(-0.02, 1.03)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("calibrated data sets rejected at .05")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.tight_layout()
    figure.legend(
        handles,
        labels,
        frameon=False,
        fontsize=8,
        ncols=4,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
    )
    path = source.with_name("figure.png")
    figures.save(figure, path)
    return path


if __name__ == "__main__":
    main(sys.argv[1:])
