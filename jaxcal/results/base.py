"""Base classes of results: warnings, report, conversion to numbers and tables, saving, loading."""

import dataclasses
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer

from jaxcal.results import report, saved
from jaxcal.results.notes import pointer
from jaxcal.results.parts import plain
from jaxcal.results.saved import SOURCE, provenance
from jaxcal.typing import Contents

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Sentences = Iterable[tuple[str, Any]]  # a sentence, and whether it applies


class Result(eqx.Module):
    """A result or a batch of results, with its warnings and report.

    Subclasses implement ``_sentences`` (possible warnings), ``_lines`` (report of one result) and
    ``_batch_lines`` (report of several). ``_scalar`` names the field whose shape is that of the
    batch, ``_long`` the arrays that `to_dict` omits, ``_rows`` the arrays of one length that make
    the rows of a table, and ``_plots`` the functions of `jaxcal.plots` that draw one result, as
    "module.function".
    """

    __slots__ = (SOURCE,)  # no field, so that results of different keys still stack

    _scalar: ClassVar[str] = "value"
    _long: ClassVar[tuple[str, ...]] = ()
    _mark: ClassVar[str] = "warning"  # before each sentence of the report
    _rows: ClassVar[tuple[str, ...]] = ()
    _plots: ClassVar[tuple[str, ...]] = ()

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of a batch of results; () for one."""
        return np.shape(getattr(self, self._scalar))

    @property
    def traced(self) -> bool:
        """Whether the result holds tracers: it is inside of jit, vmap or grad."""
        return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(self))

    def warnings(self) -> list[str]:
        """Return sentences on anything that limits the result; often none.

        Each ends with a code in brackets, which ``python -m jaxcal explain`` explains.
        """
        if self.traced:
            return []
        return [text for text, holds in self._sentences() if holds]

    def to_dict(self) -> Contents:
        """Return numbers, lists and the warnings, for JSON; long arrays are omitted."""
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
        """Return a pandas data frame with one row per level, bin, part or model, or one row per
        result with its scalar numbers. ImportError if pandas is not installed."""
        self._with_numbers("to_frame")
        return report.to_frame(self, self._rows)

    def figure(self) -> "Figure | None":
        """Return a matplotlib figure of one result, as in notebooks and `to_html`; None if its
        class has none. ``figure().savefig("name.png")`` saves it."""
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

    def __str__(self) -> str:
        return repr(self)


class JudgedResult(Result):
    """A result whose ``p_value`` is compared with its ``level``.

    Subclasses have a ``level``. ``_no_verdict`` lists reasons against a verdict and whether they
    apply; the first is reported.
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

        "rejected" if p <= level, "not rejected" if p > level, and "cannot tell" if there is no
        p-value or the test could not have rejected any model; `reason` says why.
        """
        p, result = np.asarray(self._decides), cast(Any, self)
        decided = np.where(p <= np.asarray(result.level, p.dtype), "rejected", "not rejected")
        verdicts = np.where(np.asarray(self.reason) == "", decided, "cannot tell")
        return verdicts if p.ndim else str(verdicts)

    def _no_verdict(self) -> Sentences:
        raise NotImplementedError("a judged result says when it has no verdict")

    def _contents(self) -> Contents:
        return super()._contents() | {"verdict": self.verdict, "reason": self.reason}


def load(path: Path | str) -> Any:
    """Read a result of any class that its ``save`` wrote: the same values, types and provenance.

    Args:
        path: The .npz file.

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
