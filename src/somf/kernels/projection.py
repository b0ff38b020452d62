"""Orthogonal projection on the elastic-net ball { d : l1·|d|₁ + l2/2·|d|₂² ≤ radius }.

The projection of u is d_i = sign(u_i)·(|u_i| − τ·l1)₊ / (1 + τ·l2) for the multiplier
τ ≥ 0 that puts d on the boundary. With M = max|u|, φ = τ·l1/M is the part of M that the
threshold takes, and θ = 1 − φ the part that is left. Both are kept: of the two, the
small one has the digits when the radius is far below or only just below ‖u‖.

For a fixed set of active entries (|u_i| > φM) the boundary condition is a quadratic.
Solving it on the active set of the present φ, again and again, approaches the root from
one side whatever the start: a few passes over u, and no sort.

All sums are made of sums over chunks. Several threads may project one vector, each with
its own chunks: they exchange their sums, and the bits do not depend on who made them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from somf.kernels._jit import exact_kernel, intrinsic, kernel
from somf.kernels.barrier import meet, visits

CHUNK = 2048  # most features of a chunk: what it needs fits in the first-level cache
_STRIDE = 16  # a cache line of float32
_SAMPLE = 4096  # entries that are enough for a first guess


class Part(NamedTuple):
    """The chunks of a vector that one thread works on, and what all threads share."""

    chunk: int  # features of a chunk; the last one may be shorter
    first: int
    last: int  # chunks first to last − 1
    sums: NDArray[np.float64]  # (2, n_chunks, 4), two sets that are used in turns
    sample: NDArray[Any]  # (n_chunks, ...), entries of every chunk
    gate: NDArray[np.int64]
    me: int
    n_threads: int


class Shrink(NamedTuple):
    """How entries become their projection, see `shrink`."""

    inside: bool  # they are their own projection
    cut: float
    rest: float
    root: float


@kernel
def n_sampled(n_chunks):
    """How many entries of every chunk serve as a sample of the vector."""
    return max(1, min(CHUNK // _STRIDE, _SAMPLE // n_chunks))


@intrinsic(plain=max)
def maximum(typingctx, a, b):
    """The larger of two numbers, neither NaN: Numba's `max` does not vectorise."""

    def codegen(context, builder, signature, args):
        number = args[0].type
        bits = 8 * context.get_abi_sizeof(number)
        name = f"llvm.maxnum.f{bits}"
        function = builder.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(number, (number, number))
            function = ir.Function(builder.module, kind, name)
        return builder.call(function, args, fastmath=("nnan", "nsz"))

    from llvmlite import ir

    return a(a, a), codegen


@kernel
def enet_norm(d, l1, l2):
    """l1·|d|₁ + l2/2·|d|₂², summed in float64."""
    sum1 = 0.0
    sum2 = 0.0
    for i in range(d.size):
        a = np.float64(abs(d[i]))
        sum1 += a
        sum2 += a * a
    return l1 * sum1 + 0.5 * l2 * sum2


@kernel
def next_sums(part):
    """The set of sums to fill: while others still read one, the next goes elsewhere."""
    if part.n_threads == 1:
        return part.sums[0]
    return part.sums[visits(part.gate, part.me) % 2]


@kernel
def total(part, sums):
    """Add up what all threads have put into `sums`; the last column is a maximum."""
    meet(part.gate, part.me, part.n_threads)
    sum0 = 0.0
    sum1 = 0.0
    sum2 = 0.0
    top = np.float64(0)  # where not compiled, dividing by a plain 0.0 is an error
    for c in range(sums.shape[0]):
        sum0 += sums[c, 0]
        sum1 += sums[c, 1]
        sum2 += sums[c, 2]
        top = max(top, sums[c, 3])
    return sum0, sum1, sum2, top


