"""Factorize matrices that are huge in both dimensions.

>>> import somf
>>> somf.SOMF(n_components=20, alpha=0.1)
SOMF(alpha=0.1, n_components=20)
"""

from somf.checkpoints import Interrupted
from somf.estimator import SOMF
from somf.planning import Plan, plan
from somf.problem import alpha_max

__version__ = "0.1.0"
__all__ = ["SOMF", "Interrupted", "Plan", "alpha_max", "plan"]
