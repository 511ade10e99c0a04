"""Read the batches of a test from the files of a folder or a bucket."""

import math
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxcal.read import convert
from jaxcal.streaming import arrays_file
from jaxcal.streaming.arrays_file import UNREADABLE, BadFile
from jaxcal.streaming.batches import ShardBatch
from jaxcal.streaming.columns import (
    ARRAYS,
    TARGETS,
    Arrays,
    Columns,
    arrays_of,
    batch_of,
    checked,
    columns_of,
    faults,
)

TABLES, KINDS = ("parquet", "csv"), ("parquet", "csv", "npz", "npy")
SAMPLED = 32  # with at least this many shards, a first sample is drawn from 32 to 63 of them
Batch = tuple[Any, ...]  # as `StreamedTest.update` takes them


class Shards:
    """Read shards of one kind, in the order of their names, as batches for `StreamedTest.run`.

    A shard is a file, or several .npy files. Pyarrow reads Parquet and CSV files (also .csv.gz),
    NumPy .npz and .npy. Subfolders are read too; one named like ``day=1/`` adds a column ``day``. A
    batch never spans two shards. States record the name, size and checksum of each shard, so that a
    resumed pass refuses other shards; for the checksum each shard is read twice.
    `StreamedTest.run` pads the last batch of a shard with copies of a row that do not count, which
    saves compilations. After a pass, ``left_out`` counts the rows left out, and ``fault`` describes
    the first.

    Args:
        path: A folder, a file, or (for Parquet and CSV) a URI of ``pyarrow.fs``: s3://, gs://,
            hdfs://, file://. A shard in .npy files has one file per array, with a common prefix:
            ``a-targets.npy``, ``a-probabilities.npy``.
        size: Number of rows of a batch.
        columns: Texts "KEY=NAME" for the columns of a table: "label=outcome", "0=p_alive",
            "1=p_dead", or "target=y", "mean=mu", "deviation=sigma". By default columns with the
            names of arrays (targets with probabilities, scores and features, or mean and
            deviation), p0, p1, .. for classes, or p for label 1 of two.
        share: (i, N): read only part i of the shards, divided into N parts numbered from 1.
        skip_bad: Leave out and count unusable rows. By default the first one raises an error.

    Raises:
        BadFile: There is no shard, there are several kinds, or a shard cannot be read. During a
            pass: a row is unusable (shard and row are named, rows counted from 0), two shards have
            the same content, or a shard changed while it was read. After a pass over all shards: a
            single column has probabilities, and its class is none of the two or more labels.

    Example:
        >>> import tempfile, pathlib, pyarrow as pa, pyarrow.parquet
        >>> from jaxcal.streaming import Shards
        >>> table = pa.table({"p0": [0.5, 0.9], "p1": [0.5, 0.1], "label": [0, 1]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pa.parquet.write_table(table, pathlib.Path(folder) / "part-0.parquet")
        ...     [p.shape for p, labels in Shards(folder, 2)]
        [(2, 2)]
    """

    def __init__(
        self,
        path: Path | str,
        size: int = 10_000,
        *,
        columns: Sequence[str] = (),
        share: tuple[int, int] = (1, 1),
        skip_bad: bool = False,
    ) -> None:
        if not isinstance(path, str | PathLike):
            raise TypeError(f"path: wanted a folder, a file or a URI, got {path!r:.60}")
        self.path, self.size, self.skip_bad = str(path), convert.integer(size, "size"), skip_bad
        self.left_out, self.fault = 0, ""
        self._widths: dict[str, int] = {}
        self._form: dict[str, Any] = {}
        self._seen: set[str] = set()
        self._system, self._base, self.kind, self.paths = _listed(self.path)
        i, n = share
        if not 1 <= i <= n <= len(self.paths):
            raise BadFile(
                f"{path}: share {i}/{n}: wanted i/N with i from 1 to N, and N at most the number "
                f"of shards, {len(self.paths)}"
            )
        self._before, end = (len(self.paths) * k // n for k in (i - 1, i))
        self.mine = self.paths[self._before : end]
        self._columns = Columns({}, {})
        if self.kind in TABLES:
            self._columns = columns_of(self._dataset(self.paths[0], ()).schema.names, columns)
        elif columns:
            raise BadFile(f"{path}: columns are those of tables (.parquet, .csv)")
        if self.kind == "parquet":  # the footers of the files hold their numbers of rows
            self._rows = [self._count(path) for path in self.mine]

    def __length_hint__(self) -> int:
        """Return the number of batches, for a progress bar; 0 if it is unknown before the pass."""
        rows = self._rows if self.kind == "parquet" else []
        return sum(-(-n // self.size) for n in rows)

    @property
    def names(self) -> list[str]:
        """Names of all shards, including those outside ``share``."""
        return [self._name(path) for path in self.paths]

    @property
    def columns(self) -> list[str]:
        """Texts "KEY=NAME" of the columns that are read; [] for arrays."""
        return self._columns.chosen

    def first_row(self) -> int:
        """Return the number of rows before this share: the row number of its first row."""
        counts = (self.left_out, self.fault)
        row = sum(self._count(path) for path in self.paths[: self._before])
        self.left_out, self.fault = counts
        return row

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of this share."""
        if not self._form:  # set by the first shard of all shares
            next(self._usable(self.paths[0]), None)
        self.left_out, self.fault = 0, ""
        seen: dict[str, str] = {}
        for path in self.mine:
            info, line = self._state_of(path), self._line(path)
            content = line.removeprefix(f"{self._name(path)}, ")
            if (twin := seen.setdefault(content, path)) != path:
                raise BadFile(f"{path}: the same rows as in {twin}, which would count twice")
            for arrays in self._cut(self._usable(path)):
                yield ShardBatch.of(line, self.size, *batch_of(arrays))
            if self._state_of(path) != info:
                raise BadFile(f"{path}: changed while it was read")
        whole = len(self.mine) == len(self.paths)  # a share may lack a rare class
        if whole and len(self._seen) > 1 and self._seen.isdisjoint(self._columns.classes):
            labels, (one,) = ", ".join(f"'{k}'" for k in sorted(self._seen)), self._columns.classes
            raise BadFile(
                f"{self.path}: '{one}' is none of the labels ({labels}, ..): name the class whose "
                f"probability a single column holds as its label, --columns LABEL=NAME"
            )

    def sample(self, rows: int, seed: int = 0) -> Arrays:
        """Return arrays by name, of about ``rows`` random rows from at most 63 shards."""
        step = max(len(self.paths) // SAMPLED, 1)
        chosen, random, parts = self.paths[::step], np.random.default_rng(seed), []
        counts = (self.left_out, self.fault)
        for path in chosen:
            want = -(-rows // len(chosen))
            parts += [arrays for arrays in self._usable(path, want, random) if len(arrays[TARGETS])]
        self.left_out, self.fault = counts
        if not parts:
            raise BadFile(f"{self.path}: no rows")
        return _joined(parts)

    def _usable(
        self, path: str, want: int = 0, random: np.random.Generator | None = None
    ) -> Iterator[Arrays]:
        """Yield the usable rows of a shard; with ``random``, those among ``want`` drawn rows."""
        start = 0
        for arrays, read, rows in self._read(path, want, random):
            place = start + np.arange(len(read)) if rows is None else rows
            start += len(read)
            arrays, wrong = self._like_first(path, arrays), faults(arrays, read)
            good = ~np.any([rows for _, rows in wrong], axis=0)
            if not np.all(good):
                k = int(np.argmin(good))
                what = next(what for what, rows in wrong if rows[k])
                said = f"{path}: row {place[k]} {what}"
                if not self.skip_bad:
                    raise BadFile(
                        f"{said}: --skip-bad (skip_bad=True) leaves such rows out and counts them"
                    )
                self.fault = self.fault or said
            self.left_out += int(np.sum(~good))
            yield {name: array[good] for name, array in arrays.items()}

    def _read(self, path: str, want: int, random: np.random.Generator | None) -> Iterator[Any]:
        """Yield arrays of a shard, a mask of readable rows, and the drawn row numbers or None."""
        import pyarrow as pa  # pyright: ignore[reportMissingImports]

        def drawn(n: int) -> np.ndarray | None:
            return None if random is None else np.sort(random.permutation(n)[:want])

        try:
            if self.kind in TABLES:
                data = self._dataset(path, self._columns.names)
                scanner = data.scanner(columns=self._columns.names, batch_size=self.size)
                rows = drawn(data.count_rows()) if random is not None else None
                tables = scanner.to_batches() if rows is None else [scanner.take(pa.array(rows))]
                for table in tables:
                    if len(table):
                        yield *arrays_of(table, self._columns, self._widths, self._seen), rows
                return
            if self.kind == "npz":
                arrays, _ = arrays_file.load(Path(path), ARRAYS)
            else:
                arrays = {n: _mapped(file) for n, file in _npy_files(path).items()}
            arrays = checked(arrays)
        except (OSError, pa.ArrowException) as error:
            raise BadFile(f"{path}: damaged ({str(error).splitlines()[0]})") from None
        except BadFile as error:
            text = str(error)
            raise BadFile(text if path in text else f"{path}: {text}") from None
        rows = drawn(len(arrays[TARGETS]))
        arrays = arrays if rows is None else {name: a[rows] for name, a in arrays.items()}
        yield arrays, np.ones(len(arrays[TARGETS]), bool), rows

    def _like_first(self, path: str, arrays: Arrays) -> Arrays:
        """Return the arrays in the float type of the first shard read; BadFile if shapes differ."""
        form = {name: (array.shape[1:], array.dtype.kind) for name, array in arrays.items()}
        if not self._form:
            kind = np.result_type(*(a for a in arrays.values() if a.dtype.kind == "f"))
            self._form = {"form": form, "kind": kind}
        if form != self._form["form"]:
            said, first = (
                ", ".join(f"'{k}' [n{''.join(f', {n}' for n in s)}]" for k, (s, _) in each.items())
                for each in (form, self._form["form"])
            )
            raise BadFile(f"{path}: holds {said}, where the first shard has {first}")
        for name in ("mean", "deviation"):
            shape, event = (
                arrays[one].shape[1:] if one in arrays else () for one in (name, TARGETS)
            )
            if shape not in (event, ()) and math.prod(shape) != math.prod(event):
                raise BadFile(
                    f"{path}: '{name}' has shape {arrays[name].shape} for '{TARGETS}' of shape "
                    f"{arrays[TARGETS].shape}: wanted a number, or one for each coordinate"
                )
        kind = self._form["kind"]
        return {k: a.astype(kind) if a.dtype.kind == "f" else a for k, a in arrays.items()}

    def _cut(self, parts: Iterator[Arrays]) -> Iterator[Arrays]:
        """Yield the rows of ``parts``, regrouped to ``size`` rows each; the last may have fewer."""
        waiting: list[Arrays] = []
        n = 0
        for part in parts:
            waiting.append(part)
            n += len(part[TARGETS])
            if n >= self.size:
                joined = _joined(waiting)
                stop = n - n % self.size
                for start in range(0, stop, self.size):
                    yield {k: a[start : start + self.size] for k, a in joined.items()}
                waiting, n = [{k: a[stop:] for k, a in joined.items()}], n % self.size
        if n:
            yield _joined(waiting)

    def _dataset(self, path: str, columns: Sequence[str]) -> Any:
        """Return a shard as a pyarrow dataset, with all columns of a CSV file as texts."""
        import pyarrow as pa  # pyright: ignore[reportMissingImports]
        import pyarrow.csv as pc  # pyright: ignore[reportMissingImports]
        import pyarrow.dataset as ds  # pyright: ignore[reportMissingImports]

        form, schema = ds.ParquetFileFormat(), None
        hive = {"filesystem": self._system, "partitioning": "hive"}
        try:
            if self.kind == "csv":
                skip = (lambda row: "skip", partial(self._ragged, path))
                texts = [
                    ds.CsvFileFormat(parse_options=pc.ParseOptions(invalid_row_handler=handler))
                    for handler in (skip if self.skip_bad else (None, None))
                ]
                form, names = texts[1], ds.dataset(path, format=texts[0], **hive).schema.names
                schema = pa.schema([(name, pa.string()) for name in names])
            data = ds.dataset(path, format=form, schema=schema, **hive)
        except (OSError, pa.ArrowException) as error:
            said = str(error).splitlines()[0]
            raise BadFile(f"{path}: not a whole {self.kind} file ({said})") from None
        if missing := [name for name in columns if name not in data.schema.names]:
            names = ", ".join(data.schema.names)
            raise BadFile(f"{path}: the column '{missing[0]}' is missing; it holds {names}")
        return data

    def _ragged(self, path: str, row: Any) -> str:
        """Count a line of a CSV file with a wrong number of entries, and return "skip"."""
        self.left_out += 1
        said = f"{path}: line '{row.text[:60]}' has {row.actual_columns} entries"
        self.fault = self.fault or said
        return "skip"

    def _count(self, path: str) -> int:
        if self.kind in TABLES:
            return self._dataset(path, self._columns.names).count_rows()
        if self.kind == "npz":
            return len(arrays_file.load(Path(path), [TARGETS])[0][TARGETS])
        return len(_mapped(Path(path)))

    def _name(self, path: str) -> str:
        return path.removeprefix(self._base).lstrip("/") or path.rpartition("/")[2]

    def _line(self, path: str) -> str:
        """Return the name, size and checksum of a shard as one text."""
        checksum, n = 0, 0
        files = map(str, _npy_files(path).values()) if self.kind == "npy" else [path]
        for file in files:
            with self._system.open_input_stream(file, compression=None) as stream:
                while part := stream.read(1 << 20):
                    checksum, n = zlib.crc32(part, checksum), n + len(part)
        return f"{self._name(path)}, {n} bytes, checksum {checksum:08x}"

    def _state_of(self, path: str) -> tuple[Any, Any]:
        info = self._system.get_file_info(path)
        return info.size, info.mtime_ns


def _listed(path: str) -> tuple[Any, str, str, list[str]]:
    """Return the file system, the path in it, and the kind and sorted paths of the shards."""
    try:
        import pyarrow as pa  # pyright: ignore[reportMissingImports]
        from pyarrow import fs  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise BadFile(f"{path}: reading shards needs pyarrow: pip install pyarrow") from None
    try:
        if "://" in path:
            system, base = fs.FileSystem.from_uri(path)
        else:
            system, base = fs.LocalFileSystem(), Path(path).absolute().as_posix()
        info = system.get_file_info(base)
        if info.type == fs.FileType.NotFound:
            raise BadFile(f"{path}: no such file or folder")
        inside = [info]
        if not info.is_file:
            inside = system.get_file_info(fs.FileSelector(base, recursive=True))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise BadFile(f"{path}: cannot be opened ({str(error).splitlines()[0]})") from None
    files = sorted(each.path for each in inside if each.is_file)
    kinds = {kind: [file for file in files if _is(file, kind)] for kind in KINDS}
    present = [kind for kind, files in kinds.items() if files]
    if len(present) != 1:
        raise BadFile(
            f"{path}: wanted shards of one kind, .parquet, .csv, .npz or .npy, got "
            f"{' and '.join(f'.{kind}' for kind in present) or 'none'}"
        )
    paths = kinds[present[0]]
    if present == ["npy"] and not (
        paths := [file for file in paths if file.endswith(f"{TARGETS}.npy")]
    ):
        raise BadFile(f"{path}: no .npy file whose name ends in '{TARGETS}'")
    if present[0] not in TABLES and "://" in path:
        raise BadFile(f"{path}: .{present[0]} files are read from local folders only")
    return system, base, present[0], paths


def _is(file: str, kind: str) -> bool:
    name = file.rpartition("/")[2].lower().removesuffix(".gz")
    return name.endswith(f".{kind}") and not name.startswith((".", "_"))


def _npy_files(targets: str) -> dict[str, Path]:
    """Return the files of arrays, by name, that share the prefix of the file ``targets``."""
    before = targets.removesuffix(f"{TARGETS}.npy")
    files = {name: Path(f"{before}{name}.npy") for name in ARRAYS}
    return {name: file for name, file in files.items() if file.exists()}


def _mapped(file: Path) -> np.ndarray:
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except UNREADABLE:
        raise BadFile(f"{file}: not a whole .npy array of numbers") from None


def _joined(parts: list[Arrays]) -> Arrays:
    return (
        parts[0]
        if len(parts) == 1
        else {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
    )
