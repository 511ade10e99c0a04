"""Iterate over batches of arrays, and over the remaining batches of a resumed pass."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from jaxcal.read import convert


class ShardBatch(tuple):
    """A batch from a file. ``shard`` is the name, size and checksum of the file as one text;
    ``size`` is the largest number of rows of a batch."""

    shard: str
    size: int

    @classmethod
    def of(cls, shard: str, size: int, *parts: Any) -> "ShardBatch":
        batch = cls(parts)
        batch.shard, batch.size = shard, size
        return batch

    def padded(self) -> tuple[tuple[Any, ...], int]:
        """Return the batch with copies of its first row put before it, and the number of copies.
        Its new length is the least of ``size``, ``size`` / 2, ``size`` / 4, .. that suffices."""
        n, length = len(self[1]), self.size
        while length // 2 >= n:
            length //= 2
        rows = np.maximum(np.arange(n - length, n), 0)
        filled = jax.tree.map(lambda array: array[rows], tuple(self)) if n < length else self
        return tuple(filled), length - n


def array_batches(size: int, *arrays: Any) -> Iterator[tuple[Any, ...]]:
    """Yield consecutive batches of arrays with the same leading axis, such as memory-mapped ones.

    Args:
        size: Number of rows of a batch.
        *arrays: NumPy, memory-mapped or JAX arrays; only one batch of each is read at a time.

    Yields:
        Tuples with a slice of each array; those of the last batch may be shorter.

    Raises:
        ValueError: Leading axes disagree.
        TypeError: An argument is not an array, or has no axis.

    Example:
        >>> import numpy as np
        >>> from jaxcal.streaming import array_batches
        >>> [len(x) for x, y in array_batches(4, np.zeros((10, 2)), np.zeros(10))]
        [4, 4, 2]
    """
    size = convert.integer(size, "size")
    if not arrays or any(
        not hasattr(array, "__len__") or getattr(array, "shape", None) == () for array in arrays
    ):
        came = ", ".join(map(convert.say, arrays)) or "none"
        raise TypeError(f"arrays: wanted one array or more, got {came}")
    if len({len(array) for array in arrays}) != 1:
        raise ValueError(f"arrays: leading axes must agree, got {[len(array) for array in arrays]}")
    for start in range(0, len(arrays[0]), size):
        yield tuple(array[start : start + size] for array in arrays)


def remaining(
    batches: Iterator[PyTree], n: int, done_shards: tuple[str, ...]
) -> Iterator[tuple[int, PyTree, int, tuple[str, ...]]]:
    """Yield the batches that contain rows after the first n, which an earlier pass has processed.

    Args:
        batches: All batches, including those that are processed.
        n: Number of rows that are processed.
        done_shards: The shards of the processed rows, as in `ShardBatch.shard`, in order.

    Yields:
        Index of the batch; the batch; the number of its first rows to skip, which are processed or
        padding; and the shards of all batches up to this one.

    Raises:
        ValueError: The first n rows are missing, or come from other shards, which the error names.
    """
    done, shards, last = n, (), None
    for number, batch in enumerate(batches):
        shard = getattr(batch, "shard", "")
        if shard != last:
            before, last = done_shards[len(shards)] if len(shards) < len(done_shards) else "", shard
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
            batch, filler = batch.padded() if isinstance(batch, ShardBatch) else (batch, 0)
            yield number, batch, filler + done, shards
            done = 0
    if done:
        raise ValueError(
            f"batches: they end after {n - done} rows, where the state has {n}"
            + "".join(f"; next in it is {shard}" for shard in done_shards[len(shards) :][:1])
        )
