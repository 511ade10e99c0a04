"""`jaxcal.check`: suitable tests for any kind of predictions, one verdict, a report."""

from jaxcal.checking.check import check
from jaxcal.checking.streamed import streamed_check

__all__ = ["check", "streamed_check"]
__dir__ = __all__.copy  # completion shows the public names
