"""The same tasks by other packages and by jaxcal, on the same data: are the numbers equal?

python experiments/peers/run.py          # a minute; needs pip install 'jaxcal[peers]'
python experiments/peers/run.py --quick  # smoke size, of the packages that are installed
"""

import importlib.metadata
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import peers_data
import runner
from peers_tasks import TASKS, VERSIONS

FOLDER = Path(__file__).parent
MEASURED = ("theirs", "ours", "difference")


@dataclass(frozen=True)
class Config:
    n: int = 2000
    packages: tuple[str, ...] = tuple(VERSIONS)
    seed: int = 20230721


def installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


QUICK = Config(n=200, packages=tuple(filter(installed, VERSIONS)))


def make(config: Config) -> runner.Study:
    """Means and the largest difference of what two packages compute."""
    pairs = {
        (task.name, peer.package): (task.ours, peer.words)
        for task in TASKS
        for peer in task.peers
        if peer.package in config.packages
    }
    cells = [
        {"task": task, "package": package, "version": VERSIONS[package]} for task, package in pairs
    ]
    data = peers_data.draw(np.random.default_rng(config.seed), config.n)

    def measure(cell: Any, key: jax.Array) -> dict[str, Any]:
        check_version(cell["package"])
        ours, theirs = pairs[cell["task"], cell["package"]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the packages, about themselves
            values = np.asarray(theirs(data), float), np.asarray(ours(data), float)
        difference = np.max(np.abs(np.subtract(*np.broadcast_arrays(*values))))
        return dict(zip(MEASURED, (*map(np.mean, values), difference), strict=True))

    return runner.Study(cells, MEASURED, measure, config.seed)


def check_version(package: str) -> None:
    if not installed(package):
        raise SystemExit(f"{package} is not installed: pip install 'jaxcal[peers]'")
    version = importlib.metadata.version(package)
    if version != VERSIONS[package]:
        print(f"{package}: {version} is installed, the study names {VERSIONS[package]}")


def main(arguments: Sequence[str] | None = None) -> Path:
    jax.config.update("jax_enable_x64", True)
    chosen = sys.argv[1:] if arguments is None else arguments
    absent = [package for package in VERSIONS if package not in QUICK.packages]
    if "--quick" in chosen and absent:
        print("left out, as they are not installed:", ", ".join(absent))
        if not QUICK.packages:
            return FOLDER / "quick"
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
