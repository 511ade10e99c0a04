"""Where the calibration test finds less than its best rival: by how much, on the same data sets?"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import families
import jax
import jax.numpy as jnp
import run as power

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
RIVALS = ("coverage", "SBC", "TARP")
BEHIND = 0.05  # what may be given away beside the best of three, picked afterwards
PAPER = ("HGM", "QGM", "MMGM")  # faults of the KCCSD paper, beside exact SKCE


@dataclass(frozen=True)
class Config:
    results: str = str(FOLDER / "results.csv")
    seed: int = power.Config.seed


QUICK = Config(str(FOLDER / "quick" / "results.csv"))


def behind(path: Path) -> list[tuple[dict[str, object], str]]:
    """Cells of power, and whom to look at beside: exact SKCE, or the best of three where the
    calibration test finds less by more than `BEHIND`."""
    cells = []
    for row in runner.read(path):
        if row["fault"] == "correct":
            continue
        n, sets = int(row["n"]), int(row["data_sets"])
        cell = {"family": row["family"], "fault": row["fault"], "n": n, "data_sets": sets}
        best = max(RIVALS, key=lambda name: int(row[name]))
        if int(row[best]) - int(row["calibration"]) > BEHIND * sets:
            cells.append((cell, best))
        if row["fault"] in PAPER:
            cells.append((cell, "SKCE"))
    return cells


def make(config: Config) -> runner.Study:
    """Data sets in which only one of the two rejects: those of `run.py`, drawn once more."""
    cells = [cell | {"rival": rival} for cell, rival in behind(Path(config.results))]

    def measure(cell, key):
        keys = jax.random.split(key, cell["data_sets"])
        fault = families.FAULTS[cell["fault"]]
        p = power.rejections(cell["family"], cell["n"], keys, fault)[0] <= 0.05
        ours, theirs = p[:, 0], p[:, power.METHODS.index(cell["rival"])]
        return {
            "ours": int(jnp.sum(ours)),
            "theirs": int(jnp.sum(theirs)),
            "ours_alone": int(jnp.sum(ours & ~theirs)),
            "theirs_alone": int(jnp.sum(theirs & ~ours)),
        }

    columns = ("ours", "theirs", "ours_alone", "theirs_alone")
    return runner.Study(cells, columns, measure, config.seed, paired=("rival",))


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER / "paired", arguments)


if __name__ == "__main__":
    main()
