"""The weather table that ships with the demonstration."""

import numpy as np

from jaxcal.commands.demo import seattle_weather


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
    assert np.all(np.diff(seattle_weather().dates) == np.timedelta64(1, "D"))
