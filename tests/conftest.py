"""Settings shared by all tests."""

import hashlib
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

# Numba does not see when a kernel changes that another file's kernel calls: a cache of
# its own for each version of the kernels.
kernels = Path(find_spec("somf").origin).parent / "kernels"
digest = hashlib.sha256(
    b"".join(path.read_bytes() for path in sorted(kernels.glob("*.py")))
).hexdigest()[:16]
cache = Path(tempfile.gettempdir()) / f"somf-kernels-{digest}"
os.environ.setdefault("NUMBA_CACHE_DIR", str(cache))

# One of scikit-learn's checks of estimators is skipped without it; SciPy reads it once.
os.environ["SCIPY_ARRAY_API"] = "1"

from hypothesis import HealthCheck, settings  # noqa: E402

# First calls compile, so no deadline; no database, so that no run depends on another.
settings.register_profile(
    "somf",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("somf")
