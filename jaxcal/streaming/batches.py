"""Batches from arrays on disk or in memory, and from Parquet files."""

import zlib
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PyTree

from jaxcal.read import checks
from jaxcal.streaming.arrays_file import BadFile

TARGETS, PROBABILITIES = "targets", "probabilities"


class ShardBatch(tuple):
    """A batch that says in ``shard`` which file it came from, as `shard_line` does."""

    shard: str

    @classmethod
    def of(cls, shard: str, *parts: Any) -> "ShardBatch":
        batch = cls(parts)
        batch.shard = shard
        return batch


def shard_line(name: Path, rows: int, files: Iterable[Path]) -> str:
    """Name, number of rows and checksum of a shard: of another content it is another line."""
    checksum = 0
    for path in files:
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                checksum = zlib.crc32(part, checksum)
    return f"{name.name}, {rows} rows, checksum {checksum:08x}"


def array_batches(size: int, *arrays: Any) -> Iterator[tuple[Any, ...]]:
    """Consecutive batches of arrays with the same leading axis, such as memory-mapped ones.

    Args:
        size: Rows of a batch.
        *arrays: NumPy, memory-mapped or JAX arrays; only one batch of each is read at a time.

    Yields:
        Tuples of slices; the last may be shorter.

    Raises:
        ValueError: leading axes disagree.
        TypeError: something is no array, or has no axis.

    Example:
        >>> import numpy as np
        >>> from jaxcal.streaming import array_batches
        >>> [len(x) for x, y in array_batches(4, np.zeros((10, 2)), np.zeros(10))]
        [4, 4, 2]
    """
    size = checks.integer(size, "size")
    if not arrays or any(
        not hasattr(array, "__len__") or getattr(array, "shape", None) == () for array in arrays
    ):
        came = ", ".join(map(checks.say, arrays)) or "none"
        raise TypeError(f"arrays: wanted one array or more, got {came}")
    if len({len(array) for array in arrays}) != 1:
        raise ValueError(f"arrays: leading axes must agree, got {[len(array) for array in arrays]}")
    for start in range(0, len(arrays[0]), size):
        yield tuple(array[start : start + size] for array in arrays)


def to_come(
    batches: Iterator[PyTree], n: int, held: tuple[str, ...]
) -> Iterator[tuple[int, PyTree, int, tuple[str, ...]]]:
    """Batches with rows beyond the first n, which came from the shards ``held``.

    Args:
        batches: All batches, also those that are done.
        n: Number of rows that are done.
        held: The shards they came from, as in `ShardBatch.shard`.

    Yields:
        Number of the batch, the batch, how many of its rows are done, and the shards up to it.

    Raises:
        ValueError: the first n rows are not there, or come from other shards; named.
    """
    done, shards, last = n, (), None
    for number, batch in enumerate(batches):
        shard = getattr(batch, "shard", "")
        if shard != last:
            before, last = held[len(shards)] if len(shards) < len(held) else "", shard
            if done and shard != before:
                raise ValueError(
                    f"batches: {shard or 'rows of no file'} where the state has "
                    f"{before or 'rows of no file'}: shards that are done were added, deleted or "
                    f"changed: put them back, or start without the state"
                )
            shards = (*shards, shard) if shard else shards
        if done and done >= len(batch[1]):
            done -= len(batch[1])
        else:
            yield number, batch, done, shards
            done = 0
    if done:
        raise ValueError(
            f"batches: they end after {n - done} rows, where the state has {n}"
            + "".join(f"; next in it is {shard}" for shard in held[len(shards) :][:1])
        )


def parquet_shards(path: Path | str) -> list[Path]:
    """The Parquet files of a folder in the order of their names, or the one file, all looked at.

    Args:
        path: A folder or a file.

    Returns:
        The files.

    Raises:
        BadFile: A file is no Parquet file, or lacks the columns ``targets`` (integers) and
            ``probabilities`` (lists of numbers); every such file is named.

    Example:
        >>> import tempfile, pathlib, pyarrow as pa, pyarrow.parquet
        >>> from jaxcal import streaming
        >>> table = pa.table({"probabilities": [[0.5, 0.5], [0.9, 0.1]], "targets": [0, 1]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pa.parquet.write_table(table, pathlib.Path(folder) / "part-0.parquet")
        ...     [shard.name for shard in streaming.parquet_shards(folder)]
        ['part-0.parquet']
    """
    if not isinstance(path, str | PathLike):
        raise TypeError(f"path: wanted a folder or a file, got {path!r:.60}")
    path = Path(path)
    shards = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not shards:
        raise BadFile(f"{path}: the folder holds no file whose name ends in .parquet")
    faults = [fault for shard in shards if (fault := _fault(shard))]
    if faults:
        raise BadFile("; ".join(faults))
    return shards


