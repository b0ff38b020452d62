"""Block coordinate descent on the observed part of the dictionary (Alg. 4)."""

from __future__ import annotations

from somf.kernels._jit import kernel
from somf.kernels.projection import enet_norm, project, sums


@kernel
def _step(d, b, r, inverse_c, positive, u):
    """Overwrite u with d + (b + r)/c, its positive part if asked."""
    zero = d.dtype.type(0)
    for f in range(d.size):
        u[f] = d[f] + (b[f] + r[f]) * inverse_c
    if positive:
        for f in range(d.size):
            u[f] = max(u[f], zero)


@kernel
def _accept(d, u):
    """Overwrite d with u and u with the change; tell whether there is any."""
    moved = d.dtype.type(0)
    for f in range(d.size):
        change = u[f] - d[f]
        d[f] = u[f]
        u[f] = change
        moved += abs(change)
    return moved > 0


@kernel
def sweep_block(D, B, R, C, norms, atoms, l1, l2, positive, u):
    """Visit `atoms` in turn: d_j ← Π_j[ d_j + (b_j − D c_j) / C_jj ].

    D, B     (n_components, n_observed)   observed part; D is overwritten
    R        (n_atoms, n_observed)        −C_j D for the atoms, at D on entry; destroyed
    C        (n_components, n_components) symmetric
    norms    (n_components,) float64      ‖d_j‖ over *all* features; overwritten
    u        (n_observed,)                room to work in

    Π_j projects on the ball of radius 1 − ‖hidden part of d_j‖. After atom j has moved,
    the rows of R that are still to be visited follow, so the iterates are those of the
    plain loop while most of the flops are in the product that made R.
    """
    n_atoms = atoms.size
    for a in range(n_atoms):
        j = atoms[a]
        if not C[j, j] > 0:  # no sample has used this atom yet
            continue
        d = D[j]
        hidden = max(0.0, norms[j] - enet_norm(d, l1, l2))
        _step(d, B[j], R[a], d.dtype.type(1) / C[j, j], positive, u)
        sum1, sum2, top = sums(u)
        norms[j] = hidden + project(u, l1, l2, max(0.0, 1.0 - hidden), sum1, sum2, top)
        if _accept(d, u):
            for later in range(a + 1, n_atoms):
                c = C[atoms[later], j]
                if c != 0:
                    r = R[later]
                    for f in range(r.size):
                        r[f] -= c * u[f]
