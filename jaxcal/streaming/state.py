"""Merge, save and load the sums of a pass over batches, and add them up over processes."""

import functools
import itertools
import math
import pickle
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax._src import distributed  # the key-value store has no public name
from jax.experimental.multihost_utils import process_allgather
from jaxtyping import PyTree

from jaxcal.coverage import Coverage, of_counts, ranks_of
from jaxcal.dce.table import Table
from jaxcal.read import checks, convert
from jaxcal.results import Result, replacing
from jaxcal.typing import Contents

LATE = 30.0  # seconds between two printed lines that name the missing processes
_numbers = itertools.count()  # numbers the calls of `gathered`, the same in all processes


def same_test(fingerprint: int) -> None:
    """Raise ValueError if the processes have fitted different tests.

    The first call connects the processes, for which JAX allows 30 seconds; once connected, they
    wait for each other without a time limit. Does nothing if there is only one process.
    """
    if jax.process_count() > 1:
        fingerprints = gathered(np.array([fingerprint], np.uint32))
        if np.any(fingerprints != fingerprint):
            raise ValueError(
                "state: the processes have fitted different tests: give all of them the same first "
                "sample, key and options"
            )


def gathered(values: np.ndarray) -> np.ndarray:
    """Return the arrays [k] of all processes as one array [processes, k] of the same type.

    While this process waits, it names the missing processes on stderr every `LATE` seconds.

    Raises:
        RuntimeError: A process, named in the message, has ended or did not connect in time.
    """
    folder = f"jaxcal/{next(_numbers)}"
    _store().key_value_set(f"{folder}/{jax.process_index()}", "here")
    came = threading.Event()
    threading.Thread(target=_say_who_is_late, args=(folder, came), daemon=True).start()
    try:
        # as bytes: JAX would round float64 to float32 on the way
        return process_allgather(values.view(np.uint8)).view(values.dtype)
    except (ValueError, RuntimeError) as error:
        if not (missing := _missing(folder)):
            raise
        if jax.process_index() == 0:
            time.sleep(2)  # keeps the store alive while the other processes look up who is missing
        raise RuntimeError(
            f"over_processes: a process has ended, or came more than 30 seconds after the first to "
            f"fit its test; not here: {missing} ({' '.join(str(error).split())[:100]} ..)"
        ) from None
    finally:
        came.set()


def _say_who_is_late(folder: str, came: threading.Event) -> None:
    seconds = 0.0
    while not came.wait(LATE):
        seconds += LATE
        if missing := _missing(folder):
            print(f"jaxcal: waiting for {missing} since {seconds:g} s", file=sys.stderr, flush=True)


def _missing(folder: str) -> str:
    """Return the processes that a call of `gathered` waits for: "process 1 of 0 .. 3", or ""."""
    count = jax.process_count()
    try:
        here = _store().key_value_dir_get(f"{folder}/")
    except RuntimeError:
        here = [(f"/{rank}", "") for rank in range(1, count)]  # process 0 holds the store
    late = sorted(set(range(count)) - {int(key.rpartition("/")[2]) for key, _ in here})
    names = ", ".join(map(str, late))
    return f"process{'es' * (len(late) > 1)} {names} of 0 .. {count - 1}" if late else ""


def _store() -> Any:
    return distributed.global_state.client


Span = tuple[int, int]  # the row numbers start, .., stop - 1
PARTS = ("sums", "least", "fitted_to")  # dicts in a state
MOST_SPANS = 1000  # most separate spans of row numbers in a state


