"""A gate where threads inside kernels wait for one another, without the interpreter.

The threads of a dictionary pass exchange a few sums several times for every atom,
every ten microseconds or so: a lock of Python's would take longer than the work. They
spin on a counter, and sleep when it takes long: where cores are busy with other work,
yielding costs a time slice of milliseconds, for every atom.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.kernels._jit import intrinsic, kernel

_LINE = 16  # int64 from one thread's place to the next: they share no cache line
_SPINS = 200_000  # some 0.2 ms, then sleep
# Microseconds, of which the system makes 50 to 100. Who waits must not give up before
# the other one is awake, or they sleep in turns for the rest of a pass.
_PAUSE = 20


def new_gate(n_threads: int) -> NDArray[np.int64]:
    """Return a gate for threads 0 to n_threads − 1: how often each has come to it."""
    return np.zeros((n_threads + 1) * _LINE, np.int64)


def close(gate: NDArray[np.int64]) -> None:
    """Let nobody wait any more: one of the threads will not come."""
    gate[0] = 1


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    from numba.np import arrayobj

    array = arrayobj.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


@intrinsic(plain=lambda gate, place: gate[place])
def _load(typingctx, gate, place):
    """gate[place] as another thread has left it, and all it had written before."""
    from numba import types

    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature, args)
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(gate, types.intp), codegen


@intrinsic(plain=lambda gate, place, value: gate.__setitem__(place, value))
def _store(typingctx, gate, place, value):
    """Set gate[place], after all that this thread has written so far."""
    from numba import types

    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature, args)
        builder.store_atomic(args[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(gate, types.intp, types.int64), codegen


@intrinsic(plain=lambda: time.sleep(_PAUSE / 1e6))
def _pause(typingctx):
    """Sleep for a moment, so that any other thread may have this core."""
    from llvmlite import ir
    from numba import types

    # Windows counts in milliseconds, and 0 is: let others run that wait for a core.
    name, pause = ("Sleep", 0) if sys.platform == "win32" else ("usleep", _PAUSE)

    def codegen(context, builder, signature, args):
        function = builder.module.globals.get(name)
        number = ir.IntType(32)
        if function is None:
            kind = ir.FunctionType(number, (number,))
            function = ir.Function(builder.module, kind, name)
        builder.call(function, (number(pause),))
        return context.get_dummy_value()

    return types.void(), codegen


@kernel
def meet(gate, me, n_threads):
    """Wait until all threads have come as often as this one; False if closed."""
    if n_threads == 1:
        return True
    visits = gate[(me + 1) * _LINE] + 1
    _store(gate, (me + 1) * _LINE, visits)
    for other in range(1, n_threads + 1):
        spins = 0
        while _load(gate, other * _LINE) < visits:
            if _load(gate, 0) != 0:
                return False
            spins += 1
            if spins > _SPINS:
                _pause()
    return True


@kernel
def visits(gate, me):
    """How often thread `me`, which asks, has come to the gate."""
    return gate[(me + 1) * _LINE]
