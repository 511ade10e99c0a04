"""One runner for all studies: cells to rows of a CSV file, resumable, with seeds of their own.

A study is a list of cells (each a dict of names), and a function that measures one cell. Its
random key depends on the study's seed and on the cell alone, so neither the order of the cells nor
an interruption changes a number. Rows are appended one by one; running again skips finished cells.
"""

import argparse
import csv
import io
import os
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from tqdm import tqdm

Cell = Mapping[str, Any]
# Threads of XLA. Calls of LAPACK over a batch wait in a thread for helpers from the same pool: as
# many of them side by side as there are threads wait for ever (jaxlib 0.10, two processors)
os.environ.setdefault("PJRT_NPROC", "8")
# Of programs that run for minutes: half the time of the default, and about the same program. A
# process that asks for no optimization at all, as smoke runs do, is not overruled
FASTER_COMPILATION = (
    {}
    if jax.config.read("jax_disable_most_optimizations")
    else {"xla_backend_optimization_level": 1}
)


@dataclass(frozen=True)
class Study:
    """``measure(cell, key)`` returns a number for every name in ``measured``.

    The values of a cell must read the same in a CSV file (``str``) as they do here. Names in
    ``paired`` do not enter the key: cells that differ in them alone see the same data sets.
    """

    cells: Sequence[Cell]
    measured: tuple[str, ...]
    measure: Callable[[Cell, jax.Array], Mapping[str, Any]]
    seed: int
    paired: tuple[str, ...] = ()

    def __post_init__(self):
        if not self.cells:
            raise ValueError("a study needs at least one cell")
        if any(tuple(cell) != self.names for cell in self.cells):
            raise ValueError(f"all cells need the same names in the same order, {self.names}")
        if len({identity(cell) for cell in self.cells}) != len(self.cells):
            raise ValueError("two cells of the study are the same")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.cells[0])

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.names, *self.measured)

    def key(self, cell: Cell) -> jax.Array:
        """A key that depends on the seed and on what the cell says, not on where it stands."""
        said = ";".join(f"{name}={cell[name]}" for name in sorted(cell) if name not in self.paired)
        return jax.random.fold_in(jax.random.key(self.seed), zlib.crc32(said.encode()))


def identity(cell: Cell) -> tuple[str, ...]:
    """What a cell is called in the file."""
    return tuple(str(value) for value in cell.values())


def run(study: Study, path: Path, *, progress: bool = True) -> None:
    """Measure the cells that ``path`` does not hold yet, appending one row a cell.

    A last line that was cut off is named in a warning and measured again. Raises ValueError where
    the file belongs to another study: other columns, unknown or repeated cells.
    """
    finished = _finished(study, path)
    missing = [cell for cell in study.cells if identity(cell) not in finished]
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        _append(path, study.columns)
    bar = tqdm(missing, disable=not progress, unit="cell", initial=len(finished))
    bar.total = len(study.cells)
    for cell in bar:
        bar.set_postfix_str(" ".join(identity(cell)))
        result = study.measure(cell, study.key(cell))
        if set(result) != set(study.measured):
            raise ValueError(f"measured {sorted(result)}, the study promised {study.measured}")
        _append(path, [*cell.values(), *(_number(result[name]) for name in study.measured)])


def spread(one: Callable[..., Any]) -> Callable[..., Any]:
    """``one`` over the leading axis of its arguments, shared out among all devices, jitted.

    Each device walks its data sets one at a time. Results do not depend on the number of devices.
    """
    mesh = jax.make_mesh((jax.device_count(),), ("sets",), (jax.sharding.AxisType.Auto,))
    along = jax.sharding.PartitionSpec("sets")

    def walk(*batched: Any) -> Any:
        return jax.lax.map(lambda arguments: one(*arguments), batched)

    shared = jax.shard_map(walk, mesh=mesh, in_specs=along, out_specs=along, check_vma=False)

    @jax.jit
    def every(*batched: Any) -> Any:
        sets = jax.tree.leaves(batched)[0].shape[0]
        missing = -sets % mesh.size  # the first data sets again, so that all devices have as many

        def padded(leaf: jax.Array) -> jax.Array:
            return jnp.concatenate([leaf, leaf[:missing]])

        result = shared(*jax.tree.map(padded, batched))
        return jax.tree.map(lambda leaf: leaf[:sets], result)

    return every