@dataclass(frozen=True)
class StreamState:
    """Sums over the observations processed so far, in float64 on the host.

    States of different observations can be merged in any order; the order matters only by rounding.

    Attributes:
        fingerprint: Identifies the fitted test; states of different tests do not add up.
        n: Number of observations in the sums, which a resumed pass skips.
        shards: Name, size and checksum of each shard that was read, in order; empty for
            observations that are not from files, and after `over_processes`.
        rows: Spans [start, stop) of the row numbers of the observations. Empty if no draws depend
            on row numbers and ``first`` was not passed.
        sums: Sums by name.
        least: Minima by name.
        fitted_to: Arrays that the test was fitted to, by name, if the state stores them.
        left_out: Number of unusable rows that were left out.

    Example:
        >>> import numpy as np
        >>> from jaxcal.streaming import StreamState
        >>> one = StreamState(7, 2, (), ((0, 2),), {"x": np.ones(3)}, {})
        >>> other = StreamState(7, 3, (), ((2, 5),), {"x": np.ones(3)}, {})
        >>> one.merge(other).rows
        ((0, 5),)
    """

    fingerprint: int
    n: int
    shards: tuple[str, ...] = field(repr=False)
    rows: tuple[Span, ...]
    sums: dict[str, np.ndarray] = field(repr=False)
    least: dict[str, float] = field(repr=False)
    fitted_to: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    left_out: int = 0

    def merge(self, other: "StreamState") -> "StreamState":
        """Return the state of the observations of this state and of another one.

        Args:
            other: A state of the same test, from other observations.

        Raises:
            ValueError: The other state belongs to another test, or shares a shard or a row with
                this one.
        """
        alike = self.sums.keys() == other.sums.keys() or not (self.sums and other.sums)
        if other.fingerprint != self.fingerprint or not alike:
            raise ValueError(
                "other: a state of another test (fitted to another first sample, or with another "
                "key, options or version of jaxcal): sums of different tests do not add up"
            )
        contents = {_content(shard) for shard in self.shards}
        if both := [shard for shard in other.shards if _content(shard) in contents]:
            raise ValueError(f"other: {both[0]} is in both states and would count twice")
        states = self, other
        return StreamState(
            self.fingerprint,
            self.n + other.n,
            self.shards + other.shards,
            _joined([*self.rows, *other.rows]),
            {
                name: np.asarray(self.sums.get(name, 0) + other.sums.get(name, 0))
                for name in self.sums | other.sums
            },
            {
                name: min(state.least.get(name, math.inf) for state in states)
                for name in self.least | other.least
            },
            self.fitted_to or other.fitted_to,
            self.left_out + other.left_out,
        )

    def missing(self, rows: int) -> str:
        """Return the row numbers that are missing, as "100 to 199, 400 to 499", or "".

        Args:
            rows: Number of all rows, which are numbered from 0.

        Example:
            >>> from jaxcal.streaming import StreamState
            >>> StreamState(7, 5, (), ((0, 2), (4, 7)), {}, {}).missing(10)
            '2 to 3, 7 to 9'
        """
        ends = [0, *(end for span in self.rows for end in span)]
        ends.append(max(rows, ends[-1]))
        gaps = zip(ends[::2], ends[1::2], strict=True)
        return ", ".join(f"{start} to {stop - 1}" for start, stop in gaps if start < stop)

    def over_processes(self) -> "StreamState":
        """Return the sum of the states of all processes of `jax.distributed`, the same in each.

        Every process calls this method on the state of its share of the observations, at any time
        after the fit of `StreamedTest`, which connects the processes. Every 30 seconds a line on
        stderr names the missing processes. If a process has ended, all others raise an error at
        once and return no sum. After this error, leave the program by ``os._exit``, as
        `experiments/processes` does: a normal exit waits for all processes and prints long errors.

        Returns:
            The sum, with empty ``shards``. If there is only one process, this state.

        Raises:
            ValueError: The processes have fitted different tests, or two of them hold the same row
                number or shard.
            RuntimeError: A process, named in the message, has ended or did not connect in time.

        Example:
            >>> from jaxcal.streaming import StreamState
            >>> StreamState(7, 0, (), (), {}, {}).over_processes().n
            0
        """
        if jax.process_count() == 1:
            return self
        same_test(self.fingerprint)
        mine = pickle.dumps(replace(self, fitted_to={}))
        size = int(np.max(gathered(np.array([len(mine)]))))
        states = map(pickle.loads, gathered(np.frombuffer(mine.ljust(size), np.uint8)))
        total = functools.reduce(StreamState.merge, states)
        return replace(total, shards=(), fitted_to=self.fitted_to)

    def save(self, path: Path | str) -> None:
        """Write the state to a .npz file. An old file stays until the new one is complete."""
        arrays: Contents = {"fingerprint": self.fingerprint, "n": self.n, "left_out": self.left_out}
        arrays["shards"] = np.array(self.shards, dtype=str)
        arrays["rows"] = np.array(self.rows, dtype=np.int64).reshape(-1, 2)
        for kind in PARTS:
            arrays |= {f"{kind}.{name}": value for name, value in getattr(self, kind).items()}
        with replacing(Path(path)) as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: Path | str) -> "StreamState":
        """Return the state from a file that `save` wrote; ValueError for any other file."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            named = {
                kind: {
                    name.removeprefix(f"{kind}."): value
                    for name, value in arrays.items()
                    if name.startswith(f"{kind}.")
                }
                for kind in PARTS
            }
            return cls(
                int(arrays["fingerprint"]),
                int(arrays["n"]),
                tuple(arrays["shards"].tolist()),
                tuple((int(start), int(stop)) for start, stop in arrays["rows"]),
                named["sums"],
                {name: float(value) for name, value in named["least"].items()},
                named["fitted_to"],
                int(arrays["left_out"]),
            )
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(f"{path}: not a saved state of a streamed test ({error})") from None


def _content(shard: str) -> str:
    """Return the size and checksum of a shard without its name."""
    return ", ".join(shard.split(", ")[-2:])


def _joined(spans: list[Span]) -> tuple[Span, ...]:
    """Return sorted spans, adjacent ones joined; ValueError for overlaps or too many gaps."""
    joined: list[Span] = []
    for start, stop in sorted(spans):
        if joined and start < joined[-1][1]:
            last = min(stop, joined[-1][1]) - 1
            raise ValueError(
                f"other: rows {start} to {last} are in both states and would count twice: every "
                f"batch wants row numbers of its own (first=)"
            )
        if joined and start == joined[-1][1]:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    if len(joined) > MOST_SPANS:
        raise ValueError(f"first: batches leave {len(joined)} gaps in the numbers of rows")
    return tuple(joined)


@runtime_checkable
class Sums(Protocol):
    """Protocol of a fitted test that is computed from sums over batches."""

    @property
    def numbered(self) -> bool:
        """Whether random draws depend on the numbers of the rows."""
        ...

    def of_batch(self, batch: PyTree, first: int, done: int) -> tuple[int, Any, Any]:
        """Return the number of rows of a batch, and the sums and minima of its rows after the first
        ``done``. ``first`` is the row number of the first row of the batch."""
        ...

    def result(self, state: StreamState, n_first: int, name: str, level: float) -> Result:
        """Return the result of the test ``name`` from sums over two or more observations."""
        ...


class RankCounts(eqx.Module):
    """Count the ranks of targets among ``draws`` draws per prediction, for `Coverage`."""

    numbered = False
    draws: int = eqx.field(static=True)

    def of_batch(self, batch: PyTree, first: int, done: int) -> tuple[int, Any, Any]:
        ranks, unknown, m = ranks_of(*batch, first=first, least=1)
        if m != self.draws:
            raise ValueError(f"draws: wanted {self.draws} from each prediction, got {m}")
        counts = np.bincount(np.asarray(ranks)[done:], minlength=m + 1)
        return len(ranks), {"counts": counts, "unknown": np.sum(unknown[done:])}, {}

    def result(self, state: StreamState, n_first: int, name: str, level: float) -> Coverage:
        with jax.enable_x64(True):
            counts = jnp.asarray(state.sums["counts"].astype(int))
            return replace(of_counts(counts, jnp.asarray(int(state.sums["unknown"]))), level=level)


class TableSums(eqx.Module):
    """Sum counts, predictions and labels in each of ``cells`` cells, for a `Table`."""

    numbered = False
    cells: int = eqx.field(static=True)

    def of_batch(self, batch: PyTree, first: int, done: int) -> tuple[int, Any, Any]:
        p, y = map(np.asarray, batch)
        if p.ndim == 2:  # checked and put in order in JAX's float type, but summed in their own
            checks.probabilities(batch[0], "predictions")
            p = p[:, convert.class_columns(batch[0], "predictions") or slice(None)]
        if p.ndim == 2 and p.shape[1] > 2:
            labels = y.astype(int) if y.dtype.kind == "f" and not np.any(y % 1) else batch[1]
            y = np.argmax(p, axis=1) == np.asarray(checks.labels(labels, *p.shape))
            p = np.max(p, axis=1)
        p = p[:, 1] if p.ndim == 2 else p
        rest = (value[done:] if value.ndim else value for value in (p, y))
        table = Table.of(*rest, cells=self.cells)
        sums = {name: getattr(table, name) for name in ("counts", "predictions", "targets")}
        return len(p), sums, {}

    def result(self, state: StreamState, n_first: int, name: str, level: float) -> Result:
        return self.table(state)

    def table(self, state: StreamState) -> Table:
        sums = state.sums
        return Table(sums["counts"].astype(int), sums["predictions"], sums["targets"])
