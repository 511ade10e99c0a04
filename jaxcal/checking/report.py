"""What a check found: one verdict over its tests, with its limits, in words and as a page."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.checking import page
from jaxcal.nulls.contract import holm
from jaxcal.results import JudgedResult, Result, Sentences, in_words
from jaxcal.typing import Contents

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LIMITS = (
    "Calibrated predictions need not be sharp or useful: compare scores as well.",
    "Targets are compared with their predictions, not with the inputs of the model: errors that "
    "cancel among equal predictions are not seen (kcsd_test takes inputs).",
)


class CheckReport(JudgedResult):
    """The tests of a check, with one verdict over all of them.

    Attributes:
        tests: Results of the k tests.
        p_values: [k] p-values of the tests by themselves.
        p_adjusted: [k] p-values after Holm's correction; NaN where there is none.
        p_value: Of "calibrated", from all tests, []; NaN where no test has a p-value.
        estimates: Results that say how large an error is, and have no part in the verdict.
        kind: What the predictions are, in words.
        why: Why these tests.
        names: Names of the tests.
        sight: What each can see, and what it can hardly see.
        n: Number of observations.
        level: Level of the verdict.
        dependent: Whether the tests allow for dependence between observations.

    Example:
        >>> import jax, jaxcal
        >>> p = jax.random.uniform(jax.random.key(0), (200,))
        >>> happened = jax.random.bernoulli(jax.random.key(1), p**3)
        >>> report = jaxcal.check(2, p, happened)
        >>> report.verdict, bool(report.p_value < 0.01)
        ('rejected', True)
    """

    _rows: ClassVar[tuple[str, ...]] = ("names", "p_values", "p_adjusted")

    tests: tuple[Result, ...]
    p_values: Float[Array, " k"]
    p_adjusted: Float[Array, " k"]
    p_value: Float[Array, ""]
    estimates: tuple[Result, ...]
    kind: str = eqx.field(static=True)
    why: str = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    sight: tuple[str, ...] = eqx.field(static=True)
    n: int = eqx.field(static=True)
    level: float = eqx.field(static=True, default=0.05)
    dependent: bool = eqx.field(static=True, default=False)

    @classmethod
    def of(cls, *, tests: tuple[Result, ...], **fields: Any) -> "CheckReport":
        """Build a report: the p-values of the tests are adjusted, those that are NaN counted."""
        p = jnp.stack([_p_value(test) for test in tests])
        adjusted = jnp.where(jnp.isnan(p), jnp.nan, holm(jnp.where(jnp.isnan(p), 1, p)))
        return cls(
            tests=tests, p_values=p, p_adjusted=adjusted, p_value=jnp.nanmin(adjusted), **fields
        )

    def to_html(self, path: Path | str) -> None:
        """Write the report with its figures to one HTML file that needs no other.

        Args:
            path: Where to write.

        Raises:
            TypeError: Inside of jit, vmap or grad.
            ValueError: This is a batch of reports.
            OSError: The file cannot be written.
        """
        self._with_numbers("to_html")
        if self.batch_shape:
            raise ValueError(f"to_html: wanted one report, got a batch of {self.batch_shape}")
        Path(path).write_text(page.of_report(self), encoding="utf-8")

    def _no_verdict(self) -> Sentences:
        """Why there is no verdict: one test cannot tell, and no other one rejects."""
        told = [np.asarray(_reason(test)) == "" for test in self.tests]
        adjusted = np.asarray(self.p_adjusted)
        decided = np.zeros(self.batch_shape, bool)
        for place, clear in enumerate(told):
            decided |= clear & (adjusted[..., place] <= self.level)
        return [
            (f"{name}: {text}", ~decided & (np.asarray(_reason(test)) == text))
            for name, test in zip(self.names, self.tests, strict=True)
            for text in np.unique(_reason(test))
            if text
        ]

    def _contents(self) -> Contents:
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "p_value": self.p_value,
            "level": self.level,
            "n": self.n,
            "kind": self.kind,
            "why": self.why,
            "dependent": self.dependent,
            "names": self.names,
            "p_values": self.p_values,
            "p_adjusted": self.p_adjusted,
            "tests": [test.to_dict() for test in self.tests],
            "estimates": [estimate.to_dict() for estimate in self.estimates],
            "limits": self.limits(),
        }

    def _figure(self) -> "Figure | None":
        return self.tests[0]._figure()

    def limits(self) -> list[str]:
        """Sentences on what a check like this can and cannot see."""
        return [*self.sight, *LIMITS]

    def verdict_in_words(self) -> str:
        """The verdict as a sentence, or why there is none."""
        return in_words(self)

    def correction(self) -> str:
        """How the verdict follows from the tests."""
        if len(self.tests) == 1:
            return "that of the one test"
        return (
            f"over {len(self.tests)} tests by Holm's correction: all together reject a calibrated "
            f"model with probability {self.level:g} at most; below each is judged by itself"
        )

    def _lines(self) -> list[str]:
        lines = [
            f"check of {self.kind}, n = {self.n}",
            f"  verdict    {self.verdict_in_words()}",
            *_filled(f"  p-value    {float(self.p_value):.3g}   ({self.correction()})", 13),
            *_filled(f"  why these  {self.why}", 13),
            "",
        ]
        for result in (*self.tests, *self.estimates):
            lines += [*repr(result).split("\n"), ""]
        limits = [line for text in self.limits() for line in _filled(f"  {text}", 4)]
        return [*lines, "what this can and cannot see", *limits]


def _filled(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, 100, subsequent_indent=" " * indent)


def _p_value(result: Any) -> Any:
    """The p-value of a result; of coverage, that each region holds its share."""
    return jnp.asarray(result.p_value if hasattr(result, "p_value") else result.p_uniform)


def _reason(result: Any) -> Any:
    """Why a result has no verdict, or ""; those without a judge have none where p is NaN."""
    if isinstance(result, JudgedResult):
        return result.reason
    return np.where(np.isnan(_p_value(result)), "its p-value is not a number", "")