REJECTIONS = ("rejected_05", "rejected_01", "not_a_number")


def rejections(p_values: jax.Array) -> dict[str, int]:
    """How many of the p-values reject at 5 % and at 1 %, and how many are none."""
    counts = jnp.sum(p_values <= 0.05), jnp.sum(p_values <= 0.01), jnp.sum(jnp.isnan(p_values))
    return dict(zip(REJECTIONS, map(int, counts), strict=True))


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a finished study, as text, for a plot."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def command_line(
    make: Callable[[Any], Study],
    full: Any,
    quick: Any,
    folder: Path,
    arguments: Sequence[str] | None,
) -> Path:
    """``run.py [--quick] [--devices K] [--output FILE]``: the study of one of two configurations.

    The smoke size goes to a folder ``quick/`` that is not committed. ``--devices``: on a CPU, split
    the data sets of a cell over that many devices of the host (`spread`); elsewhere `spread` uses
    all there are. Returns the file written.
    """
    parser = argparse.ArgumentParser(description=make.__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke size, in seconds")
    parser.add_argument("--output", type=Path, help="the CSV file to continue or begin")
    parser.add_argument("--devices", type=int, help="CPU devices to spread data sets over")
    chosen = parser.parse_args(arguments)
    if chosen.devices is not None:
        jax.config.update("jax_num_cpu_devices", chosen.devices)  # an error once JAX has started
    default = folder / "quick" / "results.csv" if chosen.quick else folder / "results.csv"
    path = chosen.output or default
    run(make(quick if chosen.quick else full), path)
    return path


def _finished(study: Study, path: Path) -> set[tuple[str, ...]]:
    """The cells that the file holds; what an interruption left of a last line is cut away."""
    if not path.exists():
        return set()
    text = path.read_bytes().decode(errors="replace")
    lines = text.splitlines(keepends=True)
    if not lines or not lines[0].endswith("\n"):
        _cut(path, "", text)
        return set()
    if (header := tuple(_fields(lines[0]))) != study.columns:
        raise ValueError(f"{path} has columns {header}, this study writes {study.columns}")
    wanted, finished = {identity(cell) for cell in study.cells}, set()
    for number, line in enumerate(lines[1:], start=2):
        row = _row(study, line)
        if row is None and number == len(lines):
            _cut(path, "".join(lines[:-1]), line)
        elif row is None:
            raise ValueError(f"{path}, line {number}: not a row of this study: {line!r}")
        elif row not in wanted:
            raise ValueError(f"{path}, line {number}: a cell that this study does not have: {row}")
        elif row in finished:
            raise ValueError(f"{path}, line {number}: the cell {row} for the second time")
        else:
            finished.add(row)
    return finished


def _row(study: Study, line: str) -> tuple[str, ...] | None:
    """The cell of a complete line, or None."""
    fields = _fields(line)
    if not line.endswith("\n") or len(fields) != len(study.columns):
        return None
    try:
        [float(value) for value in fields[len(study.names) :]]
    except ValueError:
        return None
    return tuple(fields[: len(study.names)])


def _fields(line: str) -> list[str]:
    return next(csv.reader([line]), [])


def _cut(path: Path, kept: str, lost: str) -> None:
    warnings.warn(f"{path}: the last line {lost!r} is incomplete; measuring it again", stacklevel=4)
    whole = path.with_name(path.name + ".whole")
    whole.write_bytes(kept.encode())
    os.replace(whole, path)
    if not kept:
        path.unlink()


def _append(path: Path, fields: Iterable[Any]) -> None:
    """One line in one write, on the disk before the next cell starts."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.getvalue().encode())
        os.fsync(file)
    finally:
        os.close(file)


def _number(value: Any) -> Any:
    return value if isinstance(value, int) else f"{float(value):.6g}"
