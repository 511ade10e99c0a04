"""What a person has to hold: growth is a decision, and raises a number here in its own commit."""

from pathlib import Path

from api import public

import jaxcal

FILES, LINES, NAMES = 188, 43_057, 148


def test_the_library_is_no_heavier_than_it_was():
    files = list(Path(jaxcal.__file__).parent.rglob("*.py"))
    assert len(files) <= FILES
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= LINES
    assert len(public()) <= NAMES
