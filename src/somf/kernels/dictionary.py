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
def _subtract(r, c, R, first, stop, low, high):
    """Subtract Σ_i c_i R_i over the rows first..stop from r, on low..high."""
    r = r[low:high]
    for i in range(first, stop):
        x, c0 = R[i, low:high], c[i]
        for f in range(r.size):
            r[f] -= c0 * x[f]


@kernel
def _subtract_from_two(s, t, cs, ct, R, stop, low, high):
    """Subtract Σ_i cs_i R_i from s and Σ_i ct_i R_i from t, on low..high.

    The sums are over the rows before `stop`, which is even. One reading of them serves
    both.
    """
    s, t = s[low:high], t[low:high]
    for i in range(0, stop - 3, 4):
        x0, x1 = R[i, low:high], R[i + 1, low:high]
        x2, x3 = R[i + 2, low:high], R[i + 3, low:high]
        s0, s1, s2, s3 = cs[i], cs[i + 1], cs[i + 2], cs[i + 3]
        t0, t1, t2, t3 = ct[i], ct[i + 1], ct[i + 2], ct[i + 3]
        for f in range(s.size):
            s[f] -= s0 * x0[f] + s1 * x1[f] + s2 * x2[f] + s3 * x3[f]
            t[f] -= t0 * x0[f] + t1 * x1[f] + t2 * x2[f] + t3 * x3[f]
    if stop % 4:
        x0, x1 = R[stop - 2, low:high], R[stop - 1, low:high]
        s0, s1, t0, t1 = cs[stop - 2], cs[stop - 1], ct[stop - 2], ct[stop - 1]
        for f in range(s.size):
            s[f] -= s0 * x0[f] + s1 * x1[f]
            t[f] -= t0 * x0[f] + t1 * x1[f]


@kernel
def _catch_up(R, C, atoms, a, part):
    """Take the changes of the atoms before a into account; for a pair, in both rows."""
    c = C[atoms[a]][atoms[:a]]
    paired = a % 2 == 0 and a + 1 < atoms.size
    c_next = C[atoms[a + 1]][atoms[:a]] if paired else c
    for i in range(part.first, part.last):
        low, high = i * part.chunk, min((i + 1) * part.chunk, R.shape[1])
        if paired:
            _subtract_from_two(R[a], R[a + 1], c, c_next, R, a, low, high)
        else:  # the second of a pair, or the last one, alone
            _subtract(R[a], c, R, a - 1 if a % 2 else 0, a, low, high)


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
        _catch_up(R, C, atoms, a, part)
        if not C[j, j] > 0:  # no sample has used this atom yet, nor moves it others
            continue
        inverse_c = D.dtype.type(1) / C[j, j]
        sums = next_sums(part)
        for c in range(part.first, part.last):
            low, high = c * part.chunk, min((c + 1) * part.chunk, n)
            d, u = D[j, low:high], R[a, low:high]
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
