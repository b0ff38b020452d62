"""Codes from (G, β): argmin_a ½aᵀGa − βᵀa + l1·|a|₁ + l2/2·|a|₂²."""

from __future__ import annotations

import numpy as np

from somf.kernels._jit import kernel
from somf.kernels.homotopy import follow_path, new_room

_PRUNING = 4  # sweeps that thin out the active set before it is solved for
_LONGEST = 256  # active atoms up to which a path is followed
_FEW = 64  # atoms whose system costs about as much as a few sweeps
# Gap of non-negative codes, of their loss, beyond which a few sweeps are faster.
_LOOSE = 0.2
_LARGEST = 0.005  # gap that may be left, relative to the energy, however loose
_MOST_SOLVES = 20  # in an ill-conditioned problem rounding may undo each solution


@kernel
def _duality_gap(a, c, beta, energy, l1, l2, positive):
    """A bound on how far the code a is from optimal, given c = β − Ga; and its loss.

    With ρ = c − l2·a, any u with |u_j| ≤ l1 (u_j ≤ l1 if positive) bounds the gap by
    l1·|a|₁ − aᵀu + ½(ρ − u)ᵀ(G + l2·I)⁻¹(ρ − u). Scaling u = sρ leaves (1 − s)² times
    half the squared residual; clipping u leaves |ρ − u|²/(2·l2). A bound needs G, β and
    the energy of one and the same regression; estimator (c) mixes two, and has here a
    criterion that vanishes at the solution all the same.
    """
    norm1 = 0.0
    square = 0.0
    fit = 0.0  # aᵀρ
    projected = 0.0  # βᵀa
    explained = 0.0  # aᵀGa
    clipped = 0.0  # aᵀu
    excess = 0.0
    largest = 0.0
    for j in range(a.size):
        x = np.float64(a[j])
        rho = np.float64(c[j]) - l2 * x
        norm1 += abs(x)
        square += x * x
        fit += x * rho
        projected += x * np.float64(beta[j])
        explained += x * (np.float64(beta[j]) - np.float64(c[j]))
        size = rho if positive else abs(rho)
        largest = size if size > largest else largest
        u = min(rho, l1) if positive else max(-l1, min(rho, l1))
        clipped += x * u
        excess += (rho - u) * (rho - u)
    gap = np.inf
    residual = max(0.0, energy - 2 * projected + explained) + l2 * square
    if l1 > 0:
        s = 1.0 if largest <= l1 else l1 / largest
        gap = l1 * norm1 - s * fit + 0.5 * (1 - s) * (1 - s) * residual
    if l2 > 0:
        gap = min(gap, l1 * norm1 - clipped + 0.5 * excess / l2)
    return gap, l1 * norm1 + 0.5 * residual


@kernel
def _goal(tol, loss, energy, eps):
    """The gap at which a code is good enough: a part of its loss, beyond rounding."""
    return max(min(tol * loss, _LARGEST * energy), 4 * eps * energy)


@kernel
def _update(j, a, c, G, l1, l2, positive):
    """Minimise over coordinate j; returns the decrease of the objective, twice."""
    curvature = G[j, j] + l2
    if not curvature > 0:  # a zero atom, to which a warm start may have given a code
        a[j] = 0
        return 0.0
    old = a[j]
    u = c[j] + G[j, j] * old
    if u > l1:
        new = (u - l1) / curvature
    elif u < -l1 and not positive:
        new = (u + l1) / curvature
    else:
        new = old * 0
    change = new - old
    if change != 0:
        a[j] = new
        for i in range(c.size):
            c[i] -= change * G[j, i]
    return np.float64(curvature) * change * change


@kernel
def _factorize(G, l2, active, n_active, L):
    """Cholesky factor of G + l2·I on the active coordinates; False if singular."""
    for m in range(n_active):
        row = G[active[m]]
        for n in range(m + 1):
            x = row[active[n]]
            if m == n:
                x += l2
            left = L[m, :n]
            right = L[n, :n]
            for i in range(left.size):
                x -= left[i] * right[i]
            if m > n:
                L[m, n] = x / L[n, n]
            elif x > 1e-5 * (row[active[m]] + l2):  # well inside the float32 rounding
                L[m, m] = np.sqrt(x)
            else:
                return False
    return True


@kernel
def _solve_active(a, beta, G, l1, l2, active, n_active, L, target):
    """Move a to the minimum over its support and signs, or to where a sign changes.

    Inside an orthant the problem is a linear system: where coordinate descent crawls
    along correlated atoms, this arrives at once. The objective is convex, so the way
    towards the minimum goes down all along; a coordinate that meets zero stays there.
    Returns the number of coordinates that are still active.
    """
    if not _factorize(G, l2, active, n_active, L):
        return n_active
    for m in range(n_active):
        j = active[m]
        x = beta[j] - (l1 if a[j] > 0 else -l1)
        row = L[m, :m]
        for i in range(row.size):
            x -= row[i] * target[i]
        target[m] = x / L[m, m]
    for m in range(n_active - 1, -1, -1):
        x = target[m] / L[m, m]
        target[m] = x
        row = L[m, :m]
        for i in range(row.size):
            target[i] -= row[i] * x
    step = 1.0
    for m in range(n_active):
        x = a[active[m]]
        if target[m] * x <= 0:
            step = min(step, x / (x - target[m]))
    for m in range(n_active):
        j = active[m]
        x = a[j]
        moved = x + step * (target[m] - x)
        blocks = step < 1 and target[m] * x <= 0 and x / (x - target[m]) == step
        a[j] = 0 if blocks or moved * x <= 0 else moved
    return _compress(a, active, n_active)


