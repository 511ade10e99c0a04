"""Run the demonstration, from data to report.

Two forecasters of tomorrow's temperatures in Seattle are fitted on the first three years of data
and tested on the fourth."""

import csv
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Float64, Shaped

from jaxcal import plots
from jaxcal.checking.check import CheckReport
from jaxcal.checking.plan import SCORES
from jaxcal.commands.forecasters import Energy, Regression, train
from jaxcal.nulls import DependentWild, Wild
from jaxcal.read import convert
from jaxcal.results import TestResult
from jaxcal.stein.calibration import kccsd_test
from jaxcal.typing import Key, Predictions

RESOLUTION = 5 / 9  # degrees Celsius: most temperatures are whole degrees Fahrenheit
TARGETS = ("highest", "lowest")
OPENING = """\
Can the uncertainty of these weather forecasts be trusted?

  place      Seattle, daily, 2012 to 2015 (NOAA, public domain)
  input      today's highest and lowest temperature, precipitation, wind, time of year
  target     tomorrow's highest and lowest temperature, in degrees Celsius
  fitted on  {} to {} ({} days)
  tested on  {} to {} ({} days), never seen before
"""
READING = """
How to read this
  Days are dependent: the error of one day often repeats on the next. The dependent wild bootstrap
  estimates from the scores for how long, and allows for it: use its p-value.
  Shifts are told of Gaussian forecasts only. The two estimates rest on different distances: they do
  not rank the models.
  Not rejected is no proof: an error smaller than these days can show may be there.
  Rejected: look in the figure where days contribute most, repair the model, and test it on new
  days."""


class Weather(NamedTuple):
    """Weather of n successive days; each field is an array [n].

    ``dates`` as ``datetime64[D]``; ``precipitation`` in mm; ``temp_max`` and ``temp_min`` in
    degrees Celsius; ``wind``, the mean speed of the day, in m/s.
    """

    dates: Shaped[np.ndarray, " n"]
    precipitation: Float64[np.ndarray, " n"]
    temp_max: Float64[np.ndarray, " n"]
    temp_min: Float64[np.ndarray, " n"]
    wind: Float64[np.ndarray, " n"]


def seattle_weather() -> Weather:
    """Return the daily weather of Seattle from 2012 to 2015, n = 1461, from a file in jaxcal."""
    table = resources.files("jaxcal") / "data" / "seattle_weather.csv"
    days = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    dates = np.array([day["date"].replace("/", "-") for day in days], "datetime64[D]")
    columns = ([float(day[name]) for day in days] for name in Weather._fields[1:])
    return Weather(dates, *map(np.array, columns))


class Days(NamedTuple):
    """Inputs and targets of n forecasts, in temporal order.

    ``dates`` [n]: the day that is forecast. ``inputs`` [n, 6]: weather of the day before (highest
    and lowest temperature, square root of the precipitation, wind, sine and cosine of the time of
    year). ``targets`` [n, 2]: highest and lowest temperature of the day, in degrees Celsius.
    """

    dates: Shaped[np.ndarray, " n"]
    inputs: Float32[np.ndarray, "n q"]
    targets: Float32[np.ndarray, "n 2"]

    def within(self, first: str, last: str) -> "Days":
        """Return the rows with ``first`` <= date <= ``last``, two ISO dates."""
        kept = (self.dates >= np.datetime64(first)) & (self.dates <= np.datetime64(last))
        return Days(*(column[kept] for column in self))


def forecasts(weather: Weather) -> Days:
    """Return the `Days` of n - 1 forecasts, of each day but the first, from the previous day."""
    day_of_year = (weather.dates - weather.dates.astype("datetime64[Y]")).astype(int)
    angle = 2 * np.pi * day_of_year / 365.25
    inputs = np.stack(
        [
            weather.temp_max,
            weather.temp_min,
            np.sqrt(weather.precipitation),  # most days are dry, few are very wet
            weather.wind,
            np.sin(angle),
            np.cos(angle),
        ],
        axis=1,
    )
    targets = np.stack([weather.temp_max, weather.temp_min], axis=1)
    return Days(weather.dates[1:], inputs[:-1].astype(np.float32), targets[1:].astype(np.float32))


class Verdict(NamedTuple):
    """Results of `kccsd_test` for one forecaster, with nulls for independent and dependent days."""

    name: str
    independent: TestResult
    dependent: TestResult


