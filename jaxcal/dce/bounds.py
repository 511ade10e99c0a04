"""The bracket of the true distance: its bounds and where they come from."""

from typing import NamedTuple

from jaxcal.typing import Scalar


class Bracket(NamedTuple):
    """Bounds of the true distance from calibration, for these data as a population.

    Attributes:
        low: The largest of ``lower``, [].
        high: The smallest of ``upper``, []; low <= high. Both are NaN where the bounds contradict
            each other by more than rounding, which would be a bug.
        lower: Every bound from below by the name of its measure, each [].
        upper: Every bound from above by the name of its measure, each [].

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> bracket = jaxcal.dce.dce_bracket(jnp.full(4, 0.7), jnp.array([0, 0, 1, 1]))
        >>> round(float(bracket.low), 3), round(float(bracket.high), 3)
        (0.2, 0.2)
    """

    low: Scalar
    high: Scalar
    lower: dict[str, Scalar]
    upper: dict[str, Scalar]

    @property
    def sources(self) -> tuple[str, str]:
        """Which measure makes the low end, and which the high one. Outside of jit only."""
        return (
            max(self.lower, key=lambda name: float(self.lower[name])),
            min(self.upper, key=lambda name: float(self.upper[name])),
        )
