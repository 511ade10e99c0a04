"""Tests of more observations than fit into memory: one pass over batches, of constant memory."""

from jaxcal.streaming.batches import array_batches, parquet_batches, parquet_shards
from jaxcal.streaming.state import StreamState
from jaxcal.streaming.streamed import StreamedTest

__all__ = [
    "StreamState",
    "StreamedTest",
    "array_batches",
    "parquet_batches",
    "parquet_shards",
]


def __dir__() -> list[str]:
    return sorted(__all__)
