"""Read predictions and targets from a file: .npz of arrays, or a table of probabilities."""

import csv
import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np

from jaxcal.checking import tables
from jaxcal.checking.check import CheckReport, carried_out
from jaxcal.checking.plan import by_features, plan
from jaxcal.read import Draws, Scores, checks, convert
from jaxcal.results.saved import SOURCE
from jaxcal.streaming import arrays_file
from jaxcal.streaming.arrays_file import BadFile
from jaxcal.typing import PredictionsLike

Read: TypeAlias = tuple[PredictionsLike, np.ndarray, np.ndarray | None, str]
JSON = (".json", ".jsonl", ".ndjson")
TABLES = (".csv", ".tsv", ".txt", ".parquet", *JSON)


def checked(
    path: Path, *, seed: int, level: float, dependent: bool, columns: Sequence[str] = ()
) -> CheckReport:
    """Return the `jaxcal.check` of a file, computed in the float type of its arrays. The report
    records the file and how its columns were read. BadFile if the file is unusable."""
    predictions, targets, features, notes = read(path, columns)
    wide = any(leaf.dtype == "float64" for leaf in jax.tree.leaves(predictions))
    with jax.enable_x64(wide):
        try:
            chosen = plan(predictions, targets, dependent=dependent)
            if features is not None:
                n = checks.targets(targets).shape[0]
                chosen = by_features(chosen, checks.rows(features, n, "features"))
            key = convert.key(seed)
            report = carried_out(key, chosen, targets, level=level, dependent=dependent)
            call = {"function": "python -m jaxcal check", "key": seed, "n": report.n}
            object.__setattr__(report, SOURCE, call | {"options": {"file": path, "columns": notes}})
            return jax.block_until_ready(report)
        except (ValueError, TypeError) as error:
            said = " ".join(str(error).split()).replace("Scores.", "")  # names of fields: of arrays
            said = said.replace("at_targets", "scores").replace("at_nodes", "node_scores")
            raise BadFile(f"{path}: {said}") from None


