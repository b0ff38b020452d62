"""The decorators of all kernels.

Numba takes about as long to import as the rest of the package together, so it waits for
the first call of a kernel.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable
from functools import update_wrapper
from pathlib import Path
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])

# Sums may be reordered so that they vectorise, which is deterministic on a given
# machine. NaN does not reach a kernel (the estimator checks), infinity may.
_FAST = {"reassoc", "contract", "arcp", "nsz", "nnan"}

_waiting: list[_Kernel] = []
_lock = threading.Lock()


def kernel(function: Function) -> Function:
    """Compile on first call, without the GIL, and keep the result on disk."""
    return cast(Function, _Kernel(function, _FAST))


def exact_kernel(function: Function) -> Function:
    """Compile like `kernel`, but keep every operation as it is written.

    For the few scalar formulas whose order of operations avoids an overflow.
    """
    return cast(Function, _Kernel(function, False))


def intrinsic(plain: Callable[..., Any]) -> Callable[[Function], Callable[..., Any]]:
    """Generate code for an instruction that Python has no words for.

    What it decorates is what `numba.extending.intrinsic` does. `plain` takes its place
    where kernels run as plain Python (NUMBA_DISABLE_JIT).
    """
    return lambda function: _Kernel(function, False, plain)


class _Kernel:
    """Stands for a kernel until one is called; then Numba takes the place of all."""

    def __init__(
        self,
        function: Callable[..., Any],
        fastmath: set[str] | bool,
        plain: Callable[..., Any] | None = None,
    ) -> None:
        self.function = function
        self.fastmath = fastmath
        self.plain = plain  # not None: an intrinsic, not a kernel
        self.compiled: Callable[..., Any] | None = None
        update_wrapper(self, function)
        _waiting.append(self)

    def __call__(self, *args: Any) -> Any:
        if self.compiled is None:
            _hand_over_to_numba()
        assert self.compiled is not None
        return self.compiled(*args)


def _stamp() -> str:
    """Tell this state of the kernels, all of them, from any other."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _stamped(dispatcher: Any, stamp: str) -> Any:
    """Let what is on disk count for this state of the kernels only.

    Numba compares the file of a kernel alone, but a kernel has those of other files
    inside. It has no public way to say so: where the private one is gone, or where
    nothing is kept on disk, its own rule holds.
    """
    index: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if hasattr(index, "_source_stamp"):
        index._source_stamp = stamp
    return dispatcher


def _hand_over_to_numba() -> None:
    with _lock:
        import numba

        stamp = _stamp()
        compiled: list[Callable[..., Any]] = []
        for item in _waiting:
            if item.plain is None:
                compile_ = numba.njit(
                    nogil=True,
                    cache=True,
                    error_model="numpy",
                    fastmath=item.fastmath,
                    # A kernel that is called by another one exists twice, and which
                    # copy runs depends on what was compiled and what came from disk:
                    # other sums, other bits. So each has all that it calls inside.
                    forceinline=True,
                )
                compiled.append(_stamped(compile_(item.function), stamp))
            elif numba.config.DISABLE_JIT:
                compiled.append(item.plain)
            else:
                compiled.append(numba.extending.intrinsic(item.function))
        replaced = dict(zip(map(id, _waiting), compiled, strict=True))
        # Kernels call each other by the names of their modules: Numba needs its own
        # functions there.
        for name, module in list(sys.modules.items()):
            if name.startswith(__package__ + "."):
                for attribute, value in list(vars(module).items()):
                    if isinstance(value, _Kernel):
                        new = replaced.get(id(value), value.compiled)
                        setattr(module, attribute, new)
        # Last: who finds one of them compiled, does not wait for the others.
        for item, function in zip(_waiting, compiled, strict=True):
            item.compiled = function
        _waiting.clear()
