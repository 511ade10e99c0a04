"""Run `jaxcal.check` in one pass over batches, with one verdict and one report.

Batches are in memory or in files (shards). Parts of the shards can be checked alone and merged.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from jaxcal.checking.check import CheckReport
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
from jaxcal.dce import distance_from_calibration
from jaxcal.dce.table import CELLS
from jaxcal.fit.specification import RandomFeatures
from jaxcal.read import convert
from jaxcal.results import Result, rows_in_one_order
from jaxcal.streaming.arrays_file import BadFile
from jaxcal.streaming.columns import ARRAYS, TARGETS, Arrays, batch_of
from jaxcal.streaming.shards import Shards
from jaxcal.streaming.state import StreamState, TableSums
from jaxcal.streaming.streamed import StreamedTest
from jaxcal.typing import ArrayLike, Key, KeyLike

FEATURES = 100  # random features of kernel tests


class DistanceSums(TableSums):
    """Sums per interval of P(label 1), from which `distance_from_calibration` is computed."""

    key: Key

    def result(self, state: StreamState, n_first: int, name: str, level: float) -> Result:
        cells = self.table(state).groups
        return distance_from_calibration(
            self.key, cells["predictions"], cells["targets"], counts=cells["counts"], level=level
        )


class ReliabilitySums(TableSums):
    """Sums per interval of the largest class probability, from which `reliability` is computed."""

    def result(self, state: StreamState, n_first: int, name: str, level: float) -> Result:
        return self.table(state).reliability()


class CheckSums(eqx.Module):
    """Sums of all tests and estimates of a plan; implements `jaxcal.streaming.state.Sums`.

    Attributes:
        parts: The streamed test or estimate of each name.
        tests: The names in ``parts`` that are tests.
        with_inputs: The names in ``parts`` whose batches include inputs.
        kind: Kind of the predictions, in words.
        why: Reasons for these tests.
        sight: For each name in ``parts``, the errors that it can detect.
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
        sums, least = (
            {
                f"{part}/{name}": value
                for part, (_, *both) in parts.items()
                for name, value in both[k].items()
            }
            for k in (0, 1)
        )
        return next(iter(parts.values()))[0], sums, least

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


@rows_in_one_order
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
    use random features. For probabilities of one of two classes, a `jaxcal.dce.Table` of sums gives
    `distance_from_calibration`. For more classes, a table gives the reliability of the largest
    probability. Ranks among draws and the gain by a repair need all observations and are omitted.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: Predictions of a first sample, as in `jaxcal.check`; it may be part of the
            stream.
        targets: Targets of the first sample.
        inputs: Inputs of the first sample, for `calibration_test`; for scores, the kernel compares
            inputs, not predictions. Each batch must then be (predictions, targets, inputs).
        features: Random features of kernel tests; by default 100.

    Returns:
        A `jaxcal.streaming.StreamedTest`, whose result is a report like that of `jaxcal.check`.

    Raises:
        ValueError: Shapes or values are wrong; the message names the argument.
        TypeError: No test in one pass accepts such predictions.

    Cost of a batch of n rows: n p^2 for each test with p features, n for tables.

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
    key = convert.key(key)
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
            f"predictions: no test of {chosen.kind} is a sum over observations: use `check`, which "
            f"holds all data in memory"
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
    sums.of_batch(sample, 0, 0)  # validates the sample
    return StreamedTest.of_sums(sums, 0, f"table, {CELLS} cells")


STREAMED: dict[Question, Callable[..., StreamedTest]] = {
    MOMENTS: lambda key, sample, features: StreamedTest.calibration(key, *sample),
    SCORES: _by_scores,
    MEANS: _by_means,
    CLASSES: _by_means,
    DISTANCE: lambda key, sample, features: _of_table(DistanceSums(CELLS, key), sample),
    RELIABILITY: lambda key, sample, features: _of_table(ReliabilitySums(CELLS), sample),
}

ENDED = "ended"  # name in a state of the number of rows at the end of its pass


