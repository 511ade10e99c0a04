"""Define `Result` and `JudgedResult`, the base classes of results, and `TestResult`."""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxcal.results import report, saved
from jaxcal.results.notes import Notes, all_finite, memory, pointer, sentences
from jaxcal.results.parts import Coordinates, Parts, Table, largest_share, plain
from jaxcal.results.report import about_coordinates, batch_report, no_verdict, too_few, worth_saying
from jaxcal.results.saved import SOURCE, provenance
from jaxcal.typing import Contents, Figure, Scalar

Sentences = Iterable[tuple[str, Any]]  # pairs of a sentence and whether it applies


class Result(eqx.Module):
    """Base class of one result or a batch of results, with warnings and a report.

    Subclasses implement ``_sentences`` (possible warnings), ``_lines`` (report of one result) and
    ``_batch_lines`` (report of several). ``_scalar`` names the field that has the shape of the
    batch. ``_long`` names the fields that `to_dict` omits, ``_rows`` the arrays of equal length
    that `to_frame` writes as columns, and ``_plots`` the functions of `jaxcal.plots` that draw one
    result, as "module.function".
    """

    __slots__ = (SOURCE,)  # not a field, so that results of different keys still stack

    _scalar: ClassVar[str] = "value"
    _long: ClassVar[tuple[str, ...]] = ()
    _mark: ClassVar[str] = "warning"  # before each sentence of the report
    _rows: ClassVar[tuple[str, ...]] = ()
    _plots: ClassVar[tuple[str, ...]] = ()

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of a batch of results; () for one result."""
        return np.shape(getattr(self, self._scalar))

    @property
    def traced(self) -> bool:
        """Whether the result holds tracers: it is inside of jit, vmap or grad."""
        return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(self))

    def warnings(self) -> list[str]:
        """Return the warnings, often none: sentences on what limits the result; [] under jit.

        Each ends with a code in brackets, which ``python -m jaxcal explain CODE`` explains.
        """
        if self.traced:
            return []
        return [text for text, holds in self._sentences() if holds]

    def to_dict(self) -> Contents:
        """Return the fields and the warnings as a dict for JSON; long arrays are omitted."""
        return plain(self._contents()) | {"warnings": self.warnings()}

    def to_html(self, path: Path | str) -> None:
        """Write the report with its figures to a self-contained HTML file at ``path``.

        TypeError inside of jit, vmap or grad; ValueError for a batch of results.
        """
        self._with_numbers("to_html")
        if self.batch_shape:
            raise ValueError(f"to_html: wanted one report, got a batch of {self.batch_shape}")
        Path(path).write_text(self._page(), encoding="utf-8")

    def to_frame(self) -> Any:
        """Return a pandas data frame with one row per level, bin, part or model. A result without
        these, or each result of a batch, is one row of scalars. ImportError without pandas."""
        self._with_numbers("to_frame")
        return report.to_frame(self, self._rows)

    def figure(self) -> "Figure | None":
        """Return a matplotlib figure of one result, as in notebooks and `to_html`; None if the
        result's class has no figure. ``figure().savefig("name.png")`` saves it."""
        return report.panels(self, self._plots) if self._plots else None

    @property
    def provenance(self) -> Contents:
        """Origin of the result: ``jaxcal`` and ``jax`` (versions), ``result`` (class), ``dtype``,
        and ``function``, ``key``, ``n`` and ``options`` of the call. The last four are None if
        unknown: the call was inside of jit or vmap, or the result was modified."""
        return provenance(self, np.asarray(getattr(self, self._scalar)).dtype)

    def save(self, path: Path | str) -> None:
        """Write the result to a .npz file: arrays under the names of their fields, and a JSON
        header with the `provenance`. TypeError names a field with objects that cannot be saved."""
        self._with_numbers("save")
        saved.save(self, Path(path), self.provenance)

    @classmethod
    def load(cls, path: Path | str) -> Any:
        """Read a result that `save` wrote, with equal values, types and provenance. ValueError
        names a file that is damaged or holds another class."""
        if not isinstance(path, str | PathLike):
            raise TypeError(f"path: wanted the name of a file, got {path!r:.60}")
        result, written = saved.load(Path(path))
        if not isinstance(result, cls):
            raise ValueError(f"{path}: holds a {type(result).__name__}, wanted a {cls.__name__}")
        object.__setattr__(result, SOURCE, written)
        return result

    def __getstate__(self) -> tuple[dict[str, Any], Any]:
        return vars(self), getattr(self, SOURCE, None)

    def __setstate__(self, state: tuple[dict[str, Any], Any]) -> None:
        vars(self).update(state[0])
        if state[1] is not None:
            object.__setattr__(self, SOURCE, state[1])

    def _with_numbers(self, name: str) -> None:
        if self.traced:
            raise TypeError(f"{name}: inside of jit, vmap and grad a result holds no numbers yet")

    def _repr_html_(self) -> str:
        return report.in_html(self)

    def _page(self) -> str:
        return report.page(type(self).__name__, report.in_html(self))

    def _sentences(self) -> Sentences:
        return []

    def _contents(self) -> Contents:
        names = [one.name for one in dataclasses.fields(self) if one.name not in self._long]
        return {name: getattr(self, name) for name in names}

    def _lines(self) -> list[str]:
        raise NotImplementedError("a result says what its report prints")

    def _batch_lines(self) -> list[str]:
        shape = self.batch_shape
        return [f"{np.prod(shape, dtype=int)} of {type(self).__name__}, batch shape {shape}"]

    def __repr__(self) -> str:
        if self.traced:
            return f"{type(self).__name__}(traced)"
        lines = self._batch_lines() if self.batch_shape else self._lines()
        said = self.warnings()
        lines += [f"  {self._mark}: {text}" for text in said]
        return "\n".join(lines + pointer(said))


