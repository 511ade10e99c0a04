"""The weather table as a forecasting problem: today's numbers, tomorrow's temperatures."""

import csv
from importlib import resources
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, Int, Shaped

SEASONS = ("winter", "spring", "summer", "autumn")


class Weather(NamedTuple):
    """One entry a day, in the order of time, without gaps; each of shape [n].

    ``dates`` as ``datetime64[D]``; ``precipitation`` in mm; ``temp_max`` and ``temp_min`` in
    degrees Celsius; ``wind``, the day's mean speed, in m/s.
    """

    dates: Shaped[np.ndarray, " n"]
    precipitation: Float64[np.ndarray, " n"]
    temp_max: Float64[np.ndarray, " n"]
    temp_min: Float64[np.ndarray, " n"]
    wind: Float64[np.ndarray, " n"]


def seattle_weather() -> Weather:
    """Read the table that ships with jaxcal: Seattle, every day of 2012 to 2015 (n = 1461)."""
    table = resources.files("jaxcal") / "data" / "seattle_weather.csv"
    days = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    dates = np.array([day["date"].replace("/", "-") for day in days], "datetime64[D]")
    columns = ([float(day[name]) for day in days] for name in Weather._fields[1:])
    return Weather(dates, *map(np.array, columns))


class Days(NamedTuple):
    """n forecasts, in the order of time.

    ``dates`` [n]: the day that is forecast. ``inputs`` [n, 6]: the day before it (highest and
    lowest temperature, square root of the precipitation, wind, sine and cosine of the time of
    year). ``targets`` [n, 2]: highest and lowest temperature of the day, in degrees Celsius.
    """

    dates: Shaped[np.ndarray, " n"]
    inputs: Float32[np.ndarray, "n q"]
    targets: Float32[np.ndarray, "n 2"]

    def within(self, first: str, last: str) -> "Days":
        """The forecasts for ``first`` to ``last``, both included, as ISO dates."""
        kept = (self.dates >= np.datetime64(first)) & (self.dates <= np.datetime64(last))
        return Days(*(column[kept] for column in self))


def forecasts(weather: Weather) -> Days:
    """Each day but the last as the input of a forecast for the next."""
    angle = 2 * np.pi * _day_of_year(weather.dates) / 365.25
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


def season(dates: Shaped[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Place in `SEASONS`: December to February is winter, and so on by whole months."""
    months = dates.astype("datetime64[M]").astype(int) % 12  # January is 0
    return (months + 1) % 12 // 3


def _day_of_year(dates: np.ndarray) -> np.ndarray:
    return (dates - dates.astype("datetime64[Y]")).astype(int)
