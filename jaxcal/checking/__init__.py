"""`jaxcal.check`: suitable tests for any kind of predictions, one verdict, a report."""

from jaxcal.checking.check import check

__all__ = ["check"]


def __dir__() -> list[str]:
    return sorted(__all__)
