"""Settings of every test run."""

import os

from hypothesis import HealthCheck, settings

# Shared machines stall for seconds: an example's wall time says nothing. CI repeats itself exactly.
settings.register_profile("emberd", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("emberd"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "emberd")
