"""Settings shared by all tests."""

import os

# One of scikit-learn's checks of estimators is skipped without it; SciPy reads it once.
os.environ["SCIPY_ARRAY_API"] = "1"

from hypothesis import HealthCheck, settings

# First calls compile, so no deadline; no database, so that no run depends on another.
settings.register_profile(
    "somf",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("somf")
