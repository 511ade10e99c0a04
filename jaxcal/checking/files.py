"""Predictions and targets from a file: .npz of arrays, or a table of class probabilities."""

import csv
import re
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxcal import arrays_file
from jaxcal.arrays_file import BadFile
from jaxcal.checking.check import check
from jaxcal.checking.report import CheckReport
from jaxcal.models import Draws, Scores
from jaxcal.streaming import parquet_batches, parquet_shards
from jaxcal.typing import PredictionsLike

LABELS = ("label", "labels", "target", "targets")


def checked(path: Path, *, seed: int, level: float, dependent: bool) -> CheckReport:
    """Check what a file holds, in its own floating type. Raises BadFile for an unusable file."""
    predictions, targets = read(path)
    wide = any(leaf.dtype == "float64" for leaf in jax.tree.leaves(predictions))
    with jax.enable_x64(wide):
        try:
            report = check(seed, predictions, targets, level=level, dependent=dependent)
            return jax.block_until_ready(report)
        except (ValueError, TypeError) as error:
            raise BadFile(f"{path}: {' '.join(str(error).split())}") from None


def read(path: Path) -> tuple[PredictionsLike, np.ndarray]:
    """Predictions and targets. BadFile, naming the file, for what cannot be used."""
    kind = path.suffix.lower()
    if kind == ".csv":
        return _classes(path, _csv(path))
    if kind == ".parquet":
        return _parquet(path)
    return _arrays(path)


def _arrays(path: Path) -> tuple[PredictionsLike, np.ndarray]:
    arrays, others = arrays_file.load(path, ("targets", "probabilities", "draws", "scores"))
    kinds = [name for name in ("probabilities", "draws", "scores") if name in arrays]
    if "targets" not in arrays or len(kinds) != 1:
        contents = ", ".join(sorted([*arrays, *others])) or "no arrays"
        raise BadFile(
            f"{path}: wanted 'targets' and one of 'probabilities', 'draws' and 'scores'; the file "
            f"holds {contents}"
        )
    if kinds == ["scores"]:
        whole = arrays_file.read(path)
        if whole.node_scores is None:
            raise BadFile(
                f"{path}: a check of scores wants 'node_scores'; the command test takes 'features'"
            )
        return Scores(whole.scores, whole.node_scores, whole.nodes), whole.targets
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise BadFile(f"{path}: '{name}' is {array.dtype}; wanted numbers")
        if bad := int(np.sum(~np.isfinite(array))):
            raise BadFile(f"{path}: '{name}' holds {bad} values that are NaN or infinite")
    targets, values = arrays["targets"], arrays[kinds[0]]
    if kinds == ["draws"]:
        return Draws(_floats(values)), _floats(targets)
    return _floats(values), _labels(path, targets)


def _parquet(path: Path) -> tuple[PredictionsLike, np.ndarray]:
    try:
        import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise BadFile(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from None
    try:
        names = pq.read_schema(path).names
        listed = "probabilities" in names and not path.is_dir()
        table = {} if listed else pq.read_table(path).to_pydict()
    except (OSError, ValueError) as error:  # as of pyarrow, too
        raise BadFile(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None
    if not listed:
        return _classes(path, table)
    batches = list(parquet_batches(parquet_shards(path), 10**6))
    if not batches:
        raise BadFile(f"{path}: no observations")
    probabilities, targets = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return probabilities, targets


def _csv(path: Path) -> dict[str, list[Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadFile(
            f"{path}: cannot be read as CSV ({getattr(error, 'strerror', None) or error})"
        ) from None
    if len(lines) < 2:
        raise BadFile(f"{path}: wanted a line of names and a line for each observation")
    names = [name.strip() for name in lines[0]]
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(names):
            raise BadFile(
                f"{path}: row {number} has {len(line)} entries, the names are {len(names)}"
            )
    return dict(zip(names, map(list, zip(*lines[1:], strict=True)), strict=True))


def _classes(path: Path, columns: dict[str, list[Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and labels of a table with a column for each class."""
    labels = [name for name in columns if name.lower() in LABELS]
    rest = [name for name in columns if name not in labels]
    if len(labels) != 1 or not rest:
        raise BadFile(
            f"{path}: wanted one column 'label' and a column of probabilities for each class; its "
            f"columns are {', '.join(columns)}"
        )
    numbers = {}
    for name in (*labels, *rest):
        try:
            numbers[name] = np.asarray([float(entry) for entry in columns[name]])
        except (TypeError, ValueError):
            raise BadFile(
                f"{path}: the column '{name}' holds entries that are no numbers"
            ) from None
        if bad := int(np.sum(~np.isfinite(numbers[name]))):
            raise BadFile(f"{path}: the column '{name}' holds {bad} values that are not finite")
    values = np.stack([numbers[name] for name in rest], axis=1)
    if len(rest) == 1:
        return values[:, 0], _labels(path, numbers[labels[0]])
    digits = max(_digits(entry) for name in rest for entry in columns[name])
    sums = np.sum(values, axis=1, keepdims=True)
    off = np.max(np.abs(sums - 1))
    if 1e-6 < off <= len(rest) * 0.5000001 * 10.0**-digits:
        print(
            f"{path}: probabilities of {digits} digits do not quite sum to 1; each row is divided "
            "by its sum",
            file=sys.stderr,
        )
        values = values / sums
    return values, _labels(path, numbers[labels[0]])


def _digits(entry: Any) -> int:
    """Decimal places of a number in a text; 17 where the text is no number."""
    text = str(entry).strip() if isinstance(entry, str) else ""
    plain = re.fullmatch(r"[+-]?\d*\.?(\d*)", text)
    return len(plain[1]) if plain and text else 17


def _labels(path: Path, targets: np.ndarray) -> np.ndarray:
    if np.any(targets != np.round(targets)):
        raise BadFile(f"{path}: labels must be whole numbers from 0")
    return targets.astype(int)


def _floats(values: np.ndarray) -> np.ndarray:
    return values if values.dtype.kind == "f" else values.astype(float)
