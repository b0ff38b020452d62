"""The one decorator of all kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def kernel(function: Function) -> Function:
    """Compile on first call, without the GIL, and keep the result on disk.

    Sums may be reordered so that they vectorise, which is deterministic on a given
    machine. NaN does not reach a kernel (the estimator checks), infinity may.
    """
    compiled: Function = numba.njit(
        nogil=True,
        cache=True,
        error_model="numpy",
        fastmath={"reassoc", "contract", "arcp", "nsz", "nnan"},
    )(function)
    return compiled
