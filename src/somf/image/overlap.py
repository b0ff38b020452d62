"""Images put together again from patches that overlap, some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.sources.patches import PatchSource, covering

Array = NDArray[Any]

# Bytes of patches that are worked on at a time.
BLOCK = 2**27


def blocks(source: PatchSource) -> Iterator[NDArray[np.intp]]:
    """Yield the numbers of the patches of a source, in blocks of bounded size."""
    n_patches, n_features = source.shape
    length = max(1, BLOCK // (n_features * source.dtype.itemsize))
    for start in range(0, n_patches, length):
        yield np.arange(start, min(start + length, n_patches))


def average_overlaps(
    image: Any,
    patch_size: tuple[int, int],
    step: int,
    change: Callable[[Array], Array],
    out: Array,
    progress: Callable[[int, int], object],
    n_threads: int | None = None,
    *,
    keep_known: bool = False,
) -> int:
    """Overwrite `out` with the means of changed patches over all that hold a pixel.

    Returns how many values are NaN. `out` may be the image itself: rows are read
    before they are written.

    image    (height, width, bands), of which as many rows are read at a time as a patch
             has, and never a row twice as many times as patches overlap
    change   takes patches (n, n_features) and returns as many; NaN means "no opinion"
    out      (height, width, bands), NaN where no patch has an opinion
    keep_known   whether values of the image that are not NaN stay as they are
    """
    height = patch_size[0]
    tops = covering(len(image), height, step)
    total = np.zeros((height, *image.shape[1:]), np.float32)
    count = np.zeros_like(total)
    n_left = 0
    for top, following in zip(tops, [*tops[1:], len(image)], strict=True):
        strip = np.ascontiguousarray(image[top : top + height], np.float32)
        source = PatchSource(
            strip, patch_size, step=step, cover=True, n_threads=n_threads
        )
        for numbers in blocks(source):
            patches = change(source.read(numbers))
            _add(
                patches.reshape(-1, *source.patch_shape), source, numbers, total, count
            )
        n_done = following - top
        finished, n = total[:n_done], count[:n_done]
        mean = np.full_like(finished, np.nan)
        np.divide(finished, n, out=mean, where=n > 0)
        if keep_known:
            values = strip[:n_done]
            np.copyto(mean, values, where=~np.isnan(values))
        n_left += int(np.isnan(mean).sum())
        out[top:following] = mean
        for part in (total, count):
            part[: height - n_done] = part[n_done:].copy()
            part[height - n_done :] = 0
        progress(int(following), len(image))
    return n_left


def _add(
    patches: Array,
    source: PatchSource,
    numbers: NDArray[np.intp],
    total: Array,
    count: Array,
) -> None:
    """Add patches of a strip to its sums."""
    width = source.patch_shape[1]
    holes = np.isnan(patches.sum(axis=(1, 2, 3)))
    for patch, left, has_holes in zip(
        patches, source.corners(numbers)[1], holes, strict=True
    ):
        here = (slice(None), slice(left, left + width))
        if has_holes:
            known = ~np.isnan(patch)
            total[here] += np.where(known, patch, 0)
            count[here] += known
        else:
            total[here] += patch
            count[here] += 1


def centred_strip(image: Array, row: int, patch_size: tuple[int, int]) -> Array:
    """Return the rows of the patches that are centred on one row of pixels.

    The image goes on beyond its borders as in a mirror.
    """
    height, width = patch_size
    rows = _mirrored(row - height // 2, height, image.shape[0])
    n_columns = image.shape[1] + width - 1
    columns = _mirrored(-(width // 2), n_columns, image.shape[1])
    low, high = rows.min(), rows.max() + 1
    strip = np.asarray(image[low:high], np.float32)
    return np.ascontiguousarray(strip[rows - low][:, columns])


def _mirrored(start: int, n: int, length: int) -> NDArray[np.intp]:
    """Return start..start + n, with what is beyond 0..length − 1 mirrored."""
    period = 2 * length
    index = np.arange(start, start + n) % period
    return np.minimum(index, period - 1 - index)
