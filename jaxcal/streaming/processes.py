"""Arrays of all processes of `jax.distributed`, and which process is late or has ended."""

import itertools
import sys
import threading
import time
from typing import Any

import jax
import numpy as np
from jax._src import distributed  # the store of keys has no public name
from jax.experimental.multihost_utils import process_allgather

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
