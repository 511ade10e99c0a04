"""Test data larger than memory, in one pass over batches."""

from jaxcal.streaming.batches import array_batches
from jaxcal.streaming.shards import Shards
from jaxcal.streaming.state import StreamState
from jaxcal.streaming.streamed import StreamedTest

__all__ = [
    "Shards",
    "StreamState",
    "StreamedTest",
    "array_batches",
]
__dir__ = __all__.copy  # completion shows the public names
