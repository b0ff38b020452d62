"""Aᵀ X with sparse codes A: s/k of the dense flops."""

from __future__ import annotations

from somf.kernels._jit import kernel

GROUP = 200  # samples of a group, which is summed over before the next
_TILE = 1024  # features at a time: those of a group stay near for all atoms


@kernel
def sort_by_atom(codes, starts, samples, weights):
    """Sort the non-zero codes of each group of samples by atom.

    codes     (n, k)
    starts    (n_groups, k + 1)   atom j of group g has the places starts[g, j] to
                                  starts[g, j + 1] of `samples` and `weights`

    All but the codes are overwritten.
    """
    n, k = codes.shape
    end = 0
    for g in range(starts.shape[0]):
        low, high = g * GROUP, min((g + 1) * GROUP, n)
        places = starts[g]
        places[:] = 0
        for i in range(low, high):
            for j in range(k):
                if codes[i, j] != 0:
                    places[j + 1] += 1
        places[0] = end
        for j in range(k):
            places[j + 1] += places[j]
        end = places[k]
        for i in range(low, high):
            for j in range(k):
                if codes[i, j] != 0:
                    samples[places[j]] = i
                    weights[places[j]] = codes[i, j]
                    places[j] += 1
        for j in range(k, 0, -1):  # every place has moved to where the next begins
            places[j] = places[j - 1]
        places[0] = 0 if g == 0 else starts[g - 1, k]


@kernel
def add_outer(B, keep, X, rows, starts, samples, weights, start, stop):
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
        for g in range(starts.shape[0]):
            for j in range(B.shape[0]):
                first, last = starts[g, j], starts[g, j + 1]
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
