"""Patches of an image as rows of a matrix."""

from __future__ import annotations

import numpy as np

from somf.kernels._jit import kernel


@kernel
def read_patches(image, tops, lefts, height, width, out):
    """out[i] = the patch of `image` (rows, columns, channels) at tops[i], lefts[i]."""
    line = width * image.shape[2]
    for i in range(tops.size):
        left = lefts[i]
        for row in range(height):
            source = image[tops[i] + row, left : left + width].ravel()
            target = out[i, row * line : (row + 1) * line]
            for f in range(line):
                target[f] = source[f]


@kernel
def center_channels(patches, n_channels):
    """Subtract from each patch the mean of each of its channels."""
    n_pixels = patches.shape[1] // n_channels
    means = np.empty(n_channels, np.float64)
    for i in range(patches.shape[0]):
        patch = patches[i].reshape(n_pixels, n_channels)
        means[:] = 0
        for pixel in range(n_pixels):
            for c in range(n_channels):
                means[c] += patch[pixel, c]
        means /= n_pixels
        for pixel in range(n_pixels):
            for c in range(n_channels):
                patch[pixel, c] -= means[c]


@kernel
def scale_rows(patches, floor):
    """Scale each row to unit norm; rows of a norm up to floor[i] become zero."""
    for i in range(patches.shape[0]):
        patch = patches[i]
        square = 0.0
        for f in range(patch.size):
            square += np.float64(patch[f]) * np.float64(patch[f])
        length = np.sqrt(square)
        scale = patches.dtype.type(1 / length if length > floor[i] else 0)
        for f in range(patch.size):
            patch[f] *= scale