def run(output: Path, *, seed: int = 0, draws: int = 500, rounds: int = 30) -> list[Verdict]:
    """Fit and test two forecasters, print a report, and return a `Verdict` for each.

    Saves a figure as ``output``, and a report on the second forecaster as a page with suffix .html.
    ``draws``: number of draws of each null. ``rounds``: rounds of training. Computes in float32;
    reproducible for a given seed. OSError if the figure cannot be written."""
    started = time.perf_counter()
    days = forecasts(seattle_weather())
    fitted = days.within("2012-01-02", "2014-12-31")
    tested = days.within("2015-01-01", "2015-12-31")
    spans = [part for days in (fitted, tested) for part in (*days.dates[[0, -1]], days.dates.size)]
    print(OPENING.format(*spans), flush=True)

    train_key, start_key, test_key = jax.random.split(convert.key(seed), 3)
    with _stage("fit the Gaussian regression (least squares)"):
        regression = jax.jit(Regression.fit)(fitted.inputs, fitted.targets)
        gaussians = regression.predict(jnp.asarray(tested.inputs))
    with _stage("train the energy-based model (score matching)"):
        energy = _trained(start_key, train_key, fitted, rounds)
        densities = energy.predict(jnp.asarray(tested.inputs))

    verdicts = []
    forecasters = {"Gaussian regression": gaussians, "Energy-based model": densities}
    for name, predictions in forecasters.items():
        with _stage(f"test: {name}"):
            verdicts.append(Verdict(name, *_tests(test_key, predictions, tested, draws)))

    for name, independent, dependent in verdicts:
        print(f"\n{name}\n{dependent!r}")
        print(f"  p-value {float(independent.p_value):.3f} with days as independent")
    print(READING)
    draw([(v.name, v.dependent) for v in verdicts], tested.dates, output)
    page = output.with_suffix(".html")
    check_of(verdicts[-1], tested).to_html(page)
    print(f"\nCheck of the energy-based model, as a page: {page}")
    print(f"Figure: {output}   ({time.perf_counter() - started:.0f} s in all)")
    return verdicts


def draw(
    results: Sequence[tuple[str, TestResult]], dates: Shaped[np.ndarray, " n"], output: Path
) -> None:
    """Save a figure with a row per result: histogram of the null, daily contributions, shifts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 3.9 * len(results)), layout="constrained")
    rows = figure.subfigures(len(results), 1, squeeze=False, hspace=0.06)
    for (row,), (name, result) in zip(rows, results, strict=True):
        row.suptitle(name, fontweight="bold", x=0.01, ha="left")
        null, days, coordinates = row.subplots(1, 3, width_ratios=(1, 1.25, 0.9))
        plots.null_histogram(result, ax=null)
        plots.contributions(result, dates, label="day of the forecast", ax=days)
        plots.coordinates(result, TARGETS, ax=coordinates)
    figure.savefig(output, dpi=120)


def check_of(verdict: Verdict, tested: Days) -> CheckReport:
    """Return a check report that holds one forecaster's test for dependent days."""
    return CheckReport.of(
        kind=f"the {verdict.name[0].lower()}{verdict.name[1:]}",
        why="its densities are known up to their constants, and kccsd_test needs no more; days "
        "follow each other, which the dependent wild bootstrap allows for",
        names=(SCORES.name,),
        tests=(verdict.dependent,),
        estimates=(),
        sight=(SCORES.in_words(),),
        n=tested.dates.size,
        level=verdict.dependent.level,
        dependent=True,
    )


def _trained(start_key: Key, train_key: Key, fitted: Days, rounds: int) -> Energy:
    """Return an `Energy` trained on 2012 and 2013, from the round with the least loss on 2014."""
    training, validation = (
        (jnp.asarray(days.inputs), jnp.asarray(days.targets))
        for days in (
            fitted.within("2012-01-02", "2013-12-31"),
            fitted.within("2014-01-01", "2014-12-31"),
        )
    )
    start = eqx.filter_jit(Energy.create)(start_key, *training)
    energy = train(train_key, start, training, validation, rounds=rounds, resolution=RESOLUTION)
    return jax.block_until_ready(energy)


def _tests(
    key: Key, predictions: Predictions, tested: Days, draws: int
) -> tuple[TestResult, TestResult]:
    independent = kccsd_test(key, predictions, tested.targets, null=Wild(draws))
    dependent = kccsd_test(
        key, predictions, tested.targets, null=DependentWild(draws), coordinates=True
    )
    return jax.block_until_ready((independent, dependent))


@contextmanager
def _stage(what: str) -> Iterator[None]:
    print(f"  {what} ...", end="", flush=True)
    started = time.perf_counter()
    yield
    print(f" {time.perf_counter() - started:.1f} s", flush=True)
