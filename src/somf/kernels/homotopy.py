"""Codes by following the path of solutions from the largest penalty down to l1.

With H = G + l2·I and c = β − Ha, the code at penalty λ has c_j = λ·sign(a_j) on its
active atoms and |c_j| ≤ λ elsewhere. Between two changes of the active set it is linear
in λ, so the path costs one step for each atom that enters or leaves: O(k·n_active), and
few steps where codes are sparse.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from somf.kernels._jit import kernel
from somf.kernels.projection import maximum

_SINGULAR = 1e-5  # of H_jj: what is left of an atom beyond the active ones, in float32


class Room(NamedTuple):
    """What a path needs, for k atoms of which `most` are active."""

    active: NDArray[np.intp]  # (most,)
    K: NDArray[np.float64]  # (most, most), inverse of H over the active atoms
    u: NDArray[np.float64]  # (most,)
    signs: NDArray[np.float64]  # (most,)
    w: NDArray[np.float64]  # (most,), how fast codes grow
    v: NDArray[Any]  # (k,), how fast c falls
    levels: NDArray[Any]  # (k,)
    barrier: NDArray[Any]  # (k,), −inf for atoms that may not enter, else 0


@kernel
def new_room(k, most, like):
    """Room for paths of codes of the type of the array `like`."""
    return Room(
        np.empty(most, np.intp),
        np.empty((most, most)),
        np.empty(most),
        np.empty(most),
        np.empty(most),
        np.empty(k, like.dtype),
        np.empty(k, like.dtype),
        np.empty(k, like.dtype),
    )


@kernel
def _append(G, l2, j, n_active, room):
    """Extend K by atom j; False, and nothing done, if it depends on the others."""
    active, K, u = room.active, room.K, room.u
    row = G[j]
    square = np.float64(row[j]) + l2
    left = square
    u[:n_active] = 0
    for m in range(n_active):
        h = np.float64(row[active[m]])
        for i in range(n_active):
            u[i] += h * K[m, i]
    for m in range(n_active):
        left -= np.float64(row[active[m]]) * u[m]
    if not left > _SINGULAR * square:
        return False
    inverse = 1.0 / left
    for m in range(n_active):
        x = u[m] * inverse
        for i in range(n_active):
            K[m, i] += x * u[i]
        K[m, n_active] = -x
        K[n_active, m] = -x
    K[n_active, n_active] = inverse
    active[n_active] = j
    return True


@kernel
def _remove(place, n_active, room):
    """Take the atom at `place` out of K; the last one takes its place."""
    active, K, u = room.active, room.K, room.u
    last = n_active - 1
    active[place] = active[last]
    room.signs[place] = room.signs[last]
    for i in range(n_active):
        K[place, i], K[last, i] = K[last, i], K[place, i]
    for m in range(n_active):
        K[m, place], K[m, last] = K[m, last], K[m, place]
    for i in range(last):
        u[i] = K[last, i]
    for m in range(last):
        x = u[m] / K[last, last]
        for i in range(last):
            K[m, i] -= x * u[i]


@kernel
def _find_rates(G, n_active, room):
    """While λ falls by 1, codes grow by w = K·signs, and c falls by v = Gw.

    On active atoms v lacks l2·w, and c is β − Ga, not β − Ha: nobody asks for it there
    before their code is zero.
    """
    active, w, v = room.active, room.w, room.v
    w[:n_active] = 0
    for m in range(n_active):
        x = room.signs[m]
        for i in range(n_active):
            w[i] += x * room.K[m, i]
    v[:] = 0
    number = v.dtype.type
    whole = n_active - n_active % 4
    for m in range(0, whole, 4):
        g0, g1 = G[active[m]], G[active[m + 1]]
        g2, g3 = G[active[m + 2]], G[active[m + 3]]
        w0, w1 = number(w[m]), number(w[m + 1])
        w2, w3 = number(w[m + 2]), number(w[m + 3])
        for i in range(v.size):
            v[i] += w0 * g0[i] + w1 * g1[i] + w2 * g2[i] + w3 * g3[i]
    for m in range(whole, n_active):
        g0, w0 = G[active[m]], number(w[m])
        for i in range(v.size):
            v[i] += w0 * g0[i]


@kernel
def _next_entry(c, penalty, positive, room):
    """Return the λ at which the next atom enters, and which one; -1 and -1 if none.

    |c_j| meets λ on the side where z = c_j − λ·v_j lies: c_j would be z at λ = 0.
    """
    v, levels, barrier = room.v, room.levels, room.barrier
    one, never, least = c.dtype.type(1), c.dtype.type(-1), c.dtype.type(1e-6)
    for j in range(c.size):
        z = c[j] - penalty * v[j]
        speed = maximum(one - v[j] if z > 0 else one + v[j], least)
        levels[j] = maximum((z if positive else abs(z)) / speed + barrier[j], never)
    top = never
    for j in range(c.size):
        top = maximum(top, levels[j])
    if top > 0:
        for j in range(c.size):
            if levels[j] == top:
                return top, j
    return never, -1


@kernel
def _next_exit(a, n_active, room):
    """Return by how much λ may fall before a code leaves its sign, and its place."""
    fall = np.inf
    place = -1
    for m in range(n_active):
        speed = -room.signs[m] * room.w[m]
        if speed > 0:
            size = max(0.0, room.signs[m] * np.float64(a[room.active[m]]))
            if size < fall * speed:
                fall = size / speed
                place = m
    return fall, place


@kernel
def follow_path(a, c, G, l1, l2, positive, room):
    """Overwrite a, zero on entry, with the code at penalty l1, or one on the way to it.

    c is β on entry, and becomes β − Ga. The way ends early if all the room is taken. An
    atom that depends on the active ones, to rounding, is left out.
    """
    active, w, v, barrier = room.active, room.w, room.v, room.barrier
    closed = c.dtype.type(-np.inf)
    v[:] = 0
    barrier[:] = 0
    penalty, entering = _next_entry(c, c.dtype.type(0), positive, room)
    n_active = 0
    left = -1  # the atom that left in the last step: it does not come back at once
    for _ in range(4 * active.size):
        if penalty <= l1 or n_active == active.size:
            return
        if entering >= 0:
            barrier[entering] = closed
            if _append(G, l2, entering, n_active, room):
                room.signs[n_active] = 1.0 if c[entering] > 0 else -1.0
                n_active += 1
        _find_rates(G, n_active, room)
        level, entering = _next_entry(c, penalty, positive, room)
        if left >= 0:
            barrier[left] = 0
            left = -1
        level = max(l1, min(level, penalty))
        step = penalty - level
        fall, place = _next_exit(a, n_active, room)
        if fall < step:
            step = c.dtype.type(fall)
            level = penalty - step
            left, entering = active[place], -1
        for m in range(n_active):
            x = a[active[m]] + step * c.dtype.type(w[m])
            a[active[m]] = x if x * room.signs[m] > 0 else 0  # no sign by rounding
        for i in range(c.size):
            c[i] -= step * v[i]
        penalty = level
        if left >= 0:
            a[left] = 0
            _remove(place, n_active, room)
            n_active -= 1
