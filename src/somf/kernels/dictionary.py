"""Block coordinate descent on the observed part of the dictionary (Alg. 4)."""

from __future__ import annotations

from somf.kernels._jit import kernel
from somf.kernels.barrier import meet
from somf.kernels.projection import (
    CHUNK,
    enet_norm,
    next_sums,
    shrink,
    shrinkage,
    survey,
    total,
)


@kernel
def _subtract_changes(R, C, atoms, a, low, high):
    """R_a ← R_a − Σ_i C_ai R_i over the atoms i of the block that came before a."""
    r = R[a, low:high]
    for i in range(a):
        c = C[atoms[a], atoms[i]]
        if c != 0:
            change = R[i, low:high]
            for f in range(r.size):
                r[f] -= c * change[f]


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
        inverse_c = D.dtype.type(1) / C[j, j]
        sums = next_sums(part)
        for c in range(part.first, part.last):
            low, high = c * CHUNK, min((c + 1) * CHUNK, n)
            d, u = D[j, low:high], R[a, low:high]
            _subtract_changes(R, C, atoms, a, low, high)
            _step(d, B[j, low:high], u, inverse_c, positive)
            survey(u, sums[c], part.sample[c])
            sums[c, 2] = enet_norm(d, l1, l2)
        sum1, sum2, observed, top = total(part, sums)
        hidden = max(0.0, norms[j] - observed)
        radius = max(0.0, 1.0 - hidden)
        how = shrinkage(R[a], part, l1, l2, radius, sum1, sum2, top)
        for c in range(part.first, part.last):
            low, high = c * CHUNK, min((c + 1) * CHUNK, n)
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
