"""The weather table that ships with the demonstration."""

import numpy as np

from jaxcal.commands.demo import seattle_weather


def test_the_table_is_four_whole_years_of_plausible_weather():
    weather = seattle_weather()
    assert weather["date"][0] == np.datetime64("2012-01-01")
    assert weather["date"][-1] == np.datetime64("2015-12-31")
    assert weather.shape == (1461,)
    assert all(weather[name].dtype == np.float64 for name in weather.dtype.names[1:])
    assert np.all(weather["temp_max"] > weather["temp_min"])
    assert -20 < weather["temp_min"].min() < weather["temp_max"].max() < 45
    assert weather["precipitation"].min() == 0
    assert weather["wind"].min() > 0


def test_columns_are_not_swapped():
    names = ["precipitation", "temp_max", "temp_min", "wind"]
    assert seattle_weather()[names][0].tolist() == (0.0, 12.8, 5.0, 4.7)  # line 2 of the file
    assert np.all(np.diff(seattle_weather()["date"]) == np.timedelta64(1, "D"))
