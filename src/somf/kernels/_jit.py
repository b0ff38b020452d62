"""The decorators of all kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., object])

# Sums may be reordered so that they vectorise, which is deterministic on a given
# machine. NaN does not reach a kernel (the estimator checks), infinity may.
_FAST = {"reassoc", "contract", "arcp", "nsz", "nnan"}


def kernel(function: Function) -> Function:
    """Compile on first call, without the GIL, and keep the result on disk."""
    return _compile(function, _FAST)


def exact_kernel(function: Function) -> Function:
    """Compile like `kernel`, but keep every operation as it is written.

    For the few scalar formulas whose order of operations avoids an overflow.
    """
    return _compile(function, False)


def _compile(function: Function, fastmath: set[str] | bool) -> Function:
    compiled: Function = numba.njit(
        nogil=True, cache=True, error_model="numpy", fastmath=fastmath
    )(function)
    return compiled
