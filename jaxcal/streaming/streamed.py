"""A linear-time test fitted to a first sample, then one pass over batches of any iterator."""

import math
import zlib
from collections.abc import Iterable, Sized
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from jaxcal.divergences.vectors import Vectors
from jaxcal.engine.linear import ROWS, along, filled, in_blocks, parts_of, square, total, triangle
from jaxcal.fit import (
    Fitted,
    MeanResidual,
    RandomFeatures,
    Specification,
    not_finite,
    stein_specification,
    with_random_features,
)
from jaxcal.nulls.limits import p_value_of_spectrum
from jaxcal.read import checks
from jaxcal.read.observations import observations
from jaxcal.results import JudgedResult, Sentences, in_words
from jaxcal.results.notes import NOT_FINITE
from jaxcal.skce.specification import mean_specification
from jaxcal.statistics.finite_rank import FiniteRank
from jaxcal.streaming.batches import to_come
from jaxcal.streaming.state import StreamState, same_test
from jaxcal.typing import ArrayLike, Key, KeyLike, PredictionsLike

PATIENCE = 3.0  # seconds without a bar


class StreamResult(JudgedResult):
    """The outcome of a streamed test.

    Attributes:
        estimate: Unbiased estimate of the squared discrepancy of the features.
        standard_error: Of the estimate where the model is clearly not calibrated.
        p_value: From the limit distribution, by the eigenvalues of the covariance.
        p_value_error: Standard error of the p-value for having seen n observations.
        n: Observations.
        n_first: Observations of the first sample, which fixed units, bandwidths and nodes.
        bandwidths: Bandwidths by name, in the units of the test.
        test: Name of the test.
        route: The random features.
        fault: What forbids a verdict, "" where nothing does.
        level: Level of the test.
    """

    estimate: float
    standard_error: float
    p_value: float
    p_value_error: float
    n: int
    n_first: int
    bandwidths: dict[str, float]
    test: str
    route: str
    fault: str
    level: float = 0.05

    def _no_verdict(self) -> Sentences:
        return [(self.fault, bool(self.fault))]

    def _lines(self) -> list[str]:
        used = ", ".join(f"{name} {value:.4g}" for name, value in self.bandwidths.items())
        return [
            f"{self.test}, n = {self.n}, {self.route}",
            f"  estimate   {self.estimate:.4g}   (standard error {self.standard_error:.2g} if "
            f"not calibrated)",
            f"  p-value    {self.p_value:.4g}   (Eigenvalues, may be off by "
            f"{self.p_value_error:.1g})",
            f"  verdict    {in_words(self)}",
            f"  fixed by   the first {self.n_first} observations: units, nodes, bandwidths"
            + (f" ({used})" if used else ""),
        ]


