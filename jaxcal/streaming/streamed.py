"""A test fitted to a first sample, then one pass over batches of any iterator."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import length_hint
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from jaxcal.dce.table import CELLS
from jaxcal.divergences.vectors import Vectors
from jaxcal.fit import (
    MeanResidual,
    RandomFeatures,
    Specification,
    stein_specification,
    with_random_features,
)
from jaxcal.read import checks
from jaxcal.results import Result
from jaxcal.skce.specification import mean_specification
from jaxcal.streaming.batches import remaining
from jaxcal.streaming.comparison import ComparisonSums
from jaxcal.streaming.counts import RankCounts, TableSums
from jaxcal.streaming.entries import EntriesStream
from jaxcal.streaming.linear import LinearFit
from jaxcal.streaming.state import StreamState, Sums, same_test
from jaxcal.typing import ArrayLike, KeyLike, Models, Predictions, PredictionsLike

PATIENCE = 3.0  # seconds without a bar


class StreamedTest(eqx.Module):
    """A test fitted to a first sample, that takes batches one by one.

    Units, bandwidths, nodes and frequencies are those of the first sample; it may be part of the
    stream. Given them the statistic of all batches is that of one linear-time test with random
    features, whatever their order and sizes, up to rounding. P-values are those of its limit, as by
    `nulls.Eigenvalues`, also where `jaxcal.skce_test` would draw targets anew (`nulls.Redrawn`): of
    classes or counts that predictions call rare a stream should expect ten or more. Memory: one
    batch of n rows and p features, and p^2.

    `jaxcal.calibration_test` streams by itself, without random features: it is a test of sums, with
    signs, and points near predictions, that are drawn by the number of the row. Numbers are counted
    on from 0; where several workers add to one test, each says by ``first`` which number its first
    row has, and neither order nor shares change a draw. Rows that come twice are refused.

    Made by `calibration`, `kccsd`, `kcsd`, `skce`, `comparison`, `coverage` or `table`, in every
    process of `jax.distributed` where there are several.

    Attributes:
        fit: What the first sample fixes, and the sums that are added up.
        n_first: Observations of the first sample.
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
        """`jaxcal.calibration_test`, fitted to a first sample.

        Args:
            key: Random key: typed, legacy or an integer seed.
            predictions: Log densities of the first sample, as in `jaxcal.calibration_test`. Draws
                from numpyro distributions are those of a batch, not of its rows.
            targets: Its targets.
            inputs: Its inputs, or None; with these, batches are triples.
            names: Names of the d coordinates of a target; by default 0, 1, ...
            n_draws: Draws of signs.

        Cost: for each batch that of `jaxcal.calibration_test`.
        """
        ys, key = checks.targets(targets), checks.key(key)
        n_draws = checks.integer(n_draws, "n_draws")
        fit = EntriesStream.of(key, predictions, ys, inputs, n_draws, names)
        return cls.of_sums(fit, len(ys), "calibration test")

    @classmethod
    def kccsd(
        cls,
        key: KeyLike,
        predictions: PredictionsLike,
        targets: ArrayLike,
        *,
        features: RandomFeatures,
        **options,
    ) -> "StreamedTest":
        """The KCCSD test, fitted to a first sample; options as in `jaxcal.kccsd_test`."""
        ys = checks.targets(targets)
        predictions = checks.predictions(predictions, ys)
        spec = stein_specification(ys, **options)
        return cls._fit(key, predictions, ys, spec, features, "KCCSD test", "kccsd")

    @classmethod
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
        """The KCSD test, fitted to a first sample; options as in `jaxcal.kcsd_test`. Its batches
        are triples of predictions, targets and inputs."""
        ys = checks.targets(targets)
        predictions = checks.predictions(predictions, ys)
        vectors = Vectors(checks.rows(inputs, ys.shape[0], "inputs"))
        spec = stein_specification(ys, divergence=vectors, **options)
        return cls._fit(key, predictions, ys, spec, features, "KCSD test", "kcsd")

    @classmethod
    def skce(
        cls,
        key: KeyLike,
        predictions: PredictionsLike,
        targets: ArrayLike,
        *,
        features: RandomFeatures,
        **options,
    ) -> "StreamedTest":
        """The SKCE test, fitted to a first sample; options as in `jaxcal.skce_test`."""
        predictions, ys, spec = mean_specification(predictions, targets, **options)
        # later counts may lie beyond those of the first sample: they are drawn
        drawn = MeanResidual(options.get("n_draws"))
        spec = eqx.tree_at(lambda chosen: chosen.residual, spec, drawn)
        return cls._fit(key, predictions, ys, spec, features, "SKCE test", "skce")

    @classmethod
    def comparison(
        cls, key: KeyLike, models: Models, targets: ArrayLike, *, n_draws: int = 999
    ) -> "StreamedTest":
        """`jaxcal.compare` of class probabilities in units of probability, to first order.

        Its batches are pairs of models, by the same names, and classes; its result is a
        `Comparison` of 1,024 observations or more. The factors of the leave-one-out estimate are
        the same for all observations, as `jaxcal.streaming.comparison` says with their error.

        Args:
            key: Random key: typed, legacy or an integer seed.
            models: Class probabilities of the first sample, as in `jaxcal.compare`. It fixes names
                and classes, and of more than 30 classes the components that are looked at.
            targets: Its classes.
            n_draws: Draws of the test.

        Cost: for each batch of n rows M n m^2 multiplications of M models and m classes; 32 M m^2
        kB for sums of up to 30 classes.
        """
        n_draws = checks.integer(n_draws, "n_draws")
        sums = ComparisonSums.of(checks.key(key), models, targets, n_draws)
        name = f"comparison of {', '.join(sums.names)}, {sums.m} classes, {n_draws} draws"
        return cls.of_sums(sums, np.shape(targets)[0], name)

    @classmethod
    def coverage(cls, n_draws: int) -> "StreamedTest":
        """`jaxcal.coverage.coverage` with so many draws from each prediction, which needs no first
        sample. Its batches are triples of predictions, targets and draws, its result a `Coverage`.
        """
        n_draws = checks.integer(n_draws, "n_draws")
        return cls.of_sums(RankCounts(n_draws), 0, f"coverage, {n_draws} draws")

    @classmethod
    def table(cls, cells: int = CELLS) -> "StreamedTest":
        """`jaxcal.dce.Table` of as many cells, which needs no first sample.

        Its batches are pairs of probabilities [n] or [n, 2] and labels 0 or 1. Of probabilities of
        three and more classes, [n, m], the table is that of the most probable class: its
        probability, and whether it is right. The result is a `Table`, from which measures and
        tests of `jaxcal.dce` are taken.
        """
        cells = checks.integer(cells, "cells")
        return cls.of_sums(TableSums(cells), 0, f"table, {cells} cells")

    @classmethod
    def _fit(
        cls,
        key: KeyLike,
        predictions: PredictionsLike,
        ys: Array,
        spec: Specification,
        features: RandomFeatures,
        name: str,
        kind: str,
    ) -> "StreamedTest":
        spec = with_random_features(spec, features)
        fit = LinearFit.of(checks.key(key), predictions, ys, spec, kind)
        return cls.of_sums(fit, ys.shape[0], name)

    @classmethod
    def of_sums(cls, fit: Sums, n_first: int, name: str) -> "StreamedTest":
        """The test of what a stream adds up, fitted to so many observations."""
        leaves = [_plain(leaf) for leaf in jax.tree.leaves(fit)]
        fingerprint = zlib.crc32(b"".join(leaf.tobytes() for leaf in leaves) + name.encode())
        same_test(fingerprint)  # connects the processes while all of them are there
        return cls(fit, n_first, name, fingerprint)

    def empty(self) -> StreamState:
        """The state before the first batch."""
        return StreamState(self.fingerprint, 0, (), (), *self.fit.zeros())

    def update(self, state: StreamState, *batch: PyTree, first: int | None = None) -> StreamState:
        """The state with one more batch: predictions, targets and, where the test has them, inputs.

        Args:
            state: What `empty`, `update` or `StreamState.load` returned.
            batch: As in the test of the same name: arrays or tensors with a leading axis of any
                length. Batches of one length share one program.
            first: Number of the first row of the batch. By default rows are counted on; say it
                where states of several workers are merged, so that each row has its own number.
                Rows that are numbered are refused where they come twice.

        Returns:
            A new state; the old one stays as it is.

        Raises:
            ValueError: a batch of wrong shapes or classes, or a state of another test.
            TypeError: a batch of the wrong type.

        Cost: n p^2 multiplications for n rows and p features.
        """
        return self._update(state, batch, 0, None if first is None else _number(first, "first"))

    def _update(
        self, state: StreamState, batch: PyTree, done: int, first: int | None = None
    ) -> StreamState:
        """The same, without the first rows of the batch, which the state has or which fill it."""
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
        """One pass over batches of an iterator.

        Args:
            batches: Tuples as `update` takes them, such as a PyTorch loader gives.
            state: Where to go on: its n rows are skipped. Give the same rows again in the same
                order, in batches of any size; shards must be the same by name, size and checksum.
            first: Number of the first row of all batches, as in `update`.
            checkpoint: File that holds the state every so many batches and at the end. Where it
                exists, the pass goes on from it.
            every: Batches between two writes of the file.
            progress: Show a bar on stderr where the pass takes more than a few seconds.

        Returns:
            The state after the last batch.

        Raises:
            ValueError: a batch is wrong, which is named by its number, the file holds the state of
                another test, or rows that the state has are missing or of other shards.
        """
        state = self.empty() if state is None else state
        if checkpoint is not None and Path(checkpoint).exists():
            state = self.empty().merge(StreamState.load(checkpoint))
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

    def result(self, state: StreamState, *, level: float = 0.05, rows: int | None = None) -> Result:
        """Return the result of the sums: p-value and verdict, coverage, or the table.

        Args:
            state: The state after some or all batches.
            level: Level of the test.
            rows: Number of all rows, numbered from 0, where it is known: none may be missing, as
                those of a worker that was lost.

        Returns:
            `jaxcal.streaming.linear.StreamResult`, with an estimate, or of a calibration test
            `jaxcal.streaming.entries.StreamedCalibration`, a `Comparison`, a `Coverage` or a
            `jaxcal.dce.Table`.

        Raises:
            ValueError: fewer than 2 observations, rows that are missing, which are named, or the
                state of another test.
        """
        level, state = checks.level(level), self.empty().merge(state)
        if state.n < 2:
            raise ValueError(f"state: a test needs at least 2 observations, got {state.n}")
        if rows is not None and (missing := state.missing(_number(rows, "rows", 1))):
            raise ValueError(f"state: rows {missing} of {rows} are missing: add the states of them")
        return self.fit.result(state, self.n_first, self.name, level)


def _number(value: object, name: str, least: int = 0) -> int:
    """The number of a row, of 64 bits."""
    return checks.integer(value, name, least=least, most=2**62)


def _next(state: StreamState) -> int:
    """The number after all rows of a state."""
    return state.rows[-1][1] if state.rows else state.n


def _plain(leaf: Array) -> np.ndarray:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)
