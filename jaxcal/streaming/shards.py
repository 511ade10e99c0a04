"""A Parquet file, or a folder of shards of one kind, as batches of one test."""

import io
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxcal.fit import RandomFeatures
from jaxcal.read import Scores
from jaxcal.streaming import arrays_file
from jaxcal.streaming.arrays_file import UNREADABLE, BadFile
from jaxcal.streaming.batches import (
    PROBABILITIES,
    TARGETS,
    ShardBatch,
    not_probabilities,
    parquet_batches,
    parquet_shards,
    shard_line,
)
from jaxcal.streaming.linear import StreamResult
from jaxcal.streaming.streamed import StreamedTest
from jaxcal.typing import Contents

KINDS = ("parquet", "npz", "npy")
ARRAYS = (TARGETS, PROBABILITIES, "scores", "node_scores", "features")
Batch = tuple[Any, ...]  # as `StreamedTest.update` takes them


class Shards(NamedTuple):
    """The shards of a folder in the order of their names, as batches of at most ``size`` rows.

    Attributes:
        files: The files; of .npy the targets of each shard.
        kind: "parquet", "npz" or "npy".
        rows: Number of rows of each.
        size: Rows of a batch, at most; no batch holds rows of two shards.
    """

    files: tuple[Path, ...]
    kind: str
    rows: tuple[int, ...]
    size: int

    def number(self) -> int:
        """The number of batches, for a progress bar; of Parquet about that."""
        return sum(-(-rows // self.size) for rows in self.rows)

    def batches(self) -> Iterator[Batch]:
        """Predictions, targets and, where 'features' tell predictions apart, these. Raises BadFile,
        naming the shard, for one that cannot be used or is of other columns or classes."""
        if self.kind == "parquet":
            yield from parquet_batches(list(self.files), self.size)
            return
        first = None
        for shard in self.files:
            arrays = _npz(shard) if self.kind == "npz" else _npy(shard)
            form = {name: (array.shape[1:], array.dtype.kind) for name, array in arrays.items()}
            first = form if first is None else first
            if form != first:
                raise BadFile(
                    f"{shard}: holds {_said(form)}, where the first shard has {_said(first)}"
                )
            files = [shard] if self.kind == "npz" else _npy_files(shard).values()
            line = shard_line(shard, len(arrays[TARGETS]), files)
            for start in range(0, len(arrays[TARGETS]), self.size):
                rows = slice(start, start + self.size)
                cut = {name: array[rows] for name, array in arrays.items()}
                yield ShardBatch.of(line, *_batch(shard, cut))

    def first(self, rows: int) -> Batch:
        """The first so many rows together, or all: the same whatever the size of a batch."""
        parts, count = [], 0
        for batch in self.batches():
            parts.append(batch)
            count += len(batch[1])
            if count >= rows:
                break
        if count < 2:
            raise BadFile(f"{self.files[0].parent}: a test needs at least 2 observations")
        return tuple(_joined(column, rows) for column in zip(*parts, strict=True))


def open_shards(path: Path, size: int) -> Shards:
    """The shards of a folder, or of one Parquet file.

    Args:
        path: A Parquet file, or a folder of .parquet, .npz or .npy files. Of .npy files each array
            is one, and the names of a shard begin alike: ``a-targets.npy``,
            ``a-probabilities.npy``. Arrays: 'targets' with 'probabilities' (and integer targets),
            or with 'scores' and one of 'node_scores' and 'features'.
        size: Rows of a batch.

    Returns:
        `Shards`.

    Raises:
        BadFile: There is no shard, more than one kind, or one that cannot be read; named.
    """
    if not path.exists():
        raise BadFile(f"{path}: no such file or folder")
    if not path.is_dir():
        kinds = [path.suffix.lower().removeprefix(".")]
    else:
        kinds = [kind for kind in KINDS if any(path.glob(f"*.{kind}"))]
        if len(kinds) != 1:
            what = " and ".join(f".{kind}" for kind in kinds) or "none"
            raise BadFile(
                f"{path}: a folder; wanted shards of one kind in it, .parquet, .npz or .npy, got "
                f"{what}"
            )
    kind = kinds[0]
    if kind == "parquet":
        files, count = tuple(_parquet(path)), _parquet_rows
    elif kind == "npz":
        files, count = tuple(sorted(path.glob("*.npz")) if path.is_dir() else [path]), _npz_rows
    else:
        files, count = tuple(sorted(path.glob(f"*{TARGETS}.npy"))), _npy_rows
        if not files:
            raise BadFile(f"{path}: no .npy file whose name ends in '{TARGETS}'")
    return Shards(files, kind, tuple(count(file) for file in files), size)


def run(
    path: Path,
    *,
    seed: int,
    level: float,
    size: int,
    rows: int,
    features: int,
    state: Path | None,
) -> StreamResult:
    """The linear-time test of shards, fitted to their first rows, in one pass.

    Args:
        path: As in `open_shards`.
        seed: Random seed of the fit.
        level: Level of the test.
        size: Rows of a batch.
        rows: Rows of the first sample, at most.
        features: Number of random features.
        state: File that holds the sums so far, every ten batches; the pass goes on from it at the
            next row, with batches of any size.

    Returns:
        `StreamResult`, computed in the type of the first batch.

    Raises:
        BadFile: A shard or the state cannot be used, or the state holds other shards; named.
    """
    shards = open_shards(path, size)
    sample = shards.first(rows)
    with jax.enable_x64(_kind(sample) == "float64"):
        try:
            test, as_first = _fitted(seed, sample, features)
            batches = _Counted(map(as_first, shards.batches()), shards.number())
            total = test.run(batches, checkpoint=state, every=10, progress=True)
            result = test.result(total, level=level)
            assert isinstance(result, StreamResult)
            return result
        except ValueError as error:
            at_fault = state if str(error).startswith(("other: ", "batches: ")) else path
            said = " ".join(str(error).split())
            raise BadFile(said if str(path) in said else f"{at_fault}: {said}") from None


@dataclass(frozen=True)
class _Counted:
    """An iterator of a known length, for the bar."""

    batches: Iterator[Batch]
    number: int

    def __iter__(self) -> Iterator[Batch]:
        return self.batches

    def __len__(self) -> int:
        return self.number


def _fitted(
    seed: int, sample: Batch, features: int
) -> tuple[StreamedTest, Callable[[Batch], Batch]]:
    """The test that fits the arrays of a first sample, and a function that brings every batch to
    the type of that."""
    kind, random = _kind(sample), RandomFeatures(seed, features)

    def as_first(batch: Batch) -> Batch:
        return ShardBatch.of(getattr(batch, "shard", ""), *converted(*batch))

    def converted(predictions: Any, targets: np.ndarray, *rest: np.ndarray) -> Batch:
        if not isinstance(predictions, Scores):
            return predictions.astype(kind), targets
        at_nodes = predictions.at_nodes
        scores = Scores(
            predictions.at_targets.astype(kind), None if at_nodes is None else at_nodes.astype(kind)
        )
        return (scores, targets.astype(kind), *(inputs.astype(kind) for inputs in rest))

    sample = converted(*sample)
    if not isinstance(sample[0], Scores):
        return StreamedTest.skce(seed, *sample, features=random), as_first
    test = StreamedTest.kcsd if len(sample) == 3 else StreamedTest.kccsd
    return test(seed, *sample, features=random), as_first


def _kind(batch: Batch) -> np.dtype:
    predictions = batch[0]
    return (predictions.at_targets if isinstance(predictions, Scores) else predictions).dtype


def _parquet(path: Path) -> list[Path]:
    try:
        return parquet_shards(path)
    except ImportError:
        raise BadFile(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from None


def _parquet_rows(shard: Path) -> int:
    import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

    return pq.read_metadata(shard).num_rows


def _npz_rows(shard: Path) -> int:
    try:
        with zipfile.ZipFile(shard) as archive, archive.open(f"{TARGETS}.npy") as file:
            head = io.BytesIO(file.read(1000))
        version = np.lib.format.read_magic(head)
        reader = np.lib.format.read_array_header_1_0
        return (reader if version == (1, 0) else np.lib.format.read_array_header_2_0)(head)[0][0]
    except (*UNREADABLE, IndexError):
        raise BadFile(f"{shard}: not a whole .npz archive with an array '{TARGETS}'") from None


def _npy_rows(shard: Path) -> int:
    return len(_mapped(shard))


def _mapped(file: Path) -> np.ndarray:
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except UNREADABLE:
        raise BadFile(f"{file}: not a whole .npy array of numbers") from None
    if not array.ndim:
        raise BadFile(f"{file}: one number; wanted an array with a row an observation")
    return array


def _npz(shard: Path) -> dict[str, np.ndarray]:
    arrays, _ = arrays_file.load(shard, ARRAYS)
    return _whole(shard, arrays)


def _npy(shard: Path) -> dict[str, np.ndarray]:
    """The arrays whose file names begin as that of these targets."""
    return _whole(shard, {name: _mapped(file) for name, file in _npy_files(shard).items()})


def _npy_files(shard: Path) -> dict[str, Path]:
    before = shard.name.removesuffix(f"{TARGETS}.npy")
    files = {name: shard.with_name(f"{before}{name}.npy") for name in ARRAYS}
    return {name: file for name, file in files.items() if file.exists()}


def _whole(shard: Path, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays that make a test, of as many rows each."""
    scores = {"scores", "node_scores"}, {"scores", "features"}
    if set(arrays) - {TARGETS} not in ({PROBABILITIES}, *scores) or TARGETS not in arrays:
        raise BadFile(
            f"{shard}: wanted '{TARGETS}' with '{PROBABILITIES}', or with 'scores' and one of "
            f"'node_scores' and 'features', got {', '.join(sorted(arrays)) or 'none of these'}"
        )
    if len({len(array) if array.ndim else -1 for array in arrays.values()}) != 1:
        shapes = ", ".join(f"'{name}' {array.shape}" for name, array in arrays.items())
        raise BadFile(f"{shard}: arrays of different lengths: {shapes}")
    for name, array in arrays.items():
        wanted = "iu" if name == TARGETS and PROBABILITIES in arrays else "f"
        if array.dtype.kind not in wanted:
            words = "whole numbers" if wanted == "iu" else "float32 or float64"
            raise BadFile(f"{shard}: '{name}' is {array.dtype}; wanted {words}")
    return arrays


def _batch(shard: Path, arrays: dict[str, np.ndarray]) -> Batch:
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    targets = arrays[TARGETS]
    if PROBABILITIES in arrays:
        rows = arrays[PROBABILITIES]
        if rows.ndim != 2:
            raise BadFile(f"{shard}: '{PROBABILITIES}' has shape {rows.shape}; wanted [n, m]")
        if fault := not_probabilities(rows, targets, rows.shape[1]):
            raise BadFile(f"{shard}: {fault}")
        return rows, targets
    scores = Scores(arrays["scores"], arrays.get("node_scores"))
    return (scores, targets, *([arrays["features"]] if "features" in arrays else []))


def _joined(column: tuple[Any, ...], rows: int) -> Any:
    if not isinstance(column[0], Scores):
        return np.concatenate(column)[:rows]
    at_targets, at_nodes = ([getattr(x, n) for x in column] for n in ("at_targets", "at_nodes"))
    return Scores(
        np.concatenate(at_targets)[:rows],
        None if at_nodes[0] is None else np.concatenate(at_nodes)[:rows],
    )


def _said(form: Contents) -> str:
    return ", ".join(f"'{name}' [n{''.join(f', {k}' for k in s)}]" for name, (s, _) in form.items())
