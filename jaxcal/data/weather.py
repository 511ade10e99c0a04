"""The shipped weather table as NumPy arrays, with errors that name the file and the line."""

import csv
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Shaped

from jaxcal.read import convert

COLUMNS = ("date", "precipitation", "temp_max", "temp_min", "wind", "weather")


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


def seattle_weather(path: str | Path | None = None) -> Weather:
    """Seattle, every day of 2012 to 2015 (n = 1461), or a file of the same form at ``path``.

    Raises FileNotFoundError where the file is missing, and ValueError naming the file, the line
    and what is wrong where it cannot be read as this table: wrong columns, a value that is not a
    finite number, days that do not follow each other.
    """
    shipped = resources.files("jaxcal.data") / "seattle_weather.csv"
    if not (path is None or isinstance(path, str | Path)):
        raise TypeError(f"path: wanted a file's name, got {convert.say(path)}")
    source = shipped if path is None else Path(path)
    rows = list(csv.reader(_text(source).splitlines()))
    if not rows or tuple(rows[0]) != COLUMNS:
        header = ",".join(rows[0])[:80] if rows else "an empty file"
        raise ValueError(
            f"{source}, line 1: wanted the columns {','.join(COLUMNS)}, got {header!r}"
        )
    if len(rows) < 3:
        raise ValueError(f"{source}: wanted at least 2 days below the header, got {len(rows) - 1}")
    dates = np.array([_day(source, line, row) for line, row in _numbered(rows)])
    values = np.array([_numbers(source, line, row) for line, row in _numbered(rows)])
    gaps = np.flatnonzero(np.diff(dates) != np.timedelta64(1, "D"))
    if gaps.size:
        at = int(gaps[0])
        raise ValueError(
            f"{source}, line {at + 3}: wanted the day after {dates[at]}, got {dates[at + 1]}"
        )
    return Weather(dates, *values.T)


def _text(source: Traversable) -> str:
    try:
        return source.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(
            f"path: {source}: no such file; reinstall jaxcal if it shipped"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{source}: not a text file ({error})") from None


def _numbered(rows: list[list[str]]) -> list[tuple[int, list[str]]]:
    return list(enumerate(rows[1:], start=2))


def _day(source: Traversable, line: int, row: list[str]) -> np.datetime64:
    if len(row) != len(COLUMNS):
        raise ValueError(f"{source}, line {line}: wanted {len(COLUMNS)} values, got {len(row)}")
    try:
        return np.datetime64(row[0].replace("/", "-"), "D")
    except ValueError:
        raise ValueError(f"{source}, line {line}: {row[0]!r} is not a date") from None


def _numbers(source: Traversable, line: int, row: list[str]) -> list[float]:
    values = []
    for name, text in zip(COLUMNS[1:5], row[1:5], strict=True):
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not np.isfinite(value):
            raise ValueError(f"{source}, line {line}: {name} {text!r} is not a finite number")
        values.append(value)
    return values
