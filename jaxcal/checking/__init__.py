"""One call for any predictions: the test that fits them, why, its verdict, and a report."""

from jaxcal.checking.check import check

__all__ = ["check"]


def __dir__() -> list[str]:
    return sorted(__all__)
