"""Patches of an image as rows of a matrix."""

from __future__ import annotations

import numpy as np

from somf.kernels._jit import kernel


@kernel
def read_patches(image, tops, lefts, height, width, normalize, out, start, stop):
    """out[i] = the patch of `image` (rows, columns, channels) at tops[i], lefts[i].

    With `normalize` a patch is centred and scaled to unit norm; one that is constant to
    rounding becomes zero.
    """
    line = width * image.shape[2]
    eps = np.finfo(out.dtype).eps
    for i in range(start, stop):
        left = lefts[i]
        for row in range(height):
            source = image[tops[i] + row, left : left + width].ravel()
            for f in range(line):
                out[i, row * line + f] = source[f]
        if normalize:
            patch = out[i]
            total = 0.0
            for f in range(patch.size):
                total += np.float64(patch[f])
            mean = out.dtype.type(total / patch.size)
            square = 0.0
            for f in range(patch.size):
                patch[f] -= mean
                square += np.float64(patch[f]) * np.float64(patch[f])
            length = np.sqrt(square)
            constant = length <= eps * abs(mean) * np.sqrt(patch.size) * 4
            scale = out.dtype.type(0 if constant else 1 / length)
            for f in range(patch.size):
                patch[f] *= scale
