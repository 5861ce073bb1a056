"""Settings of every test run."""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Shared machines stall for seconds: an example's wall time says nothing. CI repeats itself exactly.
settings.register_profile("emberd", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("emberd"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "emberd")


_ROOT_LEVEL = logging.getLogger().level


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A daemon that runs in a test's own process sets up the log of the whole process: undo that."""
    yield
    root = logging.getLogger()
    root.setLevel(_ROOT_LEVEL)
    for handler in list(root.handlers):
        if not type(handler).__module__.startswith("_pytest"):
            root.removeHandler(handler)
