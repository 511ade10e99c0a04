"""Every number beside the published one and the exact one, with the standard error that decides.

Writes comparison.md. A difference is called large beyond 4 of its standard errors; the published
ones are taken to have the standard errors of ours, since they come from as many data sets.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import runner

FOLDER = Path(__file__).parent
# SKCE, E h(x, x), E h^2 and zeta_1 by quadrature
EXACT = {
    ("calibrated", 1): (0.0, 0.0098525, 4.282e-5, 0.0),
    ("calibrated", 10): (0.0, 0.0942692, 1.683e-4, 0.0),
    ("uncalibrated", 1): (0.1107737, 0.2203, 0.031953, 0.007108),
    ("uncalibrated", 10): (0.0595975, 0.2870, 0.013905, 0.002449),
}
SIZES = {"pairs": lambda n: 2, "root": lambda n: max(2, math.isqrt(n)), "full": lambda n: n}
TESTS = ("pairs", "root", "bootstrap", "cme")


def exact_mean(model: str, d: int, name: str, n: int) -> float:
    skce, values, _, _ = EXACT[model, d]
    return skce + (values - skce) / n if name == "biased" else skce


def exact_variance(model: str, d: int, name: str, n: int) -> float | None:
    """sigma_B^2 / m (Lemma B.4 of the paper); the biased estimate's is another."""
    if name == "biased":
        return None
    skce, _, square, zeta = EXACT[model, d]
    size = SIZES[name](n)
    return (2 * (size - 2) * zeta + square - skce**2) / (size * (size - 1) / 2) / (n // size)


def z(ours: float, theirs: float, error: float) -> str:
    value = (ours - theirs) / error
    return f"{value:+.1f}" + (" **" if abs(value) > 4 else "")


def main(arguments: Sequence[str] | None = None) -> Path:
    source = Path(arguments[0]) if arguments else FOLDER / "results.csv"
    rows = runner.read(source)
    published = {
        (r["quantity"], r["model"], r["d"], r["name"], r["n"]): float(r["value"])
        for r in runner.read(FOLDER / "published.csv")
    }
    lines = ["# Estimators", ""]
    lines += ["z: difference over its standard error, ** beyond 4.", ""]
    lines += ["| model | d | n | estimator | mean | exact | z | error | published | z |"]
    lines[-1] += " variance | exact | z | published | z |"
    lines += ["|---" * 15 + "|"]
    for row in rows:
        model, d, n, sets = row["model"], int(row["d"]), int(row["n"]), int(row["data_sets"])
        for name in ("biased", "pairs", "root", "full"):
            error, variance, error_se, variance_se, mean = (
                float(row[f"{name}_{what}"])
                for what in ("error", "variance", "error_se", "variance_se", "mean")
            )
            where = (model, row["d"], name, row["n"])
            centre = exact_mean(model, d, name, n)
            of_error = published[("error", *where)]
            of_variance = published[("variance", *where)]
            wanted = exact_variance(model, d, name, n)
            cells = [model, d, n, name, f"{mean:.3g}", f"{centre:.3g}"]
            cells += [z(mean, centre, (variance / sets) ** 0.5)]
            cells += [f"{error:.3g}", f"{of_error:.3g}", z(error, of_error, 2**0.5 * error_se)]
            cells += [f"{variance:.3g}"]
            cells += (
                ["", ""] if wanted is None else [f"{wanted:.3g}", z(variance, wanted, variance_se)]
            )
            cells += [f"{of_variance:.3g}", z(variance, of_variance, 2**0.5 * variance_se)]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "# Rejections at level .05", ""]
    lines += ["| model | d | n | test | rejected | published | z |", "|---" * 7 + "|"]
    for row in rows:
        sets = int(row["data_sets"])
        for name in TESTS:
            rate = float(row[f"{name}_rejected"]) / sets
            theirs = published["rejected", row["model"], row["d"], name, row["n"]]
            refused = math.isnan(rate)
            pooled = 0 if refused else figures.standard_error((rate + theirs) / 2, sets) * 2**0.5
            cells = [row["model"], row["d"], row["n"], name]
            cells += ["refused" if refused else f"{rate:.3f}", f"{theirs:.3f}"]
            cells += ["" if refused else z(rate, theirs, pooled)]
            lines.append("| " + " | ".join(cells) + " |")
    path = source.with_name("comparison.md")
    path.write_text("\n".join(lines) + "\n")
    return path


if __name__ == "__main__":
    print(main(sys.argv[1:]))
