"""Patches of an image as rows of a matrix."""

from __future__ import annotations

import numpy as np

from somf.kernels._jit import kernel


@kernel
def read_patches(image, tops, lefts, height, width, out, start, stop):
    """out[i] = the patch of `image` (rows, columns, channels) at tops[i], lefts[i]."""
    line = width * image.shape[2]
    for i in range(start, stop):
        left = lefts[i]
        for row in range(height):
            source = image[tops[i] + row, left : left + width].ravel()
            target = out[i, row * line : (row + 1) * line]
            for f in range(line):
                target[f] = source[f]


@kernel
def center_channels(patches, n_channels, start, stop):
    """Subtract from each patch the mean of each of its channels."""
    n_pixels = patches.shape[1] // n_channels
    one = patches.dtype.type(1)
    means = np.empty(n_channels, patches.dtype)
    for i in range(start, stop):
        means[:] = 0
        for pixel in range(n_pixels):
            values = patches[i, pixel * n_channels : (pixel + 1) * n_channels]
            for c in range(n_channels):
                means[c] += values[c]
        for c in range(n_channels):
            means[c] *= one / n_pixels
        for pixel in range(n_pixels):
            values = patches[i, pixel * n_channels : (pixel + 1) * n_channels]
            for c in range(n_channels):
                values[c] -= means[c]


@kernel
def row_norm(row):
    """Euclidean norm, summed in float64."""
    square = 0.0
    for f in range(row.size):
        square += np.float64(row[f]) * np.float64(row[f])
    return np.sqrt(square)


@kernel
def prepare_patches(patches, n_channels, center, scale, rounding, start, stop):
    """Centre each channel and scale to unit norm, as asked.

    What centring leaves of a constant patch is up to `rounding` times its norm: such
    patches become zero.
    """
    for i in range(start, stop):
        patch = patches[i]
        floor = rounding * row_norm(patch)
        if center:
            center_channels(patches, n_channels, i, i + 1)
        if scale:
            length = row_norm(patch)
            factor = patches.dtype.type(1 / length if length > floor else 0)
            for f in range(patch.size):
                patch[f] *= factor
