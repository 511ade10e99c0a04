"""The ridge of CKCE: a number, or a schedule that depends on n; and a choice by cross-validation.

Values of CKCE are comparable at equal n, ridge and kernel only.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxcal import checks
from jaxcal.typing import ArrayLike, DTypeLike

# None, a positive number, or a function of n that returns one
Ridge: TypeAlias = ArrayLike | Callable[[int], ArrayLike] | None


def fourth_root(n: int) -> float:
    """``n^(-1/4)``, which equates the two terms of the estimator's rate. Source: Section 2.3."""
    return float(n) ** -0.25


def ridge_at(
    ridge: Ridge, n: int, dtype: DTypeLike, *, several: bool = False
) -> Float[Array, "*r"]:
    """The ridge for n observations, None for n^(-1/4), or ``several`` of them, [r].

    ValueError unless positive and finite.
    """
    values: Any = ridge
    if several and (isinstance(values, (list, tuple)) or getattr(values, "ndim", 0) > 0):
        return ridges_at(values, dtype, "ridge")
    schedule = fourth_root if ridge is None else ridge
    value = schedule(n) if callable(schedule) else schedule
    if isinstance(value, bool) or not isinstance(
        value, (int, float, np.ndarray, np.generic, jax.Array)
    ):
        raise TypeError(
            f"ridge: wanted None for n^(-1/4), a positive number, or a function of n, got "
            f"{type(value).__name__} {value!r}"[:160]
        )
    if np.shape(value) != ():
        raise ValueError(
            f"ridge: wanted one number, got shape {np.shape(value)}; `ckce` takes several"
        )
    if not isinstance(value, Tracer) and not 0 < float(value) < np.inf:
        raise ValueError(
            f"ridge: wanted a positive, finite number, got {float(value)}: without a ridge the "
            f"regression of residuals on predictions fits noise exactly"
        )
    return checks.number(value, "ridge", above=0).astype(dtype)


def ridges_at(ridges: ArrayLike, dtype: DTypeLike, name: str = "ridges") -> Float[Array, " r"]:
    """Several ridges, shape [r], each positive and finite, or ValueError."""
    values = checks.floats(ridges, name)
    values = values if isinstance(values, Tracer) else np.asarray(values)
    if values.ndim != 1 or values.size < 1:
        raise ValueError(f"{name}: wanted numbers of shape [r], got shape {values.shape}")
    if not isinstance(values, Tracer) and not np.all((values > 0) & (values < np.inf)):
        raise ValueError(f"{name}: wanted positive, finite numbers, got {values}")
    return jnp.asarray(values).astype(dtype)
