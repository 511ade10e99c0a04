"""The checker of annotations: beartype, once for each value and only in functions that run."""

import functools
from typing import Any

from beartype import beartype


def checked(function):
    """What jaxtyping checks after a call need not see the arguments again, whose sizes it keeps.

    It makes two functions of each that is annotated, one for its arguments before the call and one
    for arguments and result after it.
    """
    if not hasattr(function, "__annotations__"):  # a class
        return beartype(function)
    if function.__annotations__.get("return", Any) is not Any:
        function.__annotations__ = {"return": function.__annotations__["return"]}
    return _when_called(function)


def _when_called(function):
    checks = functools.cache(lambda: beartype(function))

    @functools.wraps(function)
    def check(*args, **kwargs):
        return checks()(*args, **kwargs)

    return check
