"""Share of data sets that each test rejects, a row a posterior and a column a method."""

import sys
from pathlib import Path

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import runner

FOLDER = Path(__file__).parent


def main(arguments=None) -> Path:
    argv = sys.argv[1:] if arguments is None else arguments
    path = Path(argv[0]) if argv else FOLDER / "results.csv"
    rows = runner.read(path)
    posteriors = list(dict.fromkeys(row["posterior"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure = Figure(figsize=(2.2 + 0.75 * len(methods), 1.6 + 0.42 * (len(posteriors) + 1)))
    ax = figure.subplots()
    for row in rows:
        i, j = posteriors.index(row["posterior"]), methods.index(row["method"])
        share = int(row["rejected_05"]) / int(row["data_sets"])
        few = "*" if int(row["data_sets"]) < 20 else ""
        figures.cell(ax, i, j, share, f"{share:.2f}{few}", "small")
    for j, method in enumerate(methods):
        result = [row for row in rows if row["method"] == method]
        chosen_rows = [row for row in result if "moons" not in row["posterior"]] or result
        seconds = sorted(float(row["cpu_seconds"]) for row in chosen_rows)
        middle = 1000 * seconds[len(seconds) // 2]
        text = f"{middle:.2g}" if middle < 100 else f"{middle:.0f}"
        figures.cell(ax, len(posteriors), j, None, text, "small")
    figures.as_table(ax, [*posteriors, "ms a data set, draws free"], methods, size="medium")
    ax.set_xlabel("share of data sets rejected at 5 % (* fewer than 20 data sets)")
    target = path.parent / "figure.png"
    figure.savefig(target, dpi=110, bbox_inches="tight")
    return target


if __name__ == "__main__":
    main()
