"""What several tests of distances measure, once."""

import pytest
from distance_laws import LAWS, measures


@pytest.fixture(scope="session")
def measured():
    """All measures of all laws."""
    return [measures(*law) for law in LAWS]
