"""AᵀA and AᵀX with sparse codes A: (s/k)² and s/k of the dense flops."""

from __future__ import annotations

from somf.kernels._jit import kernel

GROUP = 200  # samples of a group, which is summed over before the next
_TILE = 1024  # features at a time: those of a group stay near for all atoms
_CORNER = 16  # rows that are mirrored together: columns of a large C miss the cache


@kernel
def compress(codes, starts, atoms, values, used):
    """Write down the codes that are not zero; returns how many there are.

    codes     (n, k)
    starts    (n + 1,)   sample i has the places starts[i] to starts[i + 1] of
    atoms     (room,)    `atoms` and `values`, unless there was room for less than k
    values    (room,)    more codes before it: then it is only counted
    used      (k,)       whether an atom has a code

    All but the codes are overwritten.
    """
    n, k = codes.shape
    starts[0] = 0
    used[:] = False
    end = 0
    for i in range(n):
        a = codes[i]
        if end + k <= atoms.size:
            for j in range(k):  # without a branch, which nobody could predict
                atoms[end] = j
                values[end] = a[j]
                end += a[j] != 0
        else:
            for j in range(k):
                end += a[j] != 0
        for j in range(k):
            used[j] |= a[j] != 0
        starts[i + 1] = end
    return end


@kernel
def sum_pairs(starts, atoms, values, weight, C):
    """Overwrite C (k, k) with weight·AᵀA, from the codes A that `compress` left."""
    k = C.shape[0]
    C[:] = 0
    for i in range(starts.size - 1):
        first = starts[i]
        for m in range(first, starts[i + 1]):
            c, x = C[atoms[m]], weight * values[m]
            for s in range(first, m + 1):
                c[atoms[s]] += x * values[s]
    for low in range(0, k, _CORNER):
        for j in range(low, k):
            for i in range(low, min(low + _CORNER, j)):
                C[i, j] = C[j, i]


@kernel
def sort_by_atom(starts, atoms, values, places, samples, weights):
    """Sort the codes that `compress` left by atom, in each group of samples.

    places    (n_groups, k + 1)   atom j of group g has the places places[g, j] to
                                  places[g, j + 1] of `samples` and `weights`

    The last three are overwritten.
    """
    n, k = starts.size - 1, places.shape[1] - 1
    for g in range(places.shape[0]):
        low, high = g * GROUP, min((g + 1) * GROUP, n)
        place = places[g]
        place[:] = 0
        for s in range(starts[low], starts[high]):
            place[atoms[s] + 1] += 1
        place[0] = starts[low]
        for j in range(k):
            place[j + 1] += place[j]
        for i in range(low, high):
            for s in range(starts[i], starts[i + 1]):
                j = atoms[s]
                samples[place[j]] = i
                weights[place[j]] = values[s]
                place[j] += 1
        for j in range(k, 0, -1):  # every place has moved to where the next begins
            place[j] = place[j - 1]
        place[0] = starts[low]


@kernel
def add_outer(B, keep, X, rows, places, samples, weights, start, stop):
    """Overwrite features start..stop of B (k, ·) with keep·B + AᵀX.

    Sample i of the batch is row rows[i] of X, whose columns are those of B; the codes A
    come from `sort_by_atom`. If `keep` is 0, what B held does not matter.
    """
    for low in range(start, stop, _TILE):
        high = min(low + _TILE, stop)
        for j in range(B.shape[0]):
            b = B[j, low:high]
            if keep == 0:
                b[:] = 0
            else:
                for f in range(b.size):
                    b[f] *= keep
        for g in range(places.shape[0]):
            for j in range(B.shape[0]):
                first, last = places[g, j], places[g, j + 1]
                _add_rows(B[j], X, rows, samples, weights, first, last, low, high)


@kernel
def _add_rows(b, X, rows, samples, weights, first, last, low, high):
    """Add Σ_s weights[s]·X[rows[samples[s]]] to b on low..high, four samples a time."""
    b = b[low:high]
    whole = last - (last - first) % 4
    for s in range(first, whole, 4):
        x0, x1 = X[rows[samples[s]], low:high], X[rows[samples[s + 1]], low:high]
        x2, x3 = X[rows[samples[s + 2]], low:high], X[rows[samples[s + 3]], low:high]
        a0, a1, a2, a3 = weights[s], weights[s + 1], weights[s + 2], weights[s + 3]
        for f in range(b.size):
            b[f] += a0 * x0[f] + a1 * x1[f] + a2 * x2[f] + a3 * x3[f]
    for s in range(whole, last):
        x0, a0 = X[rows[samples[s]], low:high], weights[s]
        for f in range(b.size):
            b[f] += a0 * x0[f]