def _fault(shard: Path) -> str | None:
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
    import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

    try:
        schema = pq.read_schema(shard)
    except FileNotFoundError:
        return f"{shard}: no such file"
    except (OSError, pa.ArrowException) as error:
        return f"{shard}: not a whole Parquet file ({str(error).splitlines()[0]})"
    for name in (TARGETS, PROBABILITIES):
        if name not in schema.names:
            return f"{shard}: the column '{name}' is missing; it holds {', '.join(schema.names)}"
    kind = schema.field(TARGETS).type
    if not pa.types.is_integer(kind):
        return f"{shard}: '{TARGETS}' is {kind}; wanted integer classes"
    kind = schema.field(PROBABILITIES).type
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_kind(kind) for is_kind in lists):
        return f"{shard}: '{PROBABILITIES}' is {kind}; wanted lists of numbers, one a class"
    return None


def parquet_batches(shards: list[Path], size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Class probabilities and labels from Parquet files, a batch at a time.

    Args:
        shards: Files as `parquet_shards` returns them.
        size: Rows of a batch, at most.

    Yields:
        Probabilities, [n, m], and labels, [n]. `StreamedTest.run` knows the shard they came from:
        a pass that goes on refuses other shards than those it has done.

    Raises:
        BadFile: a shard is damaged, or holds missing values or rows of different lengths; named.

    Example:
        >>> import tempfile, pathlib, pyarrow as pa, pyarrow.parquet
        >>> from jaxcal import streaming
        >>> table = pa.table({"probabilities": [[0.5, 0.5], [0.9, 0.1]], "targets": [0, 1]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pa.parquet.write_table(table, pathlib.Path(folder) / "part-0.parquet")
        ...     shards = streaming.parquet_shards(folder)
        ...     [p.shape for p, labels in streaming.parquet_batches(shards, 100)]
        [(2, 2)]
    """
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
    import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

    classes = None
    for shard in shards:
        try:
            with pq.ParquetFile(shard) as file:
                line = shard_line(shard, file.metadata.num_rows, [shard])
                for batch in file.iter_batches(size, columns=[PROBABILITIES, TARGETS]):
                    lists, targets = batch.column(0), batch.column(1)
                    if lists.null_count or targets.null_count:
                        raise BadFile(f"{shard}: missing values")
                    flat = lists.flatten().to_numpy(zero_copy_only=False)
                    if not len(targets):
                        continue
                    if classes is None:
                        classes = len(flat) // len(targets)
                    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
                    if np.any(lengths != classes):
                        raise BadFile(
                            f"{shard}: '{PROBABILITIES}' has rows of {min(lengths)} to "
                            f"{max(lengths)} classes, where the first row of all has {classes}"
                        )
                    rows = flat.reshape(len(targets), classes)
                    fault = not_probabilities(rows, targets.to_numpy(), classes)
                    if fault:
                        raise BadFile(f"{shard}: {fault}")
                    yield ShardBatch.of(line, rows, targets.to_numpy())
        except (OSError, pa.ArrowException) as error:
            raise BadFile(f"{shard}: damaged ({str(error).splitlines()[0]})") from None


def not_probabilities(rows: np.ndarray, targets: np.ndarray, classes: int) -> str | None:
    """What is wrong with class probabilities and labels, if anything."""
    if np.any((targets < 0) | (targets >= classes)):
        return f"'{TARGETS}' holds classes outside 0..{classes - 1}"
    if not np.all((rows >= 0) & (np.abs(rows.sum(1, keepdims=True) - 1) < 1e-3)):
        return f"'{PROBABILITIES}' holds rows that are no probabilities"
    return None