def read(path: Path, columns: Sequence[str] = ()) -> Read:
    """Return predictions, targets, features, and a text on how the columns were read.

    Features [n, q] are the array "features" of a file of scores, or None. ``columns`` select the
    columns of a table; if empty, `tables.classes_of` selects columns by their names. The text is
    also printed to stderr. BadFile if the file is unusable.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = "".join(suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:])
    if kind in TABLES:
        (predictions, targets, notes), features = _table(path, kind, columns), None
    elif columns:
        raise BadFile(f"{path}: --columns is for tables ({', '.join(TABLES)})")
    else:
        predictions, targets, features, notes = _arrays(path)
    for note in notes:
        print(f"{path}: {note}", file=sys.stderr)
    return predictions, targets, features, "; ".join(notes)


def _arrays(path: Path) -> tuple[PredictionsLike, np.ndarray, np.ndarray | None, list[str]]:
    arrays, others = arrays_file.load(path, ("targets", "probabilities", "draws", "scores"))
    kinds = [name for name in ("probabilities", "draws", "scores") if name in arrays]
    contents = "the file holds " + (", ".join(sorted([*arrays, *others])) or "no arrays")
    if "targets" not in arrays or len(kinds) != 1:
        raise BadFile(
            f"{path}: wanted 'targets' and one of 'probabilities', 'draws' and 'scores'; {contents}"
        )
    if kinds == ["scores"]:
        more, _ = arrays_file.load(path, ("node_scores", "nodes", "features"))
        if ("node_scores" in more) == ("features" in more):
            which = "both" if "features" in more else "neither"
            raise BadFile(
                f"{path}: to tell predictions apart, one of the arrays 'node_scores' and "
                f"'features' is wanted, got {which}; {contents}"
            )
        if "features" in more:
            more.pop("nodes", None)
        return _scored(path, arrays | more, [name for name in others if name not in more])
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise BadFile(f"{path}: '{name}' is {array.dtype}; wanted numbers")
        _finite(path, name, array)
    targets, values = arrays["targets"], arrays[kinds[0]]
    if kinds == ["draws"]:
        return Draws(_floats(values)), _floats(targets), None, []
    return _floats(values), _labels(path, targets), None, []


def _scored(
    path: Path, arrays: dict[str, np.ndarray], unused: list[str]
) -> tuple[Scores, np.ndarray, np.ndarray | None, list[str]]:
    """Return scores, targets, features and notes, in the widest float type among the ``arrays``.

    Scores may hold NaN or infinity, which the test reports. If d = 1, the last axis may be missing.
    """
    for name, array in arrays.items():
        if array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8):
            hint = {
                "i": "; convert measurements to float64, but counts and classes have no score",
                "u": "; convert measurements to float64, but counts and classes have no score",
                "f": "; the statistic needs about seven digits",
            }.get(array.dtype.kind, "")
            raise BadFile(f"{path}: '{name}' is {array.dtype}; wanted float32 or float64{hint}")
        if name not in ("scores", "node_scores"):
            _finite(path, name, array)
    kind = np.result_type(*arrays.values())
    arrays = {name: array.astype(kind) for name, array in arrays.items()}
    if (shape := arrays["targets"].shape)[1:] in ((), (1,)):
        for name, axes in (("targets", 2), ("scores", 2), ("node_scores", 3), ("nodes", 2)):
            if name in arrays and arrays[name].ndim == axes - 1:
                arrays[name] = arrays[name][..., None]
    notes = [f"the array '{name}' is not used [unused-array]" for name in unused]
    if len(shape) == 2 and 1 < shape[0] < shape[1]:
        notes.append(
            f"'targets' of shape {shape} is read as {shape[0]} observations of {shape[1]} numbers "
            f"each; if these are {shape[1]} observations, save every array with its first two axes "
            "swapped [wide-targets]"
        )
    scores = Scores(arrays["scores"], arrays.get("node_scores"), arrays.get("nodes"))
    return scores, arrays["targets"], arrays.get("features"), notes


def _finite(path: Path, name: str, array: np.ndarray) -> None:
    if bad := int(np.sum(~np.isfinite(array))):
        raise BadFile(f"{path}: '{name}' holds {bad} values that are NaN or infinite")


def _table(path: Path, kind: str, chosen: Sequence[str]) -> tables.Table:
    try:
        if kind == ".parquet":
            columns = _parquet(path)
        else:
            with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
                text = file.read().decode("utf-8-sig")
            columns = _json(text) if kind in JSON else _csv(text, kind)
        return tables.classes_of(columns, chosen)
    except tables.Unreadable as error:
        raise BadFile(f"{path}: {error}") from None
    except ImportError:
        raise BadFile(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from None
    except (OSError, EOFError, zlib.error, ValueError, csv.Error) as error:  # pyarrow's errors, too
        said = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise BadFile(f"{path}: cannot be read as {kind[1:].upper()} ({said})") from None


def _parquet(path: Path) -> list[tables.Column]:
    import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

    with pq.ParquetFile(path) as file:
        table = file.read()
    return [(field.name, table.column(k).to_numpy()) for k, field in enumerate(table.schema)]


def _csv(text: str, kind: str) -> list[tables.Column]:
    """Return the columns of a CSV or TSV text. The separator is a tab in .tsv files, else the most
    frequent of comma, semicolon, tab and | in the header. If it is a semicolon, numbers may have a
    decimal comma."""
    sign = "\t" if kind == ".tsv" else max(",;\t|", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=sign)
    names, *lines = [line for line in reader if line] or [[]]
    if not lines:
        raise tables.Unreadable("wanted a line of names and a line for each observation")
    for number, line in enumerate(lines, 2):
        if len(line) != len(names):
            raise tables.Unreadable(
                f"row {number} has {len(line)} entries, but there are {len(names)} names"
            )
    names[0] = names[0].removeprefix("#")  # as numpy.savetxt writes them
    columns = zip(*lines, strict=True)
    if sign == ";":
        columns = ([re.sub(r"^([-+]?\d*),(\d+)$", r"\1.\2", x) for x in each] for each in columns)
    return list(zip(names, columns, strict=True))


def _json(text: str) -> list[tables.Column]:
    """Return the columns of JSON: a list of rows, one row per line, or an object of columns."""
    try:
        table = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError:
        lines = (line for line in text.splitlines() if line.strip())
        table = [json.loads(line, object_pairs_hook=_once) for line in lines]
    if isinstance(table, dict) and "data" in table:
        names, table = table.get("columns"), table["data"]
        table = table if names is None else [dict(zip(names, row, strict=True)) for row in table]
    if isinstance(table, dict) and all(isinstance(each, dict) for each in table.values()):
        if len({tuple(each) for each in table.values()}) > 1:
            raise tables.Unreadable("its rows or columns do not all have the same entries")
        if any(map(tables.is_label, table)):
            table = {name: list(each.values()) for name, each in table.items()}
        else:
            table = list(table.values())
    if isinstance(table, list) and table and all(isinstance(row, dict) for row in table):
        if len({tuple(row) for row in table}) > 1:
            raise tables.Unreadable("its rows do not all hold the same names")
        table = {name: [row[name] for row in table] for name in table[0]}
    if not isinstance(table, dict) or not all(isinstance(x, list) for x in table.values()):
        raise tables.Unreadable("wanted a list of rows with names, or an object of columns")
    if len({len(column) for column in table.values()}) > 1:
        raise tables.Unreadable("its columns are of different lengths")
    return list(table.items())


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(entries := dict(pairs)) < len(pairs):
        raise tables.Unreadable(f"a name is repeated in {', '.join(name for name, _ in pairs)}")
    return entries


def _labels(path: Path, targets: np.ndarray) -> np.ndarray:
    if np.any(targets != np.round(targets)):
        raise BadFile(f"{path}: labels must be whole numbers from 0")
    return targets.astype(int)


def _floats(values: np.ndarray) -> np.ndarray:
    return values if values.dtype.kind == "f" else values.astype(float)
