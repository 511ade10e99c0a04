"""`jaxcal.check` in one pass over batches, with one verdict and one report."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from jaxcal.checking.plan import (
    CLASSES,
    DISTANCE,
    MEANS,
    MOMENTS,
    RELIABILITY,
    SCORES,
    Plan,
    Question,
    check_inputs,
    plan,
)
from jaxcal.checking.report import CheckReport
from jaxcal.dce import distance_from_calibration
from jaxcal.dce.table import CELLS
from jaxcal.fit import RandomFeatures
from jaxcal.read import checks
from jaxcal.results import Result
from jaxcal.streaming import StreamedTest, StreamState
from jaxcal.streaming.counts import TableSums
from jaxcal.typing import ArrayLike, Key, KeyLike

FEATURES = 100  # random features of kernel tests


class DistanceSums(TableSums):
    """Sums of a table for two classes, and the test of their distance from calibration."""

    key: Key

    def result(self, state: StreamState, n_first: int, name: str, level: float) -> Result:
        """Return the test of all observations, from the means of cells."""
        cells = self.table(state).groups
        return distance_from_calibration(
            self.key, cells["predictions"], cells["targets"], counts=cells["counts"], level=level
        )


class ReliabilitySums(TableSums):
    """Sums of a table for the most probable class, and its reliability."""

    def result(self, state: StreamState, n_first: int, name: str, level: float) -> Result:
        """Return the reliability of all observations."""
        return self.table(state).reliability()


class CheckSums(eqx.Module):
    """Sums of all tests and estimates of a plan; implements `jaxcal.streaming.state.Sums`.

    Attributes:
        parts: The sums of each test or estimate, by name.
        tests: Names of the tests among them.
        with_inputs: Names of those that take inputs.
        kind: Kind of the predictions, in words.
        why: Reasons for these tests.
        sight: Errors that each can detect, in words.
    """

    parts: dict[str, StreamedTest]
    tests: tuple[str, ...] = eqx.field(static=True)
    with_inputs: tuple[str, ...] = eqx.field(static=True)
    kind: str = eqx.field(static=True)
    why: str = eqx.field(static=True)
    sight: tuple[str, ...] = eqx.field(static=True)

    @property
    def numbered(self) -> bool:
        return any(part.fit.numbered for part in self.parts.values())

    def zeros(self) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        return self._named({name: part.fit.zeros() for name, part in self.parts.items()})

    def of_batch(self, batch: PyTree, first: int, done: int) -> tuple[int, Any, Any]:
        predictions, targets, *inputs = batch
        chosen = plan(predictions, targets, dependent=False)
        if chosen.kind != self.kind:
            raise ValueError(
                f"predictions: the first sample had {self.kind}, the batch has {chosen.kind}"
            )
        both = chosen.predictions, targets
        parts = {
            name: part.fit.of_batch(
                (*both, *inputs) if name in self.with_inputs else both, first, done
            )
            for name, part in self.parts.items()
        }
        n = next(iter(parts.values()))[0]
        return n, *self._named({name: sums for name, (_, *sums) in parts.items()})

    def result(self, state: StreamState, n_first: int, name: str, level: float) -> CheckReport:
        answers = {}
        for question, part in self.parts.items():
            sums, least = (
                {
                    name.removeprefix(f"{question}/"): value
                    for name, value in numbers.items()
                    if name.startswith(f"{question}/")
                }
                for numbers in (state.sums, state.least)
            )
            of_part = replace(state, sums=sums, least=least)
            answers[question] = part.fit.result(of_part, n_first, part.name, level)
        return CheckReport.of(
            kind=self.kind,
            why=self.why,
            names=self.tests,
            tests=tuple(answers[name] for name in self.tests),
            estimates=tuple(answer for name, answer in answers.items() if name not in self.tests),
            sight=self.sight,
            n=state.n,
            level=level,
        )

    def _named(self, parts: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        sums, least = (
            {
                f"{part}/{name}": value
                for part, both in parts.items()
                for name, value in both[k].items()
            }
            for k in (0, 1)
        )
        return sums, least


def streamed_check(
    key: KeyLike,
    predictions: Any,
    targets: ArrayLike,
    *,
    inputs: ArrayLike | None = None,
    features: RandomFeatures | None = None,
) -> StreamedTest:
    """Run `jaxcal.check` in one pass over batches, for data that do not fit into memory.

    The tests are those of `jaxcal.check` whose statistics are sums over observations. Kernel tests
    use random features. A `jaxcal.dce.Table` sums probabilities of one of two classes, for
    `distance_from_calibration`, or those of the most probable of more classes, for its
    reliability. Ranks among draws and the gain by a repair need all observations and are left out.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: Predictions of a first sample, as in `jaxcal.check`; it may be part of the
            stream.
        targets: Targets of the first sample.
        inputs: Inputs of the first sample, for `calibration_test`, or features by which the kernel
            compares predictions, for scores; with inputs, batches are triples.
        features: Random features of kernel tests; by default 100.

    Returns:
        A `jaxcal.streaming.StreamedTest`, whose result is a report like that of `jaxcal.check`.

    Raises:
        ValueError: Shapes or values are wrong; the message names the argument.
        TypeError: No test in one pass accepts such predictions.

    Cost: for each batch of n rows that of its tests: n p^2 for p features, n for tables.

    Example:
        >>> import jaxcal, numpy as np
        >>> from jaxcal.streaming import array_batches
        >>> random = np.random.default_rng(0)
        >>> p = random.random(4000)
        >>> yes = random.random(4000) < p  # calibrated
        >>> test = jaxcal.streamed_check(0, p[:500], yes[:500].astype(int))
        >>> report = test.result(test.run(array_batches(1000, p, yes)))
        >>> report.names, report.n, report.verdict
        (('distance_from_calibration',), 4000, 'not rejected')
    """
    key = checks.key(key)
    features = (
        RandomFeatures(jax.random.fold_in(key, 1), FEATURES) if features is None else features
    )
    chosen = plan(predictions, targets, dependent=False)
    if inputs is not None and chosen.tests != (SCORES,):
        check_inputs(chosen)
    sample = (chosen.predictions, targets, *(() if inputs is None else (inputs,)))
    asked = [one for one in (*chosen.tests, *chosen.estimates) if one in STREAMED]
    parts = {one.name: STREAMED[one](key, sample, features) for one in asked}
    tests = tuple(one.name for one in chosen.tests if one in STREAMED)
    if not tests:
        raise TypeError(
            f"predictions: no test of {chosen.kind} is a sum over observations: `check` takes them "
            f"in memory"
        )
    with_inputs = tuple(one.name for one in asked if one in (MOMENTS, SCORES))
    sight = tuple(one.in_words() for one in asked)
    sums = CheckSums(parts, tests, with_inputs, chosen.kind, _reasons(chosen), sight)
    n_first = np.shape(targets)[0]
    return StreamedTest.of_sums(sums, n_first, f"check of {chosen.kind}: {', '.join(parts)}")


def _reasons(chosen: Plan) -> str:
    questions = (*chosen.tests, *chosen.estimates)
    left_out = [one.name for one in questions if one not in STREAMED]
    table = chosen.tests == (DISTANCE,)
    how = "a table of cells" if table else "units and features are those of a first sample"
    said = f"; without {' and '.join(left_out)}, for want of all observations at once"
    return f"{chosen.why}; in one pass over batches: {how}{said if left_out else ''}"


def _by_scores(key: Key, sample: tuple[Any, ...], features: RandomFeatures) -> StreamedTest:
    kind = StreamedTest.kcsd if len(sample) == 3 else StreamedTest.kccsd
    return kind(key, *sample, features=features)


def _by_means(key: Key, sample: tuple[Any, ...], features: RandomFeatures) -> StreamedTest:
    return StreamedTest.skce(key, *sample[:2], features=features)


def _of_table(sums: TableSums, sample: tuple[Any, ...]) -> StreamedTest:
    sums.of_batch(sample, 0, 0)  # its checks
    return StreamedTest.of_sums(sums, 0, f"table, {CELLS} cells")


STREAMED: dict[Question, Callable[..., StreamedTest]] = {
    MOMENTS: lambda key, sample, features: StreamedTest.calibration(key, *sample),
    SCORES: _by_scores,
    MEANS: _by_means,
    CLASSES: _by_means,
    DISTANCE: lambda key, sample, features: _of_table(DistanceSums(CELLS, key), sample),
    RELIABILITY: lambda key, sample, features: _of_table(ReliabilitySums(CELLS), sample),
}
