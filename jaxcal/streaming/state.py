"""What a pass over batches has added up: mergeable, saved and restored."""

from dataclasses import dataclass, fields
from pathlib import Path

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from jaxcal.results import replacing
from jaxcal.typing import Contents


@dataclass(frozen=True)
class StreamState:
    """Sums over the observations so far, in float64 on the host.

    Sums of two states add up to that of all their observations, in any order, up to rounding.

    Attributes:
        fingerprint: Identifies the fitted test; states of different tests do not add up.
        n: Observations so far.
        batches: Batches so far: how many an interrupted pass skips.
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
    batches: int
    sums: np.ndarray
    products: np.ndarray
    trace: float
    fourth: float
    lost: int

    @classmethod
    def empty(cls, fingerprint: int, p: int) -> "StreamState":
        """The state before the first batch, of vectors of length p."""
        return cls(fingerprint, 0, 0, np.zeros(p), np.zeros((p, p)), 0.0, 0.0, 0)

    def merge(self, other: "StreamState") -> "StreamState":
        """The state of all observations of both.

        Args:
            other: A state of the same test, from other observations.

        Returns:
            The sum of the two.

        Raises:
            ValueError: the other state is that of another test.
        """
        if other.fingerprint != self.fingerprint:
            raise ValueError(
                "other: a state of another test (fitted to another first sample, or with another "
                "key or options): sums of different tests do not add up"
            )
        added = [getattr(self, f.name) + getattr(other, f.name) for f in fields(self)[1:]]
        return StreamState(self.fingerprint, *added)

    def over_processes(self) -> "StreamState":
        """The sum of the states of all processes of `jax.distributed`, the same in each of them.

        Every process calls it, with the state of its own share of the observations. Where one has
        died, JAX ends the others with an error that names it, after the
        ``heartbeat_timeout_seconds`` of ``jax.distributed.initialize``: no sum lacks a share.

        Returns:
            The sum; this state itself where there is one process.

        Raises:
            ValueError: The processes have fitted different tests.

        Example:
            >>> from jaxcal.streaming import StreamState
            >>> StreamState.empty(7, 3).over_processes().n
            0
        """
        if jax.process_count() == 1:
            return self
        fingerprints = process_allgather(np.uint32(self.fingerprint))
        if np.any(fingerprints != fingerprints[0]):
            raise ValueError(
                "state: the processes have fitted different tests: give all of them the same first "
                "sample, key and options"
            )
        scalars = [self.n, self.batches, self.trace, self.fourth, self.lost]
        numbers = np.concatenate([scalars, self.sums, self.products.ravel()])
        # as bytes: JAX would round float64 to float32 on the way
        every = process_allgather(numbers.view(np.uint8)).view(np.float64)
        n, batches, trace, fourth, lost, *_ = total = np.sum(every, axis=0)
        p = len(self.sums)
        sums, products = total[5 : 5 + p], total[5 + p :].reshape(p, p)
        counts = int(n), int(batches)
        return StreamState(self.fingerprint, *counts, sums, products, trace, fourth, int(lost))

    def save(self, path: Path | str) -> None:
        """Write to a .npz file, whole or not at all: an interruption leaves the last one."""
        arrays: Contents = {f.name: getattr(self, f.name) for f in fields(self)}
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
        scalars = {name: value.item() for name, value in values.items() if value.ndim == 0}
        return cls(**(values | scalars))
