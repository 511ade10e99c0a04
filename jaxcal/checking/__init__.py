"""`jaxcal.check`: suitable tests for any kind of predictions, one verdict, a report."""

from jaxcal.checking.check import check
from jaxcal.checking.streamed import streamed_check

__all__ = ["check", "streamed_check"]


def __dir__() -> list[str]:
    return sorted(__all__)
