"""Orthogonal projection on the elastic-net ball { d : l1·|d|₁ + l2/2·|d|₂² ≤ radius }.

The projection of u is d_i = sign(u_i)·(|u_i| − τ·l1)₊ / (1 + τ·l2) for the multiplier
τ ≥ 0 that puts d on the boundary. With M = max|u|, φ = τ·l1/M is the part of M that the
threshold takes, and θ = 1 − φ the part that is left. Both are kept: of the two, the
small one has the digits when the radius is far below or only just below ‖u‖.

For a fixed set of active entries (|u_i| > φM) the boundary condition is a quadratic.
Solving it on the active set of the present φ, again and again, approaches the root from
one side whatever the start: a few passes over u, and no sort.
"""

from __future__ import annotations

import numpy as np

from somf.kernels._jit import exact_kernel, kernel

_STRIDE = 16  # a cache line of float32


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
def sums(u):
    """|u|₁, |u|₂² and max|u|, the first two summed in float64."""
    sum1 = 0.0
    sum2 = 0.0
    for i in range(u.size):
        a = np.float64(abs(u[i]))
        sum1 += a
        sum2 += a * a
    top = u.dtype.type(0)
    for i in range(u.size):  # a loop of its own: together the two do not vectorise
        top = max(top, abs(u[i]))
    return sum1, sum2, np.float64(top)


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
def _scaled_sums(u, inverse_top, sum1, sum2):
    """|u/M|₁ and |u/M|₂², summed anew where the plain squares leave the range."""
    if 1e-280 < sum2 < 1e280:
        return sum1 * inverse_top, sum2 * inverse_top * inverse_top
    sum1 = 0.0
    sum2 = 0.0
    for i in range(u.size):
        a = np.float64(abs(u[i])) * inverse_top
        sum1 += a
        sum2 += a * a
    return sum1, sum2


@kernel
def _first_guess(u, top, inverse_top, l1, l2, radius, sum1, sum2):
    """A θ near the root: that of every 16th entry, or one step from all entries.

    Any start is right, since the first step from it lands on the safe side.
    """
    if u.size < 16 * _STRIDE:
        count = np.float64(u.size)  # every entry active: the sums are known
        gap1 = count - sum1
        gap2 = count - 2.0 * sum1 + sum2
        return _boundary(count, gap1, gap2, top, l1, l2, radius)[1]
    some = u[::_STRIDE].copy()  # contiguous: its passes vectorise
    part = radius * some.size / u.size
    theta = 1.0
    previous = -1.0
    for _ in range(20):
        count, gap1, gap2 = _active_sums(some, top, inverse_top, theta)
        if count == previous or count == 0.0:
            break
        previous = count
        theta = _boundary(count, gap1, gap2, top, l1, l2, part)[1]
    return theta


@kernel
def _threshold(u, top, inverse_top, l1, l2, radius, theta):
    """φ, θ and the divisor of the projection, from a first θ."""
    tolerance = 4 * np.float64(np.finfo(u.dtype).eps)
    previous = -1.0
    phi = 1.0 - theta
    divisor = 1.0
    for _ in range(200):  # finite convergence; about three in practice
        count, gap1, gap2 = _active_sums(u, top, inverse_top, theta)
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
def project(u, l1, l2, radius, sum1, sum2, top):
    """Overwrite u, whose |u|₁, |u|₂² and max|u| are given, with its projection.

    Returns the elastic-net norm of the result.
    """
    norm = l1 * sum1 + 0.5 * l2 * min(sum2, 1e300)  # 0·∞ has no value
    if norm <= radius:
        return norm
    inverse_top = 1.0 / top
    if radius <= 0.0 or np.isinf(inverse_top):
        u[:] = 0
        return 0.0
    sum1, sum2 = _scaled_sums(u, inverse_top, sum1, sum2)
    if l1 == 0.0:
        scale = np.sqrt(2.0 * radius / l2) / np.sqrt(sum2)
        for i in range(u.size):
            u[i] = np.float64(u[i]) * inverse_top * scale
        return enet_norm(u, l1, l2)
    theta = _first_guess(u, top, inverse_top, l1, l2, radius, sum1, sum2)
    phi, theta, divisor = _threshold(u, top, inverse_top, l1, l2, radius, theta)
    scale = top / divisor
    if phi < 0.5:
        for i in range(u.size):
            x = np.float64(u[i])
            kept = max(abs(x) * inverse_top - phi, 0.0)
            u[i] = np.copysign(scale * kept, x)
    else:
        for i in range(u.size):
            x = np.float64(u[i])
            kept = max(theta - (top - abs(x)) * inverse_top, 0.0)
            u[i] = np.copysign(scale * kept, x)
    return enet_norm(u, l1, l2)


@kernel
def project_rows(U, l1, l2, radius, positive):
    """Overwrite every row of U with its projection on the ball."""
    zero = U.dtype.type(0)
    for j in range(U.shape[0]):
        u = U[j]
        if positive:
            for i in range(u.size):
                u[i] = max(u[i], zero)
        sum1, sum2, top = sums(u)
        project(u, l1, l2, radius, sum1, sum2, top)