class JudgedResult(Result):
    """A result whose ``p_value`` is compared with its ``level``.

    Subclasses have a field ``level``, and a method ``_no_verdict`` that lists reasons against a
    verdict and whether each applies. The first that applies is reported.
    """

    _scalar: ClassVar[str] = "p_value"

    @property
    def reason(self) -> Any:
        """Why the verdict is "cannot tell", or ""; an array for a batch. Outside of jit only."""
        shape, cases = self.batch_shape, list(self._no_verdict())
        holds = [np.broadcast_to(np.asarray(where), shape) for _, where in cases]
        nothing = np.full(shape, "")
        texts = np.select(holds, [text for text, _ in cases], default="") if cases else nothing
        return texts if shape else str(texts)

    @property
    def _decides(self) -> Any:
        """The p-value that is compared with the level."""
        return getattr(self, self._scalar)

    @property
    def verdict(self) -> Any:
        """ "rejected", "not rejected" or "cannot tell"; an array for a batch. Outside of jit only.

        "cannot tell" if something prevents a verdict, such as an input that is not finite, or too
        few observations: `reason` says what. Else "rejected" if p <= level, or "not rejected".
        """
        p, result = np.asarray(self._decides), cast(Any, self)
        decided = np.where(p <= np.asarray(result.level, p.dtype), "rejected", "not rejected")
        verdicts = np.where(np.asarray(self.reason) == "", decided, "cannot tell")
        return verdicts if p.ndim else str(verdicts)

    @property
    def p_counted(self) -> Array:
        """The p-value to combine with those of other tests: 1 if `reason` is not empty."""
        nothing = jnp.asarray(np.asarray(self.reason) != "")
        return jnp.where(nothing, 1, jnp.asarray(self._decides))

    def _no_verdict(self) -> Sentences:
        raise NotImplementedError("a judged result says when it has no verdict")

    def _contents(self) -> Contents:
        return super()._contents() | {"verdict": self.verdict, "reason": self.reason}


def load(path: Path | str) -> Any:
    """Read a result of any class from a file, with the values, types and provenance it had.

    Args:
        path: The .npz file, which the method ``save`` of a result wrote.

    Returns:
        The result, of the class that was saved.

    Raises:
        ValueError: The file is damaged or holds no result; the message names it.

    Example:
        >>> import jax, jaxcal, pathlib, tempfile
        >>> p = jax.random.uniform(jax.random.key(0), (100,))
        >>> y = jax.random.bernoulli(jax.random.key(1), p)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     jaxcal.skce_test(2, p, y).save(pathlib.Path(folder) / "test.npz")
        ...     jaxcal.load(pathlib.Path(folder) / "test.npz").verdict
        'not rejected'
    """
    return Result.load(path)


