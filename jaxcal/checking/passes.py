"""Checks of shards in one pass, and of the states that several passes saved."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from jaxcal.checking.report import CheckReport
from jaxcal.checking.streamed import streamed_check
from jaxcal.fit import RandomFeatures
from jaxcal.streaming.arrays_file import BadFile
from jaxcal.streaming.columns import ARRAYS, TARGETS, Arrays, batch_of
from jaxcal.streaming.shards import Shards
from jaxcal.streaming.state import StreamState
from jaxcal.streaming.streamed import StreamedTest


class Passed(NamedTuple):
    """The report of a pass, and the number of rows that it left out."""

    report: CheckReport
    left_out: int


def run(
    shards: Shards,
    *,
    seed: int,
    level: float,
    rows: int,
    features: int,
    state: Path | None,
) -> Passed:
    """Check shards in one pass, after a fit to rows that are drawn from all shards.

    Args:
        shards: All shards, or one of several shares.
        seed: Random seed of the sample and the fit.
        level: Level of the test.
        rows: Approximate size of the first sample.
        features: Number of random features, for tests that use them.
        state: File to which the sums so far are written every ten batches, with the first sample.
            If it exists, the pass resumes from it at the next row, with batches of any size.

    Returns:
        `Passed`, computed in the type of the first shard.

    Raises:
        BadFile: A shard or the state, which is named, is unusable, or the state holds other shards.
    """
    start = _loaded(state) if state is not None and state.exists() else None
    fitted_to = _fitted_to(shards, rows, seed, features) if start is None else start.fitted_to
    with jax.enable_x64(_wide(fitted_to)):
        try:
            test = _test(fitted_to | {"seed": np.array(seed), "n_features": np.array(features)})
            start = replace(test.empty(), fitted_to=fitted_to) if start is None else start
            first = shards.first_row() if test.fit.numbered else None
            options = {"first": first, "checkpoint": state, "every": 10, "progress": True}
            total = replace(test.run(shards, state=start, **options), left_out=shards.left_out)
            if state is not None:
                total.save(state)
            return Passed(_judged(test, total, level), shards.left_out)
        except ValueError as error:
            at_fault = state if str(error).startswith(("other: ", "batches: ")) else shards.path
            said = " ".join(str(error).split())
            raise BadFile(said if shards.path in said else f"{at_fault}: {said}") from None


def merged(paths: Sequence[Path], *, level: float) -> Passed:
    """Return the report on all rows of the states that `run` wrote, one per share.

    Raises:
        BadFile: A file, which is named, is not such a state; two states are of different tests or
            hold the same rows; or a shard is in none of them.
    """
    states = [_loaded(path) for path in paths]
    fitted_to, total = states[0].fitted_to, states[0]
    with jax.enable_x64(_wide(fitted_to)):
        for path, state in zip(paths[1:], states[1:], strict=True):
            try:
                total = total.merge(state)
            except ValueError as error:
                raise BadFile(f"{path}: {str(error).removeprefix('other: ')}") from None
        there = {shard.rsplit(", ", 2)[0] for shard in total.shards}
        if missing := [name for name in fitted_to["shards"].tolist() if name not in there]:
            few = ", ".join(missing[:5]) + ", .." * (len(missing) > 5)
            raise BadFile(f"{len(missing)} shards are in none of these states: {few}")
        try:
            return Passed(_judged(_test(fitted_to), total, level), total.left_out)
        except ValueError as error:
            raise BadFile(f"{paths[0]}: {error}") from None


def _fitted_to(shards: Shards, rows: int, seed: int, features: int) -> Arrays:
    sample = shards.sample(rows, seed)
    if len(sample[TARGETS]) < 2:
        raise BadFile(f"{shards.path}: a test needs at least 2 observations")
    options = {"seed": np.array(seed), "n_features": np.array(features)}
    return sample | options | {"shards": np.array(shards.names)}


def _loaded(path: Path) -> StreamState:
    try:
        state = StreamState.load(path)
    except FileNotFoundError:
        raise BadFile(f"{path}: no such file") from None
    except ValueError as error:
        raise BadFile(str(error)) from None
    if TARGETS not in state.fitted_to:
        raise BadFile(f"{path}: the state of a test that was not fitted by this command")
    return state


def _test(fitted_to: Arrays) -> StreamedTest:
    """Return the check fitted to a first sample."""
    seed = int(fitted_to["seed"])
    features = RandomFeatures(seed, int(fitted_to["n_features"]))
    predictions, targets, *rest = batch_of(
        {name: fitted_to[name] for name in ARRAYS if name in fitted_to}
    )
    inputs = rest[0] if rest else None
    return streamed_check(seed, predictions, targets, inputs=inputs, features=features)


def _judged(test: StreamedTest, state: StreamState, level: float) -> CheckReport:
    result = test.result(state, level=level)
    assert isinstance(result, CheckReport)
    return result


def _wide(fitted_to: Arrays) -> bool:
    return any(fitted_to[name].dtype == "float64" for name in ARRAYS if name in fitted_to)