@kernel
def _compress(a, active, n_active):
    """Drop coordinates that have become zero; returns how many are left."""
    kept = 0
    for m in range(n_active):
        j = active[m]
        if a[j] != 0:
            active[kept] = j
            kept += 1
    return kept


@kernel
def _correlation_left(a, beta, G, c):
    """Overwrite c with β − Ga."""
    for i in range(c.size):
        c[i] = beta[i]
    for j in range(a.size):
        if a[j] != 0:
            x = a[j]
            row = G[j]
            for i in range(c.size):
                c[i] -= x * row[i]


@kernel
def _descend(a, c, G, beta, energy, l1, l2, positive, tol, max_sweeps, room):
    """Overwrite a and c = β − Ga with the minimiser.

    A sweep over all coordinates finds the active ones; those are then solved for alone,
    by a linear system if they are few and by more sweeps if not.
    """
    active, L, target = room
    eps = np.finfo(a.dtype).eps
    rounding = eps**2 * energy
    goal = 0.0
    sweeps = 0
    solves = 0
    while sweeps < max_sweeps:
        full = 0.0
        n_active = 0
        for j in range(a.size):
            if a[j] != 0 or c[j] > l1 or (c[j] < -l1 and not positive):
                full += _update(j, a, c, G, l1, l2, positive)
                if a[j] != 0:
                    active[n_active] = j
                    n_active += 1
        sweeps += 1
        if full <= rounding:
            return
        if tol > 0:
            gap, loss = _duality_gap(a, c, beta, energy, l1, l2, positive)
            goal = _goal(tol, loss, energy, eps)
            if gap <= goal or (np.isinf(gap) and full <= 0.1 * goal):
                return
        for _ in range(_PRUNING):
            for m in range(n_active):
                _update(active[m], a, c, G, l1, l2, positive)
        sweeps += _PRUNING
        n_active = _compress(a, active, n_active)
        if n_active <= target.size and solves < _MOST_SOLVES:
            solves += 1
            before = n_active + 1
            while 0 < n_active < before:  # again as long as signs change
                before = n_active
                n_active = _solve_active(
                    a, beta, G, l1, l2, active, n_active, L, target
                )
            _correlation_left(a, beta, G, c)
            continue
        while sweeps < max_sweeps:
            decrease = 0.0
            for m in range(n_active):
                decrease += _update(active[m], a, c, G, l1, l2, positive)
            sweeps += 1
            if decrease <= 0.01 * full or decrease <= 0.01 * goal:
                break


@kernel
def _loss(a, c, beta, energy, l1, l2):
    """½(energy − 2βᵀa + aᵀGa) + l1·|a|₁ + l2/2·|a|₂², given c = β − Ga."""
    norm1 = 0.0
    square = 0.0
    residual = np.float64(energy)
    for j in range(a.size):
        x = np.float64(a[j])
        norm1 += abs(x)
        square += x * x
        residual -= x * (np.float64(beta[j]) + np.float64(c[j]))
    return 0.5 * max(0.0, residual) + l1 * norm1 + 0.5 * l2 * square


@kernel
def solve_codes(
    G, beta, energy, codes, losses, l1, l2, positive, tol, max_sweeps, start, stop
):
    """Overwrite codes[start:stop], the starting points, with the minimisers.

    G        (1 or n, k, k)   shared, or one for each sample
    beta     (n, k)
    energy   (n,)             |x|² as seen by the estimator of (G, β)
    losses   (n,)             overwritten with the objectives at the codes

    From zero, the path of solutions leads there; from elsewhere, or where it did not
    arrive, coordinate descent does. The duality gap, against tol times the loss,
    decides the end, or a sweep that changes nothing beyond rounding (the only criterion
    if tol is 0).
    """
    k = beta.shape[1]
    few = min(k, _FEW)
    zero = codes.dtype.type(0)
    l1 = codes.dtype.type(l1)  # in float64 it would take every operation along
    l2 = codes.dtype.type(l2)
    eps = np.finfo(codes.dtype).eps
    has_path = not positive or tol < _LOOSE
    c = np.empty(k, codes.dtype)
    way = new_room(k, min(k, _LONGEST), codes)
    room = (
        np.empty(k, np.intp),
        np.empty((few, few), codes.dtype),
        np.empty(few, codes.dtype),
    )
    for n in range(start, stop):
        gram = G[n if G.shape[0] > 1 else 0]
        a, b, square = codes[n], beta[n], energy[n]
        if positive:
            for j in range(k):
                a[j] = max(a[j], zero)
        if has_path and not a.any():
            for j in range(k):
                c[j] = b[j]
            follow_path(a, c, gram, l1, l2, positive, way)
            gap, loss = _duality_gap(a, c, b, square, l1, l2, positive)
            arrived = tol > 0 and gap <= _goal(tol, loss, square, eps)
        else:
            _correlation_left(a, b, gram, c)
            arrived = False
        if not arrived:
            _descend(a, c, gram, b, square, l1, l2, positive, tol, max_sweeps, room)
            _correlation_left(a, b, gram, c)  # rounding adds up over many sweeps
        losses[n] = _loss(a, c, b, square, l1, l2)


@kernel
def ridge_codes(G, beta, codes, l2, start, stop):
    """codes[n] = (G[n] + l2·I)⁻¹ β[n] by Cholesky, one Gram matrix for each sample."""
    k = beta.shape[1]
    for n in range(start, stop):
        H = G[n].copy()
        for j in range(k):
            H[j, j] += l2
        L = np.linalg.cholesky(H)
        a = codes[n]
        for j in range(k):
            x = beta[n, j]
            for i in range(j):
                x -= L[j, i] * a[i]
            a[j] = x / L[j, j]
        for j in range(k - 1, -1, -1):
            x = a[j] / L[j, j]
            a[j] = x
            for i in range(j):
                a[i] -= L[j, i] * x