class TestResult(JudgedResult):
    """Outcome of a test of n observations.

    Attributes:
        estimate: Unbiased estimate of the squared discrepancy, []; may be negative.
        biased: The V-statistic, []; never negative, for positive definite kernels.
        standard_error: Standard error of the estimate for a clearly miscalibrated model, []; under
            calibration use the p-value. `jaxcal.nulls.DependentWild` allows for dependence.
        statistic: The test statistic, [], which is compared with ``null_samples``.
        p_value: P-value, [].
        null_samples: Draws of the statistic under calibration, [b]; empty if a formula gives p.
        bandwidths: Bandwidths that the median heuristic chose, by name, in units of the test.
        contributions: Contribution of each observation, [n]; they sum to the estimate (but see
            ``parts``).
        coordinates: Attribution to target coordinates; None unless requested.
        notes: Counts and flags of possible problems, by warning code. `warnings` returns sentences
            on those that apply.
        test: Name of the test.
        null: Name of the null distribution.
        sensitivity: Coefficients c_q, [d]: a shift of all targets by a small delta (in units of the
            test) along coordinate q raises the expected statistic by c_q delta^2. NaN if not
            significant, None if unknown.
        parts: Evidence for each alternative of a `jaxcal.calibration_test`; None for other tests.
            With parts, ``statistic``, ``estimate`` and ``biased`` are the log of the mean evidence,
            ``contributions`` are first-order effects on this log, and ``standard_error`` is 0.
        table: Shift and spread of each coordinate in a `jaxcal.calibration_test`, or None.
        ranks: Randomized ranks of each target among points of its prediction, [n, 1 + d + s], by
            log density, by d coordinates and by s ``statistics`` of a `jaxcal.calibration_test`.
            Uniform under calibration; NaN for excluded targets. None for other tests.
        p_value_error: Error bound of the p-value, [], for an approximation with a known error; None
            for other nulls.
        route: How averages over the predictions were computed, with the error if they are not
            exact.
        steps: How the test was fitted, one line per step; `jaxcal.explain` prints them.
        level: Level of the test: the probability of rejecting a calibrated model. Confidence
            limits in ``coordinates`` and ``table`` are at 1 - level.
        too_few: Why this null cannot reject any data of this size; empty if it can.
    """

    _plots: ClassVar[tuple[str, ...]] = ("results.null_histogram", "results.contributions")
    __test__ = False  # a result, not a pytest class
    _long: ClassVar[tuple[str, ...]] = ("null_samples", "ranks", "steps", "too_few")

    estimate: Scalar
    biased: Scalar
    standard_error: Scalar
    statistic: Scalar
    p_value: Scalar
    null_samples: Float[Array, " b"]
    bandwidths: dict[str, Scalar]
    contributions: Float[Array, " n"]
    coordinates: Coordinates | None
    notes: Notes
    test: str = eqx.field(static=True)
    null: str = eqx.field(static=True)
    sensitivity: Float[Array, " d"] | None = None
    parts: Parts | None = None
    table: Table | None = None
    ranks: Float[Array, "n r"] | None = None
    p_value_error: Scalar | None = None
    route: str = eqx.field(static=True, default="")
    steps: tuple[str, ...] = eqx.field(static=True, default=())
    level: float = eqx.field(static=True, default=0.05)
    too_few: str = eqx.field(static=True, default="")

    @classmethod
    def of(cls, notes: Notes, **fields: Any) -> "TestResult":
        """Return a result with ``fields``; estimates and p-value are NaN if inputs are not finite.

        Every `TestResult` is built here. Notes on overflow and a dominant observation are added.
        """
        finite = all_finite(notes)
        numbers = ("estimate", "biased", "standard_error", "statistic", "p_value", "contributions")
        fields |= {
            name: jax.tree.map(lambda x: jnp.where(finite, x, jnp.nan), fields[name])
            for name in (*numbers, "p_value_error", "coordinates", "sensitivity")
            if name in fields
        }
        lost = ~jnp.isfinite(fields["p_value"]) | ~jnp.isfinite(fields["estimate"])
        share = largest_share(fields["contributions"])
        silent = jnp.asarray(notes.get("silent", False))
        notes = notes | {"overflow": finite & lost & ~silent, "one-observation-decides": share}
        return cls(notes=notes, **fields)

    def at_level(
        self, level: float, least_p_value: Callable[[int], float], tests: int = 1
    ) -> "TestResult":
        """Return the result with this ``level``. Its confidence limits keep the original level.

        ``least_p_value`` maps n to the smallest p-value of the null for n observations; ``tests``
        is the number of tests that share the level.
        """
        n = self.contributions.shape[-1]
        few = too_few(self.null, least_p_value, n, level, tests)
        return replace(self, level=level, too_few=few)

    def _no_verdict(self) -> Sentences:
        return no_verdict(self)

    @property
    def smallest_shift(self) -> Any:
        r"""Detectable shift along each coordinate (80 % power), [d], in units of the test.

        All targets are shifted alike; the unit is by default the standard deviation of the targets.
        None if unknown; NaN in coordinates without a significant ``sensitivity``. Correct to first
        order in the shift. Outside of jit only.

        With q the critical value and :math:`\sigma` the standard deviation of the null's draws, a
        shift that moves the statistic by c is detected with probability 80 % if
        :math:`c = q + z \sqrt{\sigma^2 + 2\sqrt2\,\sigma c}`: z is the 80 % normal quantile, and
        :math:`2\sqrt2\,\sigma c` bounds the variance that the shift adds.
        """
        if self.sensitivity is None:
            return None
        draws, z2 = np.asarray(self.null_samples), 0.8416**2
        q = np.quantile(draws, 1 - self.level, axis=-1, method="higher")
        sd = np.std(draws, axis=-1)
        middle = q + 2**0.5 * z2 * sd
        move = middle + np.sqrt(middle**2 - q**2 + z2 * sd**2)
        return np.sqrt(move[..., None] / np.asarray(self.sensitivity))

    def _sentences(self) -> Sentences:
        rejected = np.asarray(self.p_value) <= self.level
        notes = worth_saying(self.notes, self.contributions.shape[-1], rejected)
        if self.null != "DependentWild":
            notes["dependent-rows"] = np.where(
                rejected, memory(np.asarray(self.contributions)[..., None]), 0
            )
        said = sentences(notes)
        if self.coordinates is not None:
            split = self.coordinates
            about = about_coordinates(split.marginal_mean, split.marginal_spread)
            said += [(text, True) for text in about]
        return [*said, (self.too_few, bool(self.too_few))]

    def _contents(self) -> Contents:
        return super()._contents() | {"smallest_shift": self.smallest_shift}

    def _lines(self) -> list[str]:
        return report.report(self)

    def _batch_lines(self) -> list[str]:
        return batch_report(self)