class StreamedTest(eqx.Module):
    """A test with random features, fitted to a first sample, that takes batches one by one.

    Units, bandwidths, nodes and frequencies are those of the first sample; it may be part of the
    stream. Given them the statistic of all batches is that of one linear-time test, whatever their
    order and sizes, up to rounding. P-values are those of its limit, as by `nulls.Eigenvalues`,
    also where `jaxcal.skce_test` would draw targets anew (`nulls.Redrawn`): of classes or counts
    that predictions call rare a stream should expect ten or more. Memory: one batch of n rows and
    p features, and p^2. Made by `kccsd`, `kcsd` or `skce`, in every process of `jax.distributed`
    where there are several.

    Attributes:
        key: Random key of what the fit draws.
        prepared: Units, bandwidths, nodes and frequencies.
        n_first: Observations of the first sample.
        name: Name of the test.
        kind: Name of the method that made it.
        fingerprint: Identifies the fit; states of different tests do not add up.
        size: Length of the vectors that are summed.

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

    key: Key
    prepared: Fitted
    n_first: int = eqx.field(static=True)
    name: str = eqx.field(static=True)
    kind: str = eqx.field(static=True)
    fingerprint: int = eqx.field(static=True)
    size: int = eqx.field(static=True)

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
        key = checks.key(key)
        spec = with_random_features(spec, features)
        prepared, size = _fitted(key, predictions, ys, spec)
        leaves = [_plain(leaf) for leaf in jax.tree.leaves(prepared)]
        fingerprint = zlib.crc32(b"".join(leaf.tobytes() for leaf in leaves) + kind.encode())
        same_test(fingerprint)  # connects the processes while all of them are there
        return cls(key, prepared, ys.shape[0], name, kind, fingerprint, size.size)

    def empty(self) -> StreamState:
        """The state before the first batch."""
        return StreamState.empty(self.fingerprint, self.size)

    def update(self, state: StreamState, *batch: PyTree) -> StreamState:
        """The state with one more batch: predictions, targets and, for KCSD, inputs.

        Args:
            state: What `empty`, `update` or `StreamState.load` returned.
            batch: As in the test of the same name: arrays or tensors with a leading axis of any
                length. Batches of one length share one program.

        Returns:
            A new state; the old one stays as it is.

        Raises:
            ValueError: a batch of wrong shapes or classes, or a state of another test.
            TypeError: a batch of the wrong type.

        Cost: n p^2 multiplications for n rows and p features.
        """
        return self._update(state, batch, 0)

    def _update(self, state: StreamState, batch: PyTree, done: int) -> StreamState:
        """The same, without the first rows of the batch, which the state has."""
        predictions, targets, *inputs = batch
        if self.kind == "skce":
            predictions, ys = observations(predictions, targets, least=1)
        else:
            ys = checks.targets(targets, least=1)
            predictions = checks.predictions(predictions, ys)
        vectors = checks.rows(inputs[0], ys.shape[0], "inputs") if inputs else None
        # draws of a batch are its own, whatever its place
        key = jax.random.fold_in(self.key, zlib.crc32(np.asarray(ys).tobytes()))
        sums = _batch_sums(key, self.prepared, predictions, ys, vectors, jnp.asarray(done))
        along, products, trace, fourth, lost = (np.asarray(part, np.float64) for part in sums)
        n = ys.shape[0] - done
        added = StreamState(
            self.fingerprint, n, (), along, products, float(trace), float(fourth), int(lost)
        )
        return state.merge(added)

    def run(
        self,
        batches: Iterable[PyTree],
        *,
        state: StreamState | None = None,
        checkpoint: Path | str | None = None,
        every: int = 100,
        progress: bool = False,
    ) -> StreamState:
        """One pass over batches of an iterator.

        Args:
            batches: Tuples as `update` takes them, such as a PyTorch loader gives.
            state: Where to go on: its n rows are skipped. Give the same rows again in the same
                order, in batches of any size; that shards are the same is checked, by name, number
                of rows and checksum.
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
        todo = batches
        if progress:
            from tqdm import tqdm

            total = len(batches) if isinstance(batches, Sized) else None
            todo = tqdm(batches, unit="batch", total=total, delay=PATIENCE)
        for number, batch, done, shards in to_come(iter(todo), state.n, state.shards):
            try:
                state = replace(self._update(state, batch, done), shards=shards)
            except (ValueError, TypeError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(f"batch {number}: {error}") from error
            if checkpoint is not None and (number + 1) % every == 0:
                state.save(checkpoint)
        if checkpoint is not None:
            state.save(checkpoint)
        return state

    def result(self, state: StreamState, *, level: float = 0.05) -> StreamResult:
        """What the sums mean: estimate, p-value and verdict.

        Args:
            state: The state after some or all batches.
            level: Level of the test.

        Returns:
            `StreamResult`.

        Raises:
            ValueError: fewer than 2 observations, or the state of another test.
        """
        level, state = checks.level(level), self.empty().merge(state)
        n = state.n
        if n < 2:
            raise ValueError(f"state: a test needs at least 2 observations, got {n}")
        mean, second = state.sums / n, state.products / n
        square = float(mean @ mean)
        estimate = (n * square - state.trace / n) / (n - 1)
        values = np.linalg.eigvalsh(second) if state.lost == 0 else np.full(self.size, np.nan)
        values = values - state.trace / n**2  # without the diagonal of H, as in linear_sums
        trace, norm = state.trace / n, float(np.sum(second**2)) - state.fourth / n**2
        lengths = state.fourth / n - trace**2
        with jax.enable_x64(True):
            numbers = (n - 1) * estimate, values, trace, norm, lengths, float(n)
            p, error = _p_value(*(jnp.asarray(value) for value in numbers))
        variance = float(mean @ second @ mean) - square**2
        reason = ""
        if state.lost:
            reason = f"{state.lost} values of targets, scores or features are NaN or infinite"
        elif math.isnan(float(p)):
            reason = "the statistic or its null is not finite"
        return StreamResult(
            estimate if state.lost == 0 else math.nan,
            2 * math.sqrt(max(variance, 0) / n),
            float(p),
            float(error),
            n,
            self.n_first,
            {name: float(value) for name, value in self.prepared.bandwidths.items()},
            self.name,
            _statistic(self.prepared).route,
            reason,
            level,
        )


_p_value = jax.jit(p_value_of_spectrum)  # one program for all results of a test


def _statistic(prepared: Fitted) -> FiniteRank:
    assert isinstance(prepared.pairwise, FiniteRank)
    return prepared.pairwise


def _plain(leaf: Array) -> np.ndarray:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)


@jax.jit
def _fitted(
    key: Key, predictions: PredictionsLike, ys: Array, spec: Specification
) -> tuple[Fitted, Array]:
    prepared, featured = spec.fit(jax.random.split(key, 3)[:2], predictions, ys)
    return prepared, _statistic(prepared).vectors(featured.features)[:, :, 0].reshape(-1)


@jax.jit
def _batch_sums(
    key: Key,
    prepared: Fitted,
    predictions: PredictionsLike,
    ys: Array,
    vectors: Array | None,
    done: Array,
) -> PyTree:
    keys = jax.random.split(key, 2)
    featured = prepared.features(keys, predictions, ys, vectors=vectors)
    counts = featured.notes | {"nonfinite-targets": not_finite(ys)}
    lost = sum(counts[code].astype(int) for code in NOT_FINITE)
    n = ys.shape[0]
    rows = min(ROWS, n)
    vectors_of = _statistic(prepared).vectors

    def of_block(block: PyTree) -> PyTree:
        features, real = block
        z = vectors_of(features) * real[None, None, :, 0]
        parts = parts_of(z.reshape(-1, rows))
        squares = sum(jnp.sum(part**2, axis=0) for part in parts)
        return along(parts, real)[:, 0], triangle(parts), jnp.sum(squares), jnp.sum(squares**2)

    dtype = jax.eval_shape(vectors_of, featured.features).dtype
    real = (jnp.arange(n) >= done)[:, None].astype(dtype)
    sums, blocks, trace, fourth = total(
        of_block, in_blocks(filled(featured.features, real, -n % rows), rows)
    )
    return sums, square(blocks), trace, fourth, lost
