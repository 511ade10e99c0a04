"""Fit a test to a first sample, then compute it in one pass over batches of any iterator."""

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from operator import length_hint
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from jaxcal.dce.table import CELLS
from jaxcal.divergences.vectors import Vectors
from jaxcal.fit.options import stein_specification, with_random_features
from jaxcal.fit.residuals import MeanResidual
from jaxcal.fit.specification import RandomFeatures, Specification
from jaxcal.numerics import full_precision
from jaxcal.read import checks, convert
from jaxcal.read.convert import input_names
from jaxcal.read.observations import scored
from jaxcal.results import Result, in_one_order, rows_in_one_order
from jaxcal.skce.calibration import mean_specification
from jaxcal.streaming.batches import remaining
from jaxcal.streaming.calibration import EntriesFit
from jaxcal.streaming.comparison import ComparisonSums
from jaxcal.streaming.linear import LinearFit
from jaxcal.streaming.state import RankCounts, StreamState, Sums, TableSums, same_test
from jaxcal.typing import ArrayLike, KeyLike, Models, Predictions, PredictionsLike

PATIENCE = 3.0  # seconds before a progress bar appears


class StreamedTest(eqx.Module):
    """A test fitted to a first sample, which takes batches one by one.

    Units, bandwidths, nodes and frequencies are fitted to the first sample, which may be part of
    the stream. The statistic is that of the linear-time test with random features on all rows. The
    order and sizes of batches change the result only by rounding. If predictions are averaged over
    draws, the draws of a batch also depend on the number of its first new row. P-values are from
    the limit distribution, as with `nulls.Eigenvalues`; targets are never redrawn. Each class or
    count should therefore be expected ten times or more in the stream. Memory: one batch of n rows
    and p features, and p^2 numbers.

    `jaxcal.calibration_test` needs no random features, because its statistic consists of sums. The
    number of a row determines its random numbers. Rows are numbered from 0. If several
    workers add to one test, each passes the number of its first row as ``first``, so that draws do
    not depend on the order of the rows or on the worker. Repeated row numbers are refused.

    Construct it by `calibration`, `kccsd`, `kcsd`, `skce`, `comparison`, `coverage` or `table`, in
    every process of `jax.distributed` if there are several.

    Attributes:
        fit: The test fitted to the first sample, which defines the sums.
        n_first: Size of the first sample.
        name: Name of the test.
        fingerprint: Identifies the fit; states of different tests do not add up.

    Example:
        >>> import numpy as np
        >>> from jaxcal import RandomFeatures
        >>> from jaxcal.streaming import StreamedTest, array_batches
        >>> random = np.random.default_rng(0)
        >>> p = random.dirichlet(np.ones(3), 4000)
        >>> labels = (random.random(4000)[:, None] > np.cumsum(p, 1)).sum(1)  # calibrated
        >>> test = StreamedTest.skce(0, p[:500], labels[:500], features=RandomFeatures(1, 20))
        >>> result = test.result(test.run(array_batches(1000, p, labels)))
        >>> result.n, result.verdict
        (4000, 'not rejected')
    """

    fit: Sums
    n_first: int = eqx.field(static=True)
    name: str = eqx.field(static=True)
    fingerprint: int = eqx.field(static=True)

    @classmethod
    @full_precision
    @rows_in_one_order
    def calibration(
        cls,
        key: KeyLike,
        predictions: Predictions,
        targets: ArrayLike,
        inputs: ArrayLike | None = None,
        *,
        names: Sequence[str] | None = None,
        n_draws: int = 500,
    ) -> "StreamedTest":
        """Return `jaxcal.calibration_test` as a streamed test, fitted to a first sample.

        Args:
            key: Random key: typed, legacy or an integer seed.
            predictions: Log densities of the first sample, as in `jaxcal.calibration_test`. For
                numpyro distributions, draws depend on the batch, not on row numbers.
            targets: Targets of the first sample.
            inputs: Inputs of the first sample, or None. If given, batches are triples with inputs.
            names: Names of the d coordinates of a target; by default 0, 1, ...
            n_draws: Number of draws of signs.

        Cost: for each batch that of `jaxcal.calibration_test`.
        """
        ys, key = checks.targets(targets), convert.key(key)
        n_draws = convert.integer(n_draws, "n_draws")
        fit = EntriesFit.of(key, predictions, ys, inputs, n_draws, names)
        return cls.of_sums(fit, len(ys), "calibration test")

    @classmethod
    @rows_in_one_order
    def kccsd(
        cls,
        key: KeyLike,
        predictions: PredictionsLike,
        targets: ArrayLike,
        *,
        features: RandomFeatures,
        **options,
    ) -> "StreamedTest":
        """Return the KCCSD test fitted to a first sample; options as in `jaxcal.kccsd_test`."""
        ys = checks.targets(targets)
        predictions = scored(predictions, ys)
        spec = stein_specification(ys, **options)
        return cls._fit(key, predictions, ys, spec, features, "KCCSD test", "kccsd")

    @classmethod
    @rows_in_one_order
    def kcsd(
        cls,
        key: KeyLike,
        predictions: PredictionsLike,
        targets: ArrayLike,
        inputs: ArrayLike,
        *,
        features: RandomFeatures,
        **options,
    ) -> "StreamedTest":
        """Return the KCSD test fitted to a first sample; options as in `jaxcal.kcsd_test`. Its
        batches are triples of predictions, targets and inputs."""
        ys = checks.targets(targets)
        predictions = scored(predictions, ys)
        columns = checks.rows(inputs, ys.shape[0], "inputs")
        spec = stein_specification(ys, divergence=Vectors(columns), **options)
        names = input_names(inputs, columns.shape[1])
        return cls._fit(key, predictions, ys, spec, features, "KCSD test", "kcsd", names)

    @classmethod
    @rows_in_one_order
    def skce(
        cls,
        key: KeyLike,
        predictions: PredictionsLike,
        targets: ArrayLike,
        *,
        features: RandomFeatures,
        **options,
    ) -> "StreamedTest":
        """Return the SKCE test fitted to a first sample; options as in `jaxcal.skce_test`."""
        predictions, ys, spec = mean_specification(predictions, targets, **options)
        # later targets that are counts may exceed those of the first sample, so averages use draws
        drawn = MeanResidual(options.get("n_samples"))
        spec = eqx.tree_at(lambda chosen: chosen.residual, spec, drawn)
        return cls._fit(key, predictions, ys, spec, features, "SKCE test", "skce")

    @classmethod
    @full_precision
    @rows_in_one_order
    def comparison(
        cls, key: KeyLike, models: Models, targets: ArrayLike, *, n_draws: int = 999
    ) -> "StreamedTest":
        """Return an approximation of `jaxcal.compare` in units of probability as a streamed test.

        Batches are pairs (models by the same names, targets); the result is a `Comparison` and
        needs 1,024 observations or more. All observations have the same leave-one-out factor:
        `jaxcal.streaming.comparison` states the error of this approximation. Points drawn from
        distributions, and the ranks of tied draws, depend on the batch instead of the row numbers.

        Args:
            key: Random key: typed, legacy or an integer seed.
            models: Predictions of the first sample, as in `jaxcal.compare`. They determine the
                names, the classes and, for more than 30 classes, the components that are compared;
                for predictions other than class probabilities they determine the units.
            targets: Targets of the first sample: classes, or values [n] or [n, d].
            n_draws: Number of draws of the test.

        Cost: for a batch of n rows and each model, n m^2 multiplications for m classes; for other
        predictions that of `jaxcal.compare`. The sums of a model take 32 m^2 kB for m <= 30
        classes, and about 500 d^2 kB for predictions of targets with d coordinates.
        """
        n_draws = convert.integer(n_draws, "n_draws")
        sums = ComparisonSums.of(convert.key(key), models, targets, n_draws)
        name = f"comparison of {', '.join(sums.names)}, {n_draws} draws"
        return cls.of_sums(sums, np.shape(targets)[0], name)

    @classmethod
    def coverage(cls, n_samples: int) -> "StreamedTest":
        """Return `jaxcal.coverage.coverage` with ``n_samples`` draws per prediction as a streamed
        test, which needs no first sample. Batches are triples of predictions, targets and draws;
        the result is a `Coverage`. If a draw and the target may have equal densities, pass
        ``first`` in every worker, because row numbers determine how such ties are broken.
        """
        n_samples = convert.integer(n_samples, "n_samples")
        return cls.of_sums(RankCounts(n_samples), 0, f"coverage, {n_samples} draws")

    @classmethod
    def table(cls, cells: int = CELLS) -> "StreamedTest":
        """Return a streamed test that computes a `jaxcal.dce.Table`; it needs no first sample.

        Batches are pairs of probabilities [n] or [n, 2] and labels 0 or 1. For three or more
        classes, [n, m] and labels below m, the table uses the largest probability, and whether
        its class is the label. `jaxcal.dce` computes measures and tests from the resulting `Table`.
        """
        cells = convert.integer(cells, "cells")
        return cls.of_sums(TableSums(cells), 0, f"table, {cells} cells")

    @classmethod
    @full_precision
    def _fit(
        cls,
        key: KeyLike,
        predictions: PredictionsLike,
        ys: Array,
        spec: Specification,
        features: RandomFeatures,
        name: str,
        kind: str,
        inputs: tuple[str, ...] = (),
    ) -> "StreamedTest":
        spec = with_random_features(spec, features)
        fit = LinearFit.of(convert.key(key), predictions, ys, spec, kind, inputs)
        return cls.of_sums(fit, ys.shape[0], name)

    @classmethod
    def of_sums(cls, fit: Sums, n_first: int, name: str) -> "StreamedTest":
        """Return the streamed test for ``fit``, a test fitted to ``n_first`` observations."""
        leaves, structure = jax.tree.flatten(fit)
        # with static fields, but without memory addresses, which differ between processes
        version = import_module("jaxcal").__version__  # other versions have other sums
        text = re.sub(" at 0x[0-9a-fA-F]+", "", f"{version} {name} {structure}")
        parts = [*(_plain(leaf).tobytes() for leaf in leaves), text.encode()]
        fingerprint = zlib.crc32(b"".join(parts))
        same_test(fingerprint)  # connects the processes while all of them run
        return cls(fit, n_first, name, fingerprint)

    def empty(self) -> StreamState:
        """Return the state before the first batch."""
        return StreamState(self.fingerprint, 0, (), (), {}, {})

    def update(self, state: StreamState, *batch: PyTree, first: int | None = None) -> StreamState:
        """Return the state after one more batch: predictions, targets and, if any, inputs.

        Args:
            state: A state from `empty`, `update` or `StreamState.load`; it is not modified.
            batch: Arguments as for the fit: arrays or tensors with a leading axis of any length.
                Batches of equal length share one compiled program.
            first: Number of the first row of the batch; by default the next number. Pass it if
                states of several workers are merged: row numbers must be distinct, and repeated
                ones are refused.

        Raises:
            ValueError: A batch has wrong shapes or classes, or the state is of another test.
            TypeError: A batch has the wrong type.

        Cost: n p^2 multiplications for n rows and p features.
        """
        return self._update(state, batch, 0, None if first is None else _number(first, "first"))

    @full_precision
    def _update(
        self, state: StreamState, batch: PyTree, done: int, first: int | None = None
    ) -> StreamState:
        """Return the state with the rows of the batch after its first ``done`` rows."""
        if not 2 <= len(batch) <= 3:
            raise ValueError(
                f"batch: wanted predictions, targets and inputs if any, got {len(batch)}"
            )
        in_one_order(dict(zip(("predictions", "targets", "inputs"), batch, strict=False)))
        numbered = self.fit.numbered or first is not None
        first = _next(state) - done if first is None else first
        n, sums, least = self.fit.of_batch(batch, first, done)
        rows = ((first + done, first + n),) if numbered else ()
        sums = {name: np.asarray(part, np.float64) for name, part in sums.items()}
        least = {name: float(part) for name, part in least.items()}
        return state.merge(StreamState(self.fingerprint, n - done, (), rows, sums, least))

    def run(
        self,
        batches: Iterable[PyTree],
        *,
        state: StreamState | None = None,
        first: int | None = None,
        checkpoint: Path | str | None = None,
        every: int = 100,
        progress: bool = False,
    ) -> StreamState:
        """Return the state after all batches of an iterator, in one pass.

        Args:
            batches: Tuples as in `update`, for example from a PyTorch loader.
            state: State of an interrupted pass, whose n rows are skipped. Pass the same rows again
                in the same order, in batches of any size; shards must have the same name, size and
                checksum.
            first: Number of the first row of the first batch, as in `update`.
            checkpoint: File to which the state is written during the pass and at its end. If it
                exists, the pass resumes from it and not from ``state``.
            every: Number of batches between two writes of the file.
            progress: Show a bar on stderr if the pass takes more than a few seconds.

        Returns:
            The state after the last batch.

        Raises:
            ValueError: A batch, whose number is named, is wrong; the file holds the state of
                another test, or of fewer rows than ``state``; or rows of the state are missing or
                from other shards.
        """
        every = convert.integer(every, "every")
        state = self.empty() if state is None else state
        if checkpoint is not None and Path(checkpoint).exists():
            passed, state = state, self.empty().merge(StreamState.load(checkpoint))
            if passed.n > state.n:
                raise ValueError(
                    f"checkpoint: {checkpoint} holds a state of {state.n} rows, fewer than the "
                    f"{passed.n} of state=: delete the file to resume from state="
                )
        numbered = self.fit.numbered or first is not None
        number_of = _next(state) if first is None else _number(first, "first") + state.n
        todo = batches
        if progress:
            from tqdm import tqdm

            total = length_hint(batches) or None
            todo = tqdm(batches, unit="batch", total=total, delay=PATIENCE)
        for number, batch, done, shards in remaining(iter(todo), state.n, state.shards):
            try:
                start = number_of - done if numbered else None
                added = self._update(state, batch, done, start)
                number_of += added.n - state.n
                state = replace(added, shards=shards)
            except (ValueError, TypeError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(f"batch {number}: {error}") from error
            if checkpoint is not None and (number + 1) % every == 0:
                state.save(checkpoint)
        if checkpoint is not None:
            state.save(checkpoint)
        return state

    @full_precision
    def result(self, state: StreamState, *, level: float = 0.05, rows: int | None = None) -> Result:
        """Return the result of a streamed test from a state.

        Args:
            state: The state after some or all batches.
            level: Level of the test.
            rows: Number of all rows, numbered from 0. If given, an error names the rows that are
                missing, such as those of a lost worker.

        Returns:
            For a test from `calibration`: `jaxcal.streaming.linear.StreamedCalibration`. From
            `comparison`: `Comparison`. From `coverage`: `Coverage`. From `table`:
            `jaxcal.dce.Table`. For all others: `jaxcal.streaming.linear.StreamResult`.

        Raises:
            ValueError: There are fewer than 2 observations, rows are missing (they are named), or
                the state is of another test.
        """
        level, state = checks.level(level), self.empty().merge(state)
        if state.n < 2:
            raise ValueError(f"state: a test needs at least 2 observations, got {state.n}")
        if rows is not None and (missing := state.missing(_number(rows, "rows", 1))):
            raise ValueError(f"state: rows {missing} of {rows} are missing: add the states of them")
        return self.fit.result(state, self.n_first, self.name, level)


def _number(value: object, name: str, least: int = 0) -> int:
    """Return ``value`` if it is an integer from ``least`` to 2^62; an error names the argument."""
    return convert.integer(value, name, least=least, most=2**62)


def _next(state: StreamState) -> int:
    """Return the number of the row after the last row of a state."""
    return state.rows[-1][1] if state.rows else state.n


def _plain(leaf: Array) -> np.ndarray:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)
