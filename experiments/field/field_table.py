"""Tables of level and power from `results.csv`: one for each law and n that has faults measured.

python experiments/field/field_table.py
"""

import sys
from pathlib import Path

import scipy.stats

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent


def tables() -> str:
    """Rejections at .05 as shares, beside the number of right data sets and of each fault; in bold
    where a right posterior is rejected too often or too rarely for chance (outside the central
    99.9 % of a binomial number)."""
    measured: dict[tuple[str, str], dict[str, dict[str, tuple[int, int]]]] = {}
    for row in runner.read(FOLDER / "results.csv"):
        tests = measured.setdefault((row["law"], row["n"]), {})
        counts = int(row["rejected_05"]), int(row["data_sets"])
        tests.setdefault(row["test"], {})[row["fault"]] = counts
    complete = {
        w: tests for w, tests in measured.items() if any(len(s) > 1 for s in tests.values())
    }
    laws = list(dict.fromkeys(law for law, _ in complete))
    ordered = sorted(complete, key=lambda where: (laws.index(where[0]), int(where[1])))
    return "\n\n".join(_table(*where, complete[where]) for where in ordered)


def _table(law: str, n: str, tests: dict[str, dict[str, tuple[int, int]]]) -> str:
    faults = list(dict.fromkeys(fault for shares in tests.values() for fault in shares))
    names = " | ".join(["p-value", "data sets", *faults])
    lines = [f"{law}, n = {n}:", "", f"| {names} |", "|---" * (2 + len(faults)) + "|"]
    for test, shares in tests.items():
        sizes = ", ".join(dict.fromkeys(f"{sets:,}" for _, sets in shares.values()))
        cells = [_share(fault, shares.get(fault)) for fault in faults]
        lines.append(f"| {' | '.join([test, sizes, *cells])} |")
    return "\n".join(lines)


def _share(fault: str, counts: tuple[int, int] | None) -> str:
    if counts is None:
        return ""
    rejected, sets = counts
    low, high = scipy.stats.binom.interval(0.999, sets, 0.05)
    text = f"{rejected / sets:.3f}" if fault == "correct" else f"{rejected / sets:.2f}"
    text = text.replace("0.", ".", 1)
    return f"**{text}**" if fault == "correct" and not low <= rejected <= high else text


if __name__ == "__main__":
    print(tables())
