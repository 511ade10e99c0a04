"""Rejections of any of the tests on any of the cells, on identical data sets; one row for each."""

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

import families
import jax
import jax.numpy as jnp
import network
import numpyro.distributions as dist
import rivals
import varying

import jaxcal

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
SEED = 20261122
# with a program of their own
SPECIAL = ("hgm", "qgm", *network.SIMULATIONS, *network.STUDIED)
COLUMNS = (*runner.REJECTIONS, "which_05")
FROM_DRAWS = ("coverage", "SBC", "TARP", "shared")
MODULES: tuple[Any, Any] = (varying, families)  # they have names in common
DEFAULT = ("calibration", "KCCSD", *FROM_DRAWS)
TAKES_INPUTS = "inputs" in inspect.signature(jaxcal.calibration_test).parameters
UNLISTED = ("interaction", "corner", "corner too narrow", "sine")  # in no form that is asked for
# data sets that one program holds at once
BATCH = 10


def calibration(key, data):
    return jaxcal.calibration_test(key, data.predictions, data.targets).p_value


def calibration_inputs(key, data):
    test: Any = jaxcal.calibration_test
    return test(key, data.predictions, data.targets, inputs=data.inputs).p_value


def calibration_draws(key, data):
    return jaxcal.calibration_test(key, jaxcal.Draws(data.draws), data.targets).p_value


def claimed_normal(data):
    center, inverse, *_ = data.predictions.params
    return dist.MultivariateNormal(center, scale_tril=jnp.linalg.inv(inverse))


PROGRAMS = {
    "calibration": calibration,
    **({"calibration, inputs": calibration_inputs} if TAKES_INPUTS else {}),
    "calibration, draws": calibration_draws,
    "KCCSD": lambda key, data: jaxcal.kccsd_test(key, data.predictions, data.targets).p_value,
    "draws": rivals.sharing_one_level,
    "classifier": lambda key, data: rivals.classifier(data),
    "KCSD": lambda key, data: (
        jaxcal.kcsd_test(key, data.predictions, data.targets, data.inputs).p_value
    ),
    "SKCE": lambda key, data: jaxcal.skce_test(key, claimed_normal(data), data.targets).p_value,
    "best possible": lambda key, data: rivals.best_possible(data),
}
TESTS = (*(name for name in PROGRAMS if name != "draws"), *FROM_DRAWS)


def cells(level: bool, old: bool) -> list[dict[str, Any]]:
    """Power: each fault at n = 200 and 50, and those in no listed form at 1,000 (of `families`: at
    the n of the family), 200 data sets.
    Level: each family at three n, 1,000 data sets."""
    module = MODULES[old]
    sets = 1000 if level else 200
    chosen = []
    for name, family in module.FAMILIES.items():
        faults = ["correct"] if level else [fault for fault in family.faults if fault != "correct"]
        sizes = (30, 64, 200) if level else (family.n,) if old else (200, 50)
        chosen += [
            {"family": name, "fault": fault, "n": n, "data_sets": sets}
            for n in sizes
            for fault in faults
        ]
        if not level and not old:
            unlisted = [fault for fault in faults if fault in UNLISTED]
            chosen += [
                {"family": name, "fault": fault, "n": 1000, "data_sets": sets} for fault in unlisted
            ]
    return chosen


def applies(test: str, cell: dict[str, Any], old: bool) -> bool:
    module = MODULES[old]
    family = module.FAMILIES[cell["family"]]
    if test == "SKCE":
        return family.base == module.NORMAL and cell["fault"] != "trained"
    return test != "best possible" or cell["fault"] not in ("trained", "correct")


@lru_cache
def program(test: str, module: Any, special: str, dimension: int, n: int):
    """One program for all families and faults of a dimension."""

    def walk(keys, numbers, fault):
        family = module.Family(*numbers, dimension, ())

        def one(key):
            data_key, test_key, rank_key = jax.random.split(key, 3)
            data = module.data_set(special, family, data_key, fault, n)
            return PROGRAMS[test](rank_key if test == "draws" else test_key, data)

        return jax.lax.map(one, keys, batch_size=BATCH)

    return jax.jit(walk)


