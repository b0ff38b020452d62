"""Aᵀ X with sparse codes A: s/k of the dense flops.

The codes come by atom (compressed columns): atom j is used by the samples
`samples[starts[j]:starts[j + 1]]` with the weights at the same places.
"""

from __future__ import annotations

from somf.kernels._jit import kernel

_TILE = 512  # features whose samples (200 of them) fit in the second-level cache


@kernel
def add_outer(B, keep, X, rows, starts, samples, weights, start, stop):
    """Overwrite features start..stop of B (k, ·) with keep·B + AᵀX.

    Sample i of the batch is row rows[i] of X, whose columns are those of B. If `keep`
    is 0, what B held does not matter.
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
            for s in range(starts[j], starts[j + 1]):
                x = X[rows[samples[s]], low:high]
                a = weights[s]
                for f in range(b.size):
                    b[f] += a * x[f]
