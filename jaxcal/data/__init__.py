"""Data that ships with jaxcal: daily weather in Seattle. ``README.md`` names the source."""

from jaxcal.data.weather import Weather, seattle_weather

__all__ = ["Weather", "seattle_weather"]
