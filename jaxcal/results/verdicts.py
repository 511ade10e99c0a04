"""Verdicts "rejected", "not rejected" or "cannot tell" of every result with a p-value."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

ENDLESS = 10**6  # so many observations that only its draws limit a null


def first_that_holds(cases: Sequence[tuple[str, Any]], shape: tuple[int, ...]) -> Any:
    """Return the first text whose condition holds, or ""; an array for a batch of this shape."""
    holds = [np.broadcast_to(np.asarray(where), shape) for _, where in cases]
    nothing = np.full(shape, "")
    texts = np.select(holds, [text for text, _ in cases], default="") if cases else nothing
    return texts if shape else str(texts)


def judge(result: Any) -> Any:
    """Return "rejected", "not rejected" or "cannot tell"; an array for a batch."""
    p = np.asarray(result._decides)
    decided = np.where(p <= np.asarray(result.level, p.dtype), "rejected", "not rejected")
    verdicts = np.where(np.asarray(result.reason) == "", decided, "cannot tell")
    return verdicts if p.ndim else str(verdicts)


def count_verdicts(result: Any) -> str:
    """Return how many results of a batch have which verdict, in words."""
    verdicts = np.asarray(judge(result))
    shares = [
        f"{outcome} in {int(np.sum(verdicts == outcome))}"
        for outcome in ("rejected", "not rejected", "cannot tell")
    ]
    return f"at level {result.level:g}: {', '.join(shares)}"


def confidence(level: float) -> str:
    """Return the confidence of limits for a test of this level, in words: "95 %"."""
    return f"{100 * (1 - level):g} %"


def too_few(null: str, least_p_value: Callable[[int], float], n: int, level: float) -> str:
    """Return why the null has no p-value up to the level for n observations; "" if it has."""
    least = least_p_value(n)
    if least <= level:
        return ""
    if least_p_value(ENDLESS) > level:
        return (
            f"too few draws for the level {level:g}: the null {null} gives no p-value below "
            f"{least:.3g} with them [too-few-draws]"
        )
    return (
        f"too few observations for the level {level:g}: with n = {n} the null {null} gives no "
        f"p-value below {least:.3g} (is the array transposed?) [too-few-observations]"
    )


def in_words(result: Any) -> str:
    """Return the verdict on one result, or why there is none."""
    at = f"at level {result.level:g}"
    match judge(result):
        case "rejected":
            return f"rejected {at}: evidence against calibration"
        case "not rejected":
            return f"not rejected {at}: no evidence against calibration (which is not proof of it)"
    return f"cannot tell: {result.reason}"
