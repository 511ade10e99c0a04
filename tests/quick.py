"""Which cases of a parametrized test the first run takes; the others carry the marker slow."""

from collections.abc import Collection, Hashable, Iterable
from typing import Any

import pytest


def quick_first(cases: Iterable[Hashable], quick: Collection[Hashable]) -> list[Any]:
    """The cases, tuples of arguments or one argument each, slow where they are not in ``quick``."""
    cases = list(cases)
    if missing := set(quick) - set(cases):
        raise ValueError(f"quick: no cases {sorted(map(str, missing))}")
    return [
        case
        if case in quick
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
