"""Which cases of a parametrized test need packages that the extra `test` does not install."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def with_packages(cases: Iterable[Any], packages: Callable[[Any], Iterable[str]]) -> list[Any]:
    """The cases, with the marker optional where ``packages`` names modules for a case."""
    marked = []
    for case in cases:
        values, marks = getattr(case, "values", (case,)), getattr(case, "marks", ())
        if names := tuple(packages(*values)):
            marks = [*marks, pytest.mark.optional(*names)]
        marked.append(pytest.param(*values, marks=marks))
    return marked


def torch_by_name(case: str) -> list[str]:
    """Cases whose name says torch need it."""
    return ["torch"] if "torch" in case else []