def p_values(test: str, old: bool, cell: runner.Cell, keys: jax.Array) -> jax.Array:
    """p-values [data sets, ...] of one program."""
    module, name = MODULES[old], cell["family"]
    family, fault = module.FAMILIES[name], module.FAULTS[cell["fault"]]
    special = name if name in SPECIAL else ""
    walk = program(test, module, special, family.dimension, cell["n"])
    numbers = [jnp.asarray(float(number)) for number in family[:6]]
    return walk(keys, numbers, jax.tree.map(jnp.asarray, fault))


def measurement(old: bool) -> Callable[[runner.Cell, jax.Array], dict[str, int]]:
    """Counts at two levels, and which data sets at .05: the bits of one number."""
    last = {}  # tests from draws share a program

    def measure(cell, key):
        test = "draws" if cell["test"] in FROM_DRAWS else cell["test"]
        program_and_data = test, *runner.identity(cell)[:-1]
        if program_and_data not in last:
            last.clear()
            keys = jax.random.split(key, cell["data_sets"])
            last[program_and_data] = p_values(test, old, cell, keys)
        p = last[program_and_data]
        p = p[:, FROM_DRAWS.index(cell["test"])] if test == "draws" else p
        which = sum(1 << i for i, rejected in enumerate(p <= 0.05) if rejected)
        return runner.rejections(p) | {"which_05": which}

    return measure


def study(wanted: list[dict[str, Any]], every: list[dict[str, Any]], path: Path, old: bool):
    """``wanted`` and what the file holds already, which a later call may have asked for."""
    rows = runner.read(path) if path.exists() else []
    names = ("family", "fault", "n", "data_sets", "test")
    measured = {tuple(row[name] or "" for name in names) for row in rows}
    listed = [cell for cell in every if cell in wanted or runner.identity(cell) in measured]
    return runner.Study(listed, COLUMNS, measurement(old), SEED, ("test",))


def main(arguments: Sequence[str] | None = None) -> Path:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke size, in seconds")
    parser.add_argument("--level", action="store_true", help="right predictions, n = 30, 64, 200")
    third = parser.add_mutually_exclusive_group()
    third.add_argument("--seen", action="store_true", help="the default")
    third.add_argument("--unseen", action="store_true", help="the third kept for the end")
    third.add_argument("--old", action="store_true", help="the cells of `families.py`")
    parser.add_argument("--cells", nargs="+", default=["*"], help="'family/fault', with * and ?")
    parser.add_argument("--tests", nargs="+", default=DEFAULT, choices=TESTS)
    parser.add_argument("--n", type=int, nargs="+", help="only these")
    parser.add_argument("--output", type=Path, help="the CSV file to continue or begin")
    chosen = parser.parse_args(arguments)
    wanted = cells(chosen.level, chosen.old)
    if not chosen.old:
        unseen = [varying.unseen(cell["family"], cell["fault"]) for cell in wanted]
        wanted = [cell for cell, late in zip(wanted, unseen, strict=True) if late == chosen.unseen]
    if chosen.quick:
        wanted = [{**wanted[0], "n": 16, "data_sets": 4}]
    every = [
        {**cell, "test": test}
        for cell in wanted
        for test in TESTS
        if applies(test, cell, chosen.old)
    ]
    wanted = [
        cell
        for cell in every
        if cell["test"] in chosen.tests
        and (not chosen.n or cell["n"] in chosen.n)
        and any(fnmatch(f"{cell['family']}/{cell['fault']}", glob) for glob in chosen.cells)
    ]
    which = "unseen" if chosen.unseen else "old" if chosen.old else "seen"
    name = f"level_{which}.csv" if chosen.level and chosen.old else "level.csv"
    name = name if chosen.level else f"{which}.csv"
    path = chosen.output or (FOLDER / "quick" if chosen.quick else FOLDER) / name
    runner.run(study(wanted, every, path, chosen.old), path)
    return path


if __name__ == "__main__":
    main()
