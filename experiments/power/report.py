"""Tables of `run.py`: rejections per cell and test, and paired differences with their limits."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

Cell = tuple[str, str, str]
NORMAL_99 = 2.576


def read(path: Path) -> dict[Cell, dict[str, dict[str, str]]]:
    """Rows by cell and test."""
    by_cell = {}
    for row in runner.read(path):
        cell = row["family"], row["fault"], row["n"]
        by_cell.setdefault(cell, {})[row["test"]] = row
    return by_cell


def brief(row: dict[str, str], level: str) -> str:
    """Share of rejections; marked where some data sets had no p-value."""
    share = int(row[f"rejected_{level}"]) / int(row["data_sets"])
    return f"{share:.2f}".removeprefix("0") + "*" * (int(row["not_a_number"]) > 0)


def difference(ours: dict[str, str], theirs: dict[str, str]) -> tuple[float, float]:
    """Difference of two shares on the same data sets, and half of its 99 % interval."""
    a, b, n = int(ours["which_05"]), int(theirs["which_05"]), int(ours["data_sets"])
    alone, other = (a & ~b).bit_count(), (b & ~a).bit_count()
    mean = (alone - other) / n
    # one data set more on either side, so that no interval is empty
    return mean, NORMAL_99 * ((alone + other + 2) / n - mean**2) ** 0.5 / n**0.5


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="another adds its column `new`")
    parser.add_argument("--test", default="calibration", help="the test that is compared")
    parser.add_argument("--level", choices=("05", "01"), default="05")
    chosen = parser.parse_args(arguments)
    tables = [read(path) for path in chosen.files]
    tests = list(dict.fromkeys(test for rows in tables[0].values() for test in rows))
    last, ours = tables[-1], chosen.test
    heads = [*tests, *(["new"] if len(tables) > 1 else []), f"{ours} less shared"]
    heads += ["new less old"] if len(tables) > 1 else []
    print("| family | fault | n |", " | ".join(heads), "|")
    print("|---" * (3 + len(heads)) + "|")
    for cell, rows in tables[0].items():
        new = last.get(cell, {}).get(ours)
        shown = [rows.get(test) for test in tests] + ([new] if len(tables) > 1 else [])
        values = [brief(row, chosen.level) if row else "" for row in shown]
        pairs = [(new, rows.get("shared"))]
        pairs += [(new, rows.get(ours) or rows.get("calibration"))] if len(tables) > 1 else []
        for one, other in pairs:
            text = "{:+.2f} ± {:.2f}".format(*difference(one, other)) if one and other else ""
            values.append(text)
        print("|", " | ".join([*cell, *values]), "|")


if __name__ == "__main__":
    main()