@kernel
def survey(u, sums, sample):
    """Put |u|₁, |u|₂² and max|u| of a chunk into places 0, 1, 3, and some entries."""
    sum1 = 0.0
    sum2 = 0.0
    for i in range(u.size):
        a = np.float64(abs(u[i]))
        sum1 += a
        sum2 += a * a
    top = u.dtype.type(0)
    for i in range(u.size):  # a loop of its own: together the two do not vectorise
        top = maximum(top, abs(u[i]))
    sums[0] = sum1
    sums[1] = sum2
    sums[3] = top
    step = max(1, u.size // sample.size)
    for i in range(sample.size):
        sample[i] = u[min(i * step, u.size - 1)]


@kernel
def _active_sums(u, top, inverse_top, theta):
    """Number, sum and sum of squares of the gaps 1 − |u_i|/M below θ."""
    count = 0.0
    sum1 = 0.0
    sum2 = 0.0
    for i in range(u.size):
        # Exact where it matters, near M; and not open to reassociation with θ.
        gap = (top - np.float64(abs(u[i]))) * inverse_top
        active = 1.0 if gap < theta else 0.0
        kept = gap if gap < theta else 0.0
        count += active
        sum1 += kept
        sum2 += kept * kept
    return count, sum1, sum2


@exact_kernel
def _boundary(count, gap1, gap2, top, l1, l2, radius):
    """Solve for the boundary if exactly these entries are active.

    Returns φ, θ and the divisor 1 + τ·l2. The first formula is exact for small φ, the
    second for small θ.
    """
    kappa = count * l1 * l1 + 2.0 * radius * l2
    sum1 = count - gap1
    sum2 = count - 2.0 * gap1 + gap2
    e = max(0.0, l1 * sum1 + 0.5 * l2 * top * sum2 - radius / top) / kappa
    divisor = np.sqrt(1.0 + 2.0 * l2 * top * e)
    if np.isinf(divisor):
        divisor = np.sqrt(2.0 * l2 * top) * np.sqrt(e)
    phi = 2.0 * l1 * e / (1.0 + divisor)
    if phi < 0.5:
        return phi, 1.0 - phi, divisor
    rho = l2 * top / (l1 + l2 * top)
    q = (l1 * l1 * (gap1 - 0.5 * rho * gap2) + radius * (l1 / top + l2)) / kappa
    theta = 2.0 * q / (1.0 + np.sqrt(max(0.0, 1.0 - 2.0 * rho * q)))
    phi = 1.0 - theta
    return phi, theta, 1.0 + l2 * top * (phi / l1)


@kernel
def _scaled_sums(u, part, inverse_top, sum1, sum2):
    """|u/M|₁ and |u/M|₂², summed anew where the plain squares leave the range."""
    if 1e-280 < sum2 < 1e280:
        return sum1 * inverse_top, sum2 * inverse_top * inverse_top
    sums = next_sums(part)
    for c in range(part.first, part.last):
        sums[c] = 0.0
        for i in range(c * part.chunk, min((c + 1) * part.chunk, u.size)):
            a = np.float64(abs(u[i])) * inverse_top
            sums[c, 0] += a
            sums[c, 1] += a * a
    sum1, sum2, _, _ = total(part, sums)
    return sum1, sum2


@kernel
def _first_guess(n, sample, top, inverse_top, l1, l2, radius, sum1, sum2):
    """A θ near the root: that of the sample, or one step from all entries.

    Any start is right, since the first step from it lands on the safe side.
    """
    if n < CHUNK:
        count = np.float64(n)  # every entry active: the sums are known
        gap1 = count - sum1
        gap2 = count - 2.0 * sum1 + sum2
        return _boundary(count, gap1, gap2, top, l1, l2, radius)[1]
    radius *= sample.size / n
    theta = 1.0
    previous = -1.0
    for _ in range(20):
        count, gap1, gap2 = _active_sums(sample, top, inverse_top, theta)
        if count == previous or count == 0.0:
            break
        previous = count
        theta = _boundary(count, gap1, gap2, top, l1, l2, radius)[1]
    return theta


@kernel
def _all_active_sums(u, part, top, inverse_top, theta):
    sums = next_sums(part)
    for c in range(part.first, part.last):
        chunk = u[c * part.chunk : (c + 1) * part.chunk]
        sums[c, 0], sums[c, 1], sums[c, 2] = _active_sums(
            chunk, top, inverse_top, theta
        )
    return total(part, sums)


@kernel
def _threshold(u, part, top, inverse_top, l1, l2, radius, theta):
    """φ, θ and the divisor of the projection, from a first θ."""
    tolerance = 4 * np.float64(np.finfo(u.dtype).eps)
    previous = -1.0
    phi = 1.0 - theta
    divisor = 1.0
    for _ in range(200):  # finite convergence; about three in practice
        count, gap1, gap2, _ = _all_active_sums(u, part, top, inverse_top, theta)
        if count == previous:
            break
        if count == 0.0:  # a start beyond the largest entry: take in all of them
            theta = 2.0
            continue
        last = theta
        phi, theta, divisor = _boundary(count, gap1, gap2, top, l1, l2, radius)
        # The step ends where the next one begins, up to the part of the active set
        # that changes in between; it changes less from step to step.
        change = abs(count - previous) / count if previous > 0.0 else 1.0
        if change * abs(theta - last) <= tolerance * min(phi, theta):
            break
        previous = count
    return phi, theta, divisor


@kernel
def shrinkage(u, part, l1, l2, radius, sum1, sum2, top):
    """How to project u, whose |u|₁, |u|₂² and max|u| are given and its sample taken."""
    if l1 * sum1 + 0.5 * l2 * min(sum2, 1e300) <= radius:  # 0·∞ has no value
        return Shrink(True, 0.0, 0.0, 1.0)
    inverse_top = 1.0 / top
    if radius <= 0.0 or np.isinf(inverse_top):
        return Shrink(False, 0.0, 0.0, 0.0)
    sum1, sum2 = _scaled_sums(u, part, inverse_top, sum1, sum2)
    if l1 == 0.0:
        scale = np.sqrt(2.0 * radius / l2) / np.sqrt(sum2)
        return Shrink(False, 0.0, 0.0, np.sqrt(scale) * np.sqrt(inverse_top))
    sample = part.sample.ravel()
    theta = _first_guess(u.size, sample, top, inverse_top, l1, l2, radius, sum1, sum2)
    phi, theta, divisor = _threshold(u, part, top, inverse_top, l1, l2, radius, theta)
    return _in_two_parts(u, top, phi, theta, divisor)


@exact_kernel
def _in_two_parts(u, top, phi, theta, divisor):
    """The threshold φM = M − θM as a number of u's type, and what that leaves over."""
    if phi < 0.5:
        cut = np.float64(u.dtype.type(phi * top))
        rest = phi * top - cut
    else:
        cut = np.float64(u.dtype.type(top - theta * top))
        rest = (top - cut) - theta * top
    return Shrink(False, cut, rest, 1.0 / np.sqrt(divisor))


@exact_kernel
def shrink(u, how):
    """Overwrite u, all or some entries of a vector, with their projection.

    |u| − cut is exact where they are close: a small result has all its digits. The
    scale is root², which may be too small to be a number of u's type.
    """
    if how.inside:
        return
    zero = u.dtype.type(0)
    cut, rest = u.dtype.type(how.cut), u.dtype.type(how.rest)
    root = u.dtype.type(how.root)
    for i in range(u.size):
        kept = max((abs(u[i]) - cut) - rest, zero)
        u[i] = np.copysign(kept * root * root, u[i])


@kernel
def project_rows(U, l1, l2, radius, positive):
    """Overwrite every row of U with its projection on the ball."""
    zero = U.dtype.type(0)
    n = U.shape[1]
    n_chunks = (n + CHUNK - 1) // CHUNK
    sums = np.zeros((2, n_chunks, 4))
    sample = np.empty((n_chunks, n_sampled(n_chunks)), U.dtype)
    part = Part(CHUNK, 0, n_chunks, sums, sample, np.empty(0, np.int64), 0, 1)
    for j in range(U.shape[0]):
        u = U[j]
        if positive:
            for i in range(u.size):
                u[i] = max(u[i], zero)
        for c in range(n_chunks):
            survey(u[c * CHUNK : (c + 1) * CHUNK], sums[0, c], sample[c])
        sum1, sum2, _, top = total(part, sums[0])
        shrink(u, shrinkage(u, part, l1, l2, radius, sum1, sum2, top))