def run(
    shards: Shards,
    *,
    seed: int,
    level: float,
    rows: int,
    features: int,
    state: Path | None,
) -> CheckReport:
    """Check shards in one pass, with units and random features from a sample of all shards.

    Args:
        shards: All shards, or a part of them, to be combined with other parts by `merged`.
        seed: Random seed of the sample and the features.
        level: Level of the test.
        rows: Approximate size of the sample.
        features: Number of random features, for tests that use them.
        state: File to which the sums so far are written every ten batches, with the sample.
            If it exists, the pass resumes from it at the next row, with batches of any size.

    Returns:
        The report, computed in float64 if an array of the sample is float64, else in float32.

    Raises:
        BadFile: A shard or the state is unusable, or the state is of other shards.
    """
    start = _loaded(state) if state is not None and state.exists() else None
    if start is not None and (read := start.fitted_to["columns"].tolist()) != shards.columns:
        raise BadFile(
            f"{state}: its rows are of the columns {', '.join(read)}, and these are "
            f"{', '.join(shards.columns)}: give the same --columns, or another --state"
        )
    fitted_to = _fitted_to(shards, rows, seed, features) if start is None else start.fitted_to
    with jax.enable_x64(_wide(fitted_to)):
        try:
            test = _test(fitted_to | {"seed": np.array(seed), "n_features": np.array(features)})
            start = replace(test.empty(), fitted_to=fitted_to) if start is None else start
            first = shards.first_row() if test.fit.numbered else None
            options = {"first": first, "checkpoint": state, "every": 10, "progress": True}
            total = test.run(shards, state=start, **options)
            ended = total.fitted_to | {ENDED: np.array(total.n)}
            total = replace(total, left_out=shards.left_out, fitted_to=ended)
            if state is not None:
                total.save(state)
            return cast(CheckReport, test.result(total, level=level))
        except ValueError as error:
            at_fault = state if str(error).startswith(("other: ", "batches: ")) else shards.path
            said = " ".join(str(error).split())
            raise BadFile(said if shards.path in said else f"{at_fault}: {said}") from None


def merged(paths: Sequence[Path], *, level: float) -> tuple[CheckReport, int]:
    """Return the report on all rows in the states that `run` wrote, one per part of the shards, and
    the number of rows left out as unusable.

    Raises:
        BadFile: A file is no such state, or that of a pass that has not ended; two states are of
            different tests or include the same rows; or a shard is in none of the states.
    """
    states = [_loaded(path) for path in paths]
    for path, state in zip(paths, states, strict=True):
        if state.fitted_to.get(ENDED) != state.n:
            raise BadFile(
                f"{path}: its pass has not ended, after {state.n} rows, or it is of an earlier "
                f"version: give its command again, with this --state, to go on"
            )
    fitted_to, total = states[0].fitted_to, states[0]
    with jax.enable_x64(_wide(fitted_to)):
        for path, state in zip(paths[1:], states[1:], strict=True):
            if not np.array_equal(state.fitted_to["columns"], fitted_to["columns"]):
                raise BadFile(f"{path}: its rows are of other columns than those of {paths[0]}")
            try:
                total = total.merge(state)
            except ValueError as error:
                raise BadFile(f"{path}: {str(error).removeprefix('other: ')}") from None
        there = {shard.rsplit(", ", 2)[0] for shard in total.shards}
        if missing := [name for name in fitted_to["shards"].tolist() if name not in there]:
            few = ", ".join(missing[:5]) + ", .." * (len(missing) > 5)
            raise BadFile(f"{len(missing)} shards are in none of these states: {few}")
        try:
            report = _test(fitted_to).result(total, level=level)
            return cast(CheckReport, report), total.left_out
        except ValueError as error:
            raise BadFile(f"{paths[0]}: {error}") from None


def _fitted_to(shards: Shards, rows: int, seed: int, features: int) -> Arrays:
    sample = shards.sample(rows, seed)
    if len(sample[TARGETS]) < 2:
        raise BadFile(f"{shards.path}: a test needs at least 2 observations")
    options = {"seed": np.array(seed), "n_features": np.array(features)}
    names = {"shards": np.array(shards.names), "columns": np.array(shards.columns, str)}
    return sample | options | names


def _loaded(path: Path) -> StreamState:
    try:
        state = StreamState.load(path)
    except FileNotFoundError:
        raise BadFile(f"{path}: no such file") from None
    except ValueError as error:
        raise BadFile(str(error)) from None
    if not {TARGETS, "columns"} <= state.fitted_to.keys():
        raise BadFile(f"{path}: the state of a test that was not fitted by this command")
    return state


def _test(fitted_to: Arrays) -> StreamedTest:
    seed = int(fitted_to["seed"])
    features = RandomFeatures(seed, int(fitted_to["n_features"]))
    predictions, targets, *rest = batch_of(
        {name: fitted_to[name] for name in ARRAYS if name in fitted_to}
    )
    inputs = rest[0] if rest else None
    return streamed_check(seed, predictions, targets, inputs=inputs, features=features)


def _wide(fitted_to: Arrays) -> bool:
    return any(fitted_to[name].dtype == "float64" for name in ARRAYS if name in fitted_to)
