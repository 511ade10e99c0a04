"""The shipped weather table, and what a damaged one says."""

import numpy as np
import pytest

from jaxcal.data import seattle_weather

HEADER = "date,precipitation,temp_max,temp_min,wind,weather\n"
DAY = "2012/01/{:02d},0.0,12.8,5.0,4.7,drizzle\n"


def test_the_table_is_four_whole_years_of_plausible_weather():
    weather = seattle_weather()
    assert weather.dates[0] == np.datetime64("2012-01-01")
    assert weather.dates[-1] == np.datetime64("2015-12-31")
    assert all(column.shape == (1461,) for column in weather)
    assert all(column.dtype == np.float64 for column in weather[1:])
    assert np.all(weather.temp_max > weather.temp_min)
    assert -20 < weather.temp_min.min() < weather.temp_max.max() < 45
    assert weather.precipitation.min() == 0
    assert weather.wind.min() > 0


def test_columns_are_not_swapped():
    first = [column[0] for column in seattle_weather()[1:]]
    assert first == [0.0, 12.8, 5.0, 4.7]  # line 2 of the file


def test_a_file_of_the_same_form_is_read(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(HEADER + DAY.format(1) + DAY.format(2))
    assert seattle_weather(path).dates.size == 2
    assert seattle_weather(str(path)).wind.tolist() == [4.7, 4.7]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "line 1: wanted the columns"),
        ("date,temp\n", "got 'date,temp'"),
        (HEADER + DAY.format(1), "at least 2 days"),
        (HEADER + DAY.format(1) + "2012/01/02,0.0,12.8\n", "line 3: wanted 6 values, got 3"),
        (HEADER + "yesterday" + DAY.format(1)[10:] + DAY.format(2), "line 2: 'yesterday'"),
        (HEADER + DAY.format(1) + DAY.format(2).replace("5.0", "cold"), "line 3: temp_min 'cold'"),
        (HEADER + DAY.format(1) + DAY.format(2).replace("4.7", "nan"), "line 3: wind 'nan'"),
        (HEADER + DAY.format(1) + DAY.format(3), "line 3: wanted the day after 2012-01-01"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(tmp_path, text, wanted):
    path = tmp_path / "damaged.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"damaged\.csv") as error:
        seattle_weather(path)
    assert wanted in str(error.value)


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "damaged.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"damaged.csv: not a text file"):
        seattle_weather(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent.csv: no such file"):
        seattle_weather(tmp_path / "absent.csv")
