"""What a pass over batches has added up: mergeable, saved, restored, shared by processes."""

import itertools
import sys
import threading
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import distributed  # the store of keys has no public name
from jax.experimental.multihost_utils import process_allgather

from jaxcal.results import replacing
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


@dataclass(frozen=True)
class StreamState:
    """Sums over the observations so far, in float64 on the host.

    Sums of two states add up to that of all their observations, in any order, up to rounding.

    Attributes:
        fingerprint: Identifies the fitted test; states of different tests do not add up.
        n: Observations so far: how many rows a pass that goes on skips.
        shards: The shards that they came from, in order, each with its name, number of rows and
            checksum; empty where batches came from no files.
        sums: Sum of the vectors z, [p].
        products: Sum of z z^T, [p, p].
        trace: Sum of |z|^2.
        fourth: Sum of |z|^4.
        lost: Values among targets, scores and features that were NaN or infinite.

    Example:
        >>> import numpy as np
        >>> from jaxcal.streaming import StreamState
        >>> one = StreamState.empty(7, 3)
        >>> one.merge(one).n
        0
    """

    fingerprint: int
    n: int
    shards: tuple[str, ...]
    sums: np.ndarray
    products: np.ndarray
    trace: float
    fourth: float
    lost: int

    @classmethod
    def empty(cls, fingerprint: int, p: int) -> "StreamState":
        """The state before the first batch, of vectors of length p."""
        return cls(fingerprint, 0, (), np.zeros(p), np.zeros((p, p)), 0.0, 0.0, 0)

    def merge(self, other: "StreamState") -> "StreamState":
        """The state of all observations of both.

        Args:
            other: A state of the same test, from other observations.

        Returns:
            The sum of the two.

        Raises:
            ValueError: the other state is that of another test, or holds a shard of this one.
        """
        if other.fingerprint != self.fingerprint:
            raise ValueError(
                "other: a state of another test (fitted to another first sample, or with another "
                "key or options): sums of different tests do not add up"
            )
        if both := set(self.shards) & set(other.shards):
            raise ValueError(f"other: {min(both)} is in both states and would count twice")
        added: list[Any] = [getattr(self, f.name) + getattr(other, f.name) for f in SUMS]
        return StreamState(self.fingerprint, *added)

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
            ValueError: The processes have fitted different tests.
            RuntimeError: A process has ended; it is named.

        Example:
            >>> from jaxcal.streaming import StreamState
            >>> StreamState.empty(7, 3).over_processes().n
            0
        """
        if jax.process_count() == 1:
            return self
        same_test(self.fingerprint)
        scalars = [self.n, self.trace, self.fourth, self.lost]
        every = gathered(np.concatenate([scalars, self.sums, self.products.ravel()]))
        n, trace, fourth, lost, *_ = total = np.sum(every, axis=0)
        p = len(self.sums)
        sums, products = total[4 : 4 + p], total[4 + p :].reshape(p, p)
        return StreamState(self.fingerprint, int(n), (), sums, products, trace, fourth, int(lost))

    def save(self, path: Path | str) -> None:
        """Write to a .npz file, whole or not at all: an interruption leaves the last one."""
        arrays: Contents = {f.name: getattr(self, f.name) for f in fields(self)}
        arrays["shards"] = np.array(self.shards, dtype=str)
        with replacing(Path(path)) as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: Path | str) -> "StreamState":
        """Read what `save` wrote. Raises ValueError, naming the file, for anything else."""
        try:
            with np.load(path, allow_pickle=False) as file:
                values = {f.name: file[f.name] for f in fields(cls)}
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(f"{path}: not a saved state of a streamed test ({error})") from None
        contents: dict[str, Any] = {k: v if v.ndim else v.item() for k, v in values.items()}
        contents["shards"] = tuple(values["shards"].tolist())
        return cls(**contents)


SUMS = fields(StreamState)[1:]  # what adds up, all but the fingerprint
