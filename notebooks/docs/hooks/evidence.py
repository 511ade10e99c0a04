"""The tables of evidence, from the committed results of the studies.

    python notebooks/docs/hooks/evidence.py     # write them into the pages again

A page holds a table between ``<!-- NAME -->`` and ``<!-- /NAME -->``; a test compares it.
"""

import csv
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = Path(__file__).resolve().parents[1]
PLACE = re.compile(r"( *)<!-- (\w+) -->\n.*?<!-- /\2 -->", re.DOTALL)
Rows = list[dict[str, str]]


def read(path: str) -> Rows:
    """Rows of a committed CSV file of a study."""
    with (ROOT / "experiments" / path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def share(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def rates(rows: Rows, column: str) -> list[float]:
    """Counts of rejections as shares of the data sets."""
    return [float(row[column]) / float(row["data_sets"]) for row in rows]


def span(values: Sequence[float]) -> str:
    low, high = share(min(values)), share(max(values))
    return low if low == high else f"{low} to {high}"


def level() -> str:
    """Rejections of calibrated models at .05, by test and null."""
    cells = read("level/results.csv")
    rows = []
    for null in ("Wild", "DependentWild", "BlockNormal"):
        chosen = rates([row for row in cells if row["null"] == null], "rejected_05")
        rows.append((f"KCCSD, KCSD, KSD; `{null}`", "level", chosen, 1000))
    signs = [row for row in read("signs/results.csv") if row["fault"] == "correct"]
    full = rates([row for row in signs if row["data_sets"] == "1000"], "hadamard_05")
    rows.append(("`kccsd_test`; `HadamardWild`", "signs", full, 1000))
    for test, what in (("calibration", "n = 30 to 200"), ("calibration, draws", "99 draws alone")):
        power = rates(
            [row for row in read("power/level.csv") if row["test"] == test], "rejected_05"
        )
        rows.append((f"`calibration_test`, {what}", "power", power, 1000))
    several = rates(read("level/calibration/results.csv"), "rejected_05")
    rows.append(("`calibration_test`; three nulls of signs", "level", several, 1000))
    candidates = [row for row in read("exchangeability/results.csv") if row["fault"] == "correct"]
    chosen = rates(candidates, "combined")
    rows.append(("`candidates.exchangeability_test`", "exchangeability", chosen, 1000))
    series, seasons = [], []
    for row in read("dependence/results.csv"):
        told = "season" in row["errors"]
        (seasons if told else series).append(row["rejected_not_told" if told else "dependent_wild"])
    for what, values in (("of correlation 0 to .9", series), ("with seasons, none told", seasons)):
        name, values = f"`DependentWild`, series {what}", list(map(float, values))
        rows.append((name, "dependence", values, "100 to 400"))
    linear = [row for row in read("linear/results.csv") if row["what"] == "level"]
    chosen = rates([row for row in linear if row["features"] != "0"], "rejected_05")
    rows.append(("linear time, 20 to 300 features", "linear", chosen, 1000))
    right = [row for row in read("sbi_verdicts/results.csv") if row["fault"] == "right"]
    verdicts, sets = rates(right, "rejected"), right[0]["data_sets"]
    rows.append(("`sbi.check_posterior`, its verdict", "sbi_verdicts", verdicts, sets))
    head = ("test", "cells", "data sets a cell", "rejected at .05", "study")
    return table(
        head,
        (
            (what, len(values), data_sets, span(values), f"`experiments/{study}`")
            for what, study, values, data_sets in rows
        ),
    )


METHODS = {  # of the power study, by their column
    "calibration": "`calibration_test`",
    "KCCSD": "`kccsd_test`",
    "SKCE": "`skce_test`",
    "coverage": "coverage",
    "SBC": "SBC",
    "best possible": "best possible",
}
GAUSSIAN = ("widths", "narrow", "hgm")  # families for which SKCE has a closed form
FAMILIES = {"modes": "two modes", "widths": "Gaussian", "student": "Student t"}


def power() -> str:
    """How often faults are found, for three families."""
    rows = [row for row in read("power/results.csv") if row["family"] in FAMILIES]
    return table(
        ("predictions", "fault", *METHODS.values()),
        (
            (
                FAMILIES[row["family"]],
                row["fault"],
                *(
                    ""
                    if name == "SKCE" and row["family"] not in GAUSSIAN
                    else f"{float(row[name]) / float(row['data_sets']):.2f}".removeprefix("0")
                    for name in METHODS
                ),
            )
            for row in rows
            if row["fault"] != "correct"
        ),
    )


def near_best() -> tuple[int, int]:
    """In how many cells of the power study `calibration_test` is near the best of coverage,
    SBC and TARP, within .05, and of how many."""
    rows = [row for row in read("power/results.csv") if row["fault"] != "correct"]
    gaps = [
        (max(int(row[name]) for name in ("coverage", "SBC", "TARP")) - int(row["calibration"]))
        / int(row["data_sets"])
        for row in rows
    ]
    return sum(gap <= 0.05 for gap in gaps), len(gaps)


def intervals() -> str:
    """Shares of 95 % intervals that hold the truth."""

    def column(path: str, name: str, keep: Callable[[dict[str, str]], bool] = bool) -> list[float]:
        values = [float(row[name]) for row in read(path) if keep(row)]
        return [value for value in values if value == value]

    right = {"keep": lambda row: row["fault"] == "none" and row["family"] == "gaussian"}
    heavy = {"keep": lambda row: row["fault"] == "none" and row["family"] == "student"}
    by_probability = {"keep": lambda row: row["measure"] == "probability"}
    jumps = ("three steps", "jumps of .4", "six waves")
    smooth = {"keep": lambda row: row["population"] not in jumps}
    steps = {"keep": lambda row: row["population"] in jumps}
    rows = (
        ("all differences of `compare`", "compare", "all_differences_covered", by_probability),
        ("error of one model, `compare`", "compare", "value_covered", by_probability),
        ("calibration error, every row", "squared_ce_intervals", "covered", smooth),
        ("calibration error, steps and six waves", "squared_ce_intervals", "covered", steps),
        ("distance from calibration", "distance_intervals", "coverage", {}),
        ("shift of a coordinate, Gaussian", "faults", "mean_covered", right),
        ("spread of a coordinate, Gaussian", "faults", "spread_covered", right),
        ("correlation of a pair, Gaussian", "faults", "correlation_covered", right),
        ("correlation of a pair, Student t", "faults", "correlation_covered", heavy),
    )
    shown = [(what, study, column(f"{study}/results.csv", c, **k)) for what, study, c, k in rows]
    return table(
        ("95 % interval of", "cells", "holds the truth in", "study"),
        ((what, len(v), span(v), f"`experiments/{study}`") for what, study, v in shown),
    )


def cifar() -> str:
    """SKCE of seven networks on CIFAR-10."""
    rows = sorted(read("cifar10_skce/results.csv"), key=lambda row: float(row["unbiased"]))
    return table(
        ("network", "unbiased SKCE times 10⁴", "p-value", "relative difference from published"),
        (
            (
                row["network"],
                f"{1e4 * float(row['unbiased']):.2f}",
                row["p_value"],
                row["relative_difference"],
            )
            for row in rows
        ),
    )


def examples() -> str:
    """Known values of distances from calibration."""
    rows = [row for row in read("distance/results.csv") if row["part"] == "example"]
    met = sum(abs(float(row["value"]) - float(row["reference"])) < 1e-6 for row in rows)
    return table(("closed forms of distances", "met to six digits"), [(len(rows), met)])


def benchmarks() -> str:
    """What was measured of speed and size: medians, with the range of several runs."""
    rows = [row for row in read("benchmarks/results.csv") if row["part"] != "idle process"]

    def spread(row: dict[str, str]) -> str:
        return "" if row["runs"] == "1" else f"{row['low']} to {row['high']}"

    return table(
        ("part", "quantity", "median", "range", "runs"),
        ((r["part"], r["quantity"], r["value"], spread(r), r["runs"]) for r in rows),
    )


NODES, DIMENSION = 10, 5  # m; d
DRAWS, FEATURES, MOMENTS = 500, 60, 500  # b; f; d R of the cost model
# multiplications and bytes a second that are reached; of the GPU .10 of its product's, as measured
LAPTOP, GPU, NETWORK = 0.6 * 0.1e12, 0.10 * 25e12, 10e9
TILE = 512
PRICE = "multiplications an entry"


def measured(part: str) -> dict[str, float]:
    """The quantities of a part of the benchmarks."""
    rows = read("benchmarks/results.csv")
    return {row["quantity"]: float(row["value"]) for row in rows if row["part"] == part}


def seconds(
    n: float,
    devices: int = 1,
    rate: float = GPU,
    memory: float = math.inf,
    *,
    linear: bool = False,
) -> float:
    """The cost model: the slowest of arithmetic, memory and network."""
    price = measured("cost model")[PRICE]
    work = n * MOMENTS**2 / 2 if linear else n**2 * (DRAWS + price) / 2
    # features twice, or those and the signs of two sides of each tile
    moved = 8 * n * FEATURES if linear else 4 * n**2 * (FEATURES + DRAWS) / TILE
    sent = 0 if devices == 1 else 4 * (MOMENTS**2 if linear else n * FEATURES)
    return max(work / (rate * devices), moved / (memory * devices), sent / NETWORK)


def foretold() -> str:
    """What the cost model says of the sizes that were measured, on the machine that did."""
    numbers = measured("cost model")
    machine = numbers["multiplications a second, product"], numbers["bytes a second, memory"]
    rows = []
    for quantity, value in numbers.items():
        if not quantity.startswith("seconds, "):
            continue
        what = quantity.removeprefix("seconds, ")
        n = int(what.rpartition(" ")[2])
        said = seconds(n, 1, *machine, linear=what.startswith("linear"))
        rows.append((what, duration(said), duration(value), f"{value / said:.2f}"))
    inputs = f"{machine[0] / 1e9:.3g}, {machine[1] / 1e9:.2g}, {numbers[PRICE]:.3g}"
    rows.append(("10⁹ multiplications and bytes a second; e", "", inputs, ""))
    return table(("one p-value", "model", "measured", "measured / model"), rows)


def ingredients() -> str:
    """What a small data set costs, in units of the product of its tile."""
    numbers = measured("ingredients of n = 256 on one core")
    whole, without_medians = numbers["whole, Wild"], numbers["bandwidths given, Wild"]
    few, entries = numbers["bandwidths given, Wild of 7 draws"], numbers["entries of H alone"]
    exponential, addition = (
        numbers[f"multiplications {what}"] for what in ("an exponential", "an addition")
    )
    # an entry of H: m d multiplications and two exponentials without loading and storing; a pair in
    # two searches: at least six passes of three comparisons and additions, and the same m d
    least = (NODES * DIMENSION + 2 * (exponential - addition)) / DRAWS
    search = (6 * 3 * 2 + NODES * DIMENSION / 2) / DRAWS
    tests = {
        "the whole test, `Wild(500)`": whole,
        "the same, bandwidths given": without_medians,
        "the whole test, `HadamardWild(500)`": numbers["whole, HadamardWild"],
        "the same, bandwidths given ": numbers["bandwidths given, HadamardWild"],
        "least of `Wild(500)`, one tile": 1 + least + search,
        "least, bandwidths given": 1 + least,
    }
    parts = {
        "medians: what given bandwidths save": whole - without_medians,
        "500 draws: what 7 draws save": without_medians - few,
        "alone: product and forms": numbers["product and forms alone"],
        "alone: signs": numbers["signs alone"],
        "alone: entries of H": entries,
        "the rest: scores, units, diagnostics": few - entries,
    }
    rows = [(name, f"{value:.2f}", f"{50 / value:.0f} %") for name, value in tests.items()]
    rows += [(name, f"{value:.2f}", "") for name, value in parts.items()]
    prices = f"{exponential:.0f}, {addition:.0f}"
    rows.append(("multiplications an exponential, an addition", prices, ""))
    return table(("n = 256, one core", "units", "share of its product's rate"), rows)


def duration(value: float) -> str:
    """Seconds in words, to two digits."""
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (0, "µs"))
    size, unit = next((size, unit) for size, unit in units if value >= size)
    return f"{float(f'{value / (size or 1e-6):.2g}'):g} {unit}"


def model() -> str:
    """Times that the cost model computes, from a laptop to 1,000 GPUs."""
    head = ("n", "laptop", "1 GPU", "8 GPUs", "1,000 GPUs")
    return table(
        (*head, "laptop, linear", "1 GPU, linear", "1,000 GPUs, linear"),
        (
            (
                f"10{'⁴⁵⁶⁷⁸'[power - 4]}",
                duration(seconds(10**power, rate=LAPTOP)),
                *(duration(seconds(10**power, devices)) for devices in (1, 8, 1000)),
                duration(seconds(10**power, rate=LAPTOP, linear=True)),
                *(duration(seconds(10**power, devices, linear=True)) for devices in (1, 1000)),
            )
            for power in range(4, 9)
        ),
    )


WRITTEN = (
    level,
    power,
    intervals,
    cifar,
    examples,
    benchmarks,
    model,
    foretold,
    ingredients,
)
TABLES = {one.__name__: one for one in WRITTEN}


def filled(text: str) -> str:
    """A page with its tables as the committed results make them."""

    def place(match: re.Match[str]) -> str:
        content = f"<!-- {match[2]} -->\n\n{TABLES[match[2]]()}\n<!-- /{match[2]} -->"
        return textwrap.indent(content, match[1])

    return PLACE.sub(place, text)


def main() -> None:
    """Write the tables into every page that has places for them."""
    for path in sorted(PAGES.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            path.write_text(new, encoding="utf-8")
            print(path.name)


if __name__ == "__main__":
    main()
