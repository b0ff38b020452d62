"""Products over all features, tile by tile, shared between threads.

The dictionary is kept as Dᵀ (k, p): an atom is a row, as in `components_`.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.kernels.gather import copy_samples, copy_tile, gather_samples
from somf.solver.workspace import Workspace
from somf.sources.base import Batch
from somf.threads import Team

Array = NDArray[Any]

TILE = 4096  # features of one product; 1024 and 2048 made the step 2 to 7 % slower
FEWEST = 512  # features that are worth a thread
SAMPLES = 128  # that are gathered at a time: of 64 to 256 the fastest
WHOLE_SAMPLES = 256  # with all features at a time; as fast as 512, faster than 128
FEWEST_SAMPLES = 16  # samples that are worth a thread
FEWEST_PRODUCTS = 5_000_000  # so many take 0.1 ms, as long as to hand them over


def read_tile(batch: Batch, low: int, high: int, room: Array) -> Array:
    """Return features low..high of a batch, as a view if its rows are adjacent."""
    view = batch.adjacent
    if view is not None:
        return np.asarray(view[:, low:high])
    tile = room[: len(batch) * (high - low)].reshape(len(batch), high - low)
    copy_tile(batch.X, batch.rows, low, high, tile)
    return tile


def gram(D: Array, team: Team) -> Array:
    """Dᵀ D, from D as (k, q)."""

    def part(low: int, high: int) -> Array:
        piece = D[:, low:high]
        return np.asarray(piece @ piece.T)

    return np.asarray(sum(team.share(part, D.shape[1], smallest=FEWEST)))


def correlate(batch: Batch, D: Array, team: Team) -> tuple[Array, Array]:
    """Return Dᵀx and |x|² of every sample, over all features, from D as (k, p)."""
    if D.shape[1] < TILE * team.n_threads:
        return _share_samples(batch, D, team)
    return _share_features(batch, D, team)


def _share_features(batch: Batch, D: Array, team: Team) -> tuple[Array, Array]:
    """Let the threads share the features; their sums are added in order."""
    n_components, n_features = D.shape

    def part(start: int, stop: int) -> tuple[Array, Array]:
        room = np.empty(len(batch) * min(TILE, stop - start), D.dtype)
        beta = np.zeros((len(batch), n_components), D.dtype)
        energy = np.zeros(len(batch))
        for low in range(start, stop, TILE):
            high = min(low + TILE, stop)
            tile = read_tile(batch, low, high, room)
            beta += tile @ D[:, low:high].T
            energy += np.einsum("ij,ij->i", tile, tile)
        return beta, energy

    parts = team.share(part, n_features, smallest=FEWEST)
    return sum(beta for beta, _ in parts), sum(energy for _, energy in parts)


def _share_samples(batch: Batch, D: Array, team: Team) -> tuple[Array, Array]:
    """Let the threads share the samples: each reads all of D, which is small."""
    n_components, n_features = D.shape
    beta = np.empty((len(batch), n_components), D.dtype)
    energy = np.empty(len(batch))

    def part(start: int, stop: int) -> None:
        room = np.empty((min(WHOLE_SAMPLES, stop - start), n_features), D.dtype)
        for low in range(start, stop, WHOLE_SAMPLES):
            here = slice(low, min(low + WHOLE_SAMPLES, stop))
            some = room[: here.stop - low]
            copy_samples(batch.X, batch.rows[here], some, energy[here])
            np.matmul(some, D.T, out=beta[here])

    fewest = max(FEWEST_SAMPLES, FEWEST_PRODUCTS // D.size)
    team.share(part, len(batch), smallest=fewest)
    return beta, energy


def correlate_observed(
    batch: Batch,
    features: NDArray[np.intp],
    D: Array,
    team: Team,
    workspace: Workspace,
    X: Array | None,
) -> tuple[Array, Array, float]:
    """Return what `correlate` does, over observed features, from those of D as (k, q).

    The threads share the samples, and multiply a few of them while they are still in
    the cache where they were gathered. X (n, q), if given, is overwritten with what was
    gathered. The third is the seconds that gathering took.
    """
    beta = np.empty((len(batch), len(D)), D.dtype)
    energy = np.empty(len(batch))
    threads = itertools.count()  # next() is atomic

    def part(start: int, stop: int) -> float:
        name, shape = f"samples {next(threads)}", (SAMPLES, len(features))
        room = workspace.array(name, shape, D.dtype) if X is None else X
        seconds = 0.0
        for low in range(start, stop, SAMPLES):
            here = slice(low, min(low + SAMPLES, stop))
            some = room[: here.stop - low] if X is None else room[here]
            begin = time.perf_counter()
            gather_samples(batch.X, batch.rows[here], features, some, energy[here])
            seconds += time.perf_counter() - begin
            np.matmul(some, D.T, out=beta[here])
        return seconds

    seconds = team.share(part, len(batch), smallest=FEWEST_SAMPLES)
    return beta, energy, sum(seconds) / len(seconds)
