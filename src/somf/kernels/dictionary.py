"""Block coordinate descent on the observed part of the dictionary (Alg. 4)."""

from __future__ import annotations

from somf.kernels._jit import kernel
from somf.kernels.barrier import meet
from somf.kernels.projection import (
    enet_norm,
    next_sums,
    shrink,
    shrinkage,
    survey,
    total,
)


@kernel
def _subtract_changes(R, c, a, low, high):
    """R_a ← R_a − Σ_i c_i R_i over the rows before a, four at a time."""
    r = R[a, low:high]
    whole = a - a % 4
    for i in range(0, whole, 4):
        r0, r1 = R[i, low:high], R[i + 1, low:high]
        r2, r3 = R[i + 2, low:high], R[i + 3, low:high]
        c0, c1, c2, c3 = c[i], c[i + 1], c[i + 2], c[i + 3]
        for f in range(r.size):
            r[f] -= c0 * r0[f] + c1 * r1[f] + c2 * r2[f] + c3 * r3[f]
    for i in range(whole, a):
        r0, c0 = R[i, low:high], c[i]
        for f in range(r.size):
            r[f] -= c0 * r0[f]


@kernel
def _step(d, b, r, inverse_c, positive):
    """Overwrite r with d + (b + r)/c, its positive part if asked."""
    zero = d.dtype.type(0)
    for f in range(d.size):
        r[f] = d[f] + (b[f] + r[f]) * inverse_c
    if positive:
        for f in range(d.size):
            r[f] = max(r[f], zero)


@kernel
def _accept(d, u):
    """Overwrite d with u, and u with the change."""
    for f in range(d.size):
        change = u[f] - d[f]
        d[f] = u[f]
        u[f] = change


@kernel
def sweep_block(D, B, R, C, norms, atoms, l1, l2, positive, parts, part):
    """Visit `atoms` in turn: d_j ← Π_j[ d_j + (b_j − D c_j) / C_jj ].

    D, B     (n_components, n_observed)   observed part; D is overwritten
    R        (n_atoms, n_observed)        −C_j D for the atoms, at D on entry; destroyed
    C        (n_components, n_components) symmetric
    norms    (n_components,) float64      ‖d_j‖ over *all* features; overwritten
    parts    (n_atoms, n_chunks + 1)      room for what each chunk adds to ‖d_j‖
    part                                  the chunks of this thread

    Π_j projects on the ball of radius 1 − ‖hidden part of d_j‖. When its turn comes, an
    atom takes the changes of those before it into account, so the iterates are those of
    the plain loop while most of the flops are in the product that made R. Once an atom
    has moved, its row of R holds the change.

    The threads of a pass call this at the same time, each for its own chunks.
    """
    n = D.shape[1]
    for a in range(atoms.size):
        j = atoms[a]
        if not C[j, j] > 0:  # no sample has used this atom yet, nor moves it others
            continue
        c_before = C[j][atoms[:a]]
        inverse_c = D.dtype.type(1) / C[j, j]
        sums = next_sums(part)
        for c in range(part.first, part.last):
            low, high = c * part.chunk, min((c + 1) * part.chunk, n)
            d, u = D[j, low:high], R[a, low:high]
            _subtract_changes(R, c_before, a, low, high)
            _step(d, B[j, low:high], u, inverse_c, positive)
            survey(u, sums[c], part.sample[c])
            sums[c, 2] = enet_norm(d, l1, l2)
        sum1, sum2, observed, top = total(part, sums)
        hidden = max(0.0, norms[j] - observed)
        radius = max(0.0, 1.0 - hidden)
        how = shrinkage(R[a], part, l1, l2, radius, sum1, sum2, top)
        for c in range(part.first, part.last):
            low, high = c * part.chunk, min((c + 1) * part.chunk, n)
            u = R[a, low:high]
            shrink(u, how)
            parts[a, c] = enet_norm(u, l1, l2)
            _accept(D[j, low:high], u)
        if part.me == 0:
            parts[a, -1] = hidden
    meet(part.gate, part.me, part.n_threads)
    if part.me == 0:
        for a in range(atoms.size):
            j = atoms[a]
            if C[j, j] > 0:
                norms[j] = parts[a].sum()
