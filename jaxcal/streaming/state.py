"""Sums of a pass over batches, which are merged, saved, restored and shared by processes."""

import itertools
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jax._src import distributed  # the store of keys has no public name
from jax.experimental.multihost_utils import process_allgather
from jaxtyping import PyTree

from jaxcal.results import Result, replacing
from jaxcal.typing import Contents

LATE = 30.0  # seconds between two lines that say who has not come
_numbers = itertools.count()  # of gatherings, the same in all processes


def same_test(fingerprint: int) -> None:
    """Raise ValueError where the processes have fitted different tests.

    The first call connects the processes, for which JAX leaves them 30 seconds; once connected, one
    may wait for another as long as it takes. Does nothing where there is one process.
    """
    if jax.process_count() > 1:
        fingerprints = gathered(np.array([fingerprint], np.uint32))
        if np.any(fingerprints != fingerprint):
            raise ValueError(
                "state: the processes have fitted different tests: give all of them the same first "
                "sample, key and options"
            )


def gathered(values: np.ndarray) -> np.ndarray:
    """The array of each process, [k] to [processes, k], exact in every type.

    While it waits it says on stderr which processes have not come, every `LATE` seconds.

    Raises:
        RuntimeError: A process has ended, or did not come in time to connect; named.
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
            time.sleep(2)  # it keeps the store that the others now ask who is missing
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
    """The processes that have not come to a gathering: "process 1 of 0 .. 3"; "" for none."""
    count = jax.process_count()
    try:
        here = _store().key_value_dir_get(f"{folder}/")
    except RuntimeError:
        here = [(f"/{rank}", "") for rank in range(1, count)]  # process 0 keeps the store
    late = sorted(set(range(count)) - {int(key.rpartition("/")[2]) for key, _ in here})
    names = ", ".join(map(str, late))
    return f"process{'es' * (len(late) > 1)} {names} of 0 .. {count - 1}" if late else ""


def _store() -> Any:
    return distributed.global_state.client


Span = tuple[int, int]  # of row numbers, the second is the first that is not in it
PARTS = ("sums", "least", "fitted_to")  # of a state, by name
MOST_SPANS = 1000  # that a state holds: shards that were added and do not yet touch


@dataclass(frozen=True)
class StreamState:
    """Sums over the observations so far, in float64 on the host.

    Sums of two states add up to that of all their observations, in any order, up to rounding.

    Attributes:
        fingerprint: Identifies the fitted test; states of different tests do not add up.
        n: Observations so far: how many rows a pass that goes on skips.
        shards: The shards that they came from, in order, each with its name, size and checksum;
            empty where batches came from no files.
        rows: The spans of their row numbers, [start, stop) each, where these were stated or draws
            depend on them.
        sums: Sums by name.
        least: Numbers by name of which the least counts.
        fitted_to: What the test was fitted to, by name, where the state should tell; else empty.
        left_out: Rows that could not be used and were left out.

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
    shards: tuple[str, ...]
    rows: tuple[Span, ...]
    sums: dict[str, np.ndarray]
    least: dict[str, float]
    fitted_to: dict[str, np.ndarray] = field(default_factory=dict)
    left_out: int = 0

    def merge(self, other: "StreamState") -> "StreamState":
        """The state of all observations of both.

        Args:
            other: A state of the same test, from other observations.

        Returns:
            The sum of the two.

        Raises:
            ValueError: the other state is that of another test, or holds a shard or a row of this
                one.
        """
        if other.fingerprint != self.fingerprint:
            raise ValueError(
                "other: a state of another test (fitted to another first sample, or with another "
                "key or options): sums of different tests do not add up"
            )
        contents = {_content(shard) for shard in self.shards}
        if both := [shard for shard in other.shards if _content(shard) in contents]:
            raise ValueError(f"other: {both[0]} is in both states and would count twice")
        return StreamState(
            self.fingerprint,
            self.n + other.n,
            self.shards + other.shards,
            _joined([*self.rows, *other.rows]),
            {name: total + other.sums[name] for name, total in self.sums.items()},
            {name: min(value, other.least[name]) for name, value in self.least.items()},
            self.fitted_to or other.fitted_to,
            self.left_out + other.left_out,
        )

    def missing(self, rows: int) -> str:
        """Which rows of 0 .. rows - 1 are not in the state: "100 to 199, 400 to 499", or "".

        Args:
            rows: Number of all rows.

        Example:
            >>> from jaxcal.streaming import StreamState
            >>> StreamState(7, 5, (), ((0, 2), (4, 7)), {}, {}).missing(10)
            '2 to 3, 7 to 9'
        """
        ends = [0, *(end for span in self.rows for end in span), max(rows, self._stop)]
        gaps = zip(ends[::2], ends[1::2], strict=True)
        return ", ".join(f"{start} to {stop - 1}" for start, stop in gaps if start < stop)

    @property
    def _stop(self) -> int:
        return self.rows[-1][1] if self.rows else 0

    def over_processes(self) -> "StreamState":
        """The sum of the states of all processes of `jax.distributed`, the same in each of them.

        Every process calls it, with the state of its own share of the observations, as long after
        the others as it needs: `StreamedTest` has connected them when it was fitted. A line on
        stderr says every 30 seconds who is late. Where one has ended, the others are told at once:
        no sum lacks a share. Leave the program with ``os._exit`` then, as `experiments/processes`
        does: JAX ends a process by waiting for all, and prints pages where one is gone.

        Returns:
            The sum; this state itself where there is one process.

        Raises:
            ValueError: The processes have fitted different tests, or hold the same rows.
            RuntimeError: A process has ended; it is named.

        Example:
            >>> from jaxcal.streaming import StreamState
            >>> StreamState(7, 0, (), (), {}, {}).over_processes().n
            0
        """
        if jax.process_count() == 1:
            return self
        same_test(self.fingerprint)
        spans = np.full((MOST_SPANS, 2), -1)
        spans[: len(self.rows)] = np.reshape(self.rows, (-1, 2))
        rows = [tuple(span) for span in gathered(spans.ravel()).reshape(-1, 2).tolist()]
        numbers = [
            np.ravel(part)
            for part in (self.n, self.left_out, *self.sums.values(), *self.least.values())
        ]
        every = gathered(np.concatenate(numbers).astype(float))
        total, start, sums = np.sum(every, axis=0), 2, {}
        for name, part in self.sums.items():
            sums[name] = total[start : start + part.size].reshape(part.shape)
            start += part.size
        lows = np.min(every[:, start:], axis=0).tolist()
        least = dict(zip(self.least, lows, strict=True))
        spans = _joined([span for span in rows if span[0] >= 0])
        n, left_out = int(total[0]), int(total[1])
        return StreamState(self.fingerprint, n, (), spans, sums, least, self.fitted_to, left_out)

    def save(self, path: Path | str) -> None:
        """Write to a .npz file, whole or not at all: an interruption leaves the last one."""
        arrays: Contents = {"fingerprint": self.fingerprint, "n": self.n, "left_out": self.left_out}
        arrays["shards"] = np.array(self.shards, dtype=str)
        arrays["rows"] = np.array(self.rows, dtype=np.int64).reshape(-1, 2)
        for kind in PARTS:
            arrays |= {f"{kind}.{name}": value for name, value in getattr(self, kind).items()}
        with replacing(Path(path)) as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: Path | str) -> "StreamState":
        """Read what `save` wrote. Raises ValueError, naming the file, for anything else."""
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
    """Size and checksum of a shard, whatever its name."""
    return ", ".join(shard.split(", ")[-2:])


def _joined(spans: list[Span]) -> tuple[Span, ...]:
    """Spans in order, those that touch as one. ValueError where two of them overlap."""
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
    """What a stream adds up: that of one test, or of several."""

    @property
    def numbered(self) -> bool:
        """Whether draws depend on the numbers of rows."""
        ...

    def zeros(self) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Sums and least numbers before the first batch."""
        ...

    def of_batch(self, batch: PyTree, first: int, done: int) -> tuple[int, Any, Any]:
        """Number of rows of a batch, and its sums and least numbers without the first ``done``
        rows; ``first`` is the number of its first row."""
        ...

    def result(self, state: StreamState, n_first: int, name: str, level: float) -> Result:
        """The result of sums over at least two observations."""
        ...
