"""Factorize matrices that are huge in both dimensions.

>>> import somf
>>> somf.SOMF(n_components=20, alpha=0.1)
SOMF(alpha=0.1, n_components=20)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from somf.checkpoints import Interrupted
    from somf.conversion import convert
    from somf.estimator import SOMF
    from somf.planning import Plan, plan
    from somf.problem import alpha_max

__version__ = "0.1.0"
__all__ = ["SOMF", "Interrupted", "Plan", "alpha_max", "convert", "plan"]

# Imported when they are first asked for, so that `somf --help` and tab completion need
# not wait for scikit-learn.
_PLACES = {
    "SOMF": "estimator",
    "Interrupted": "checkpoints",
    "Plan": "planning",
    "alpha_max": "problem",
    "convert": "conversion",
    "plan": "planning",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
