"""How a batch enters B, the mean of x aᵀ: everywhere, everywhere but later, observed.

Each rule returns the observed part of the new B, (k, q), for the dictionary pass, and a
function that completes the update of the state. `full` and `deferred` do the same
operations on the same tiles and give the same bits. `total` is the number of samples
that means are over: those of the batch, and of other batches of the same iteration.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.kernels.gather import gather_mixed, mix_features
from somf.sampling import Mask
from somf.solver.codes import ByAtom, Codes
from somf.solver.observation import Observation, View
from somf.solver.products import TILE, read_tile
from somf.solver.state import State
from somf.threads import Team

Array = NDArray[Any]
Finish = Callable[[], None]
Rule = Callable[[State, Observation, Codes, float, int], tuple[Array, Finish]]

FEWEST_PRODUCTS = 2_000_000  # of codes and features that are worth other threads


def everywhere(
    state: State, seen: Observation, codes: Codes, weight: float, total: int
) -> tuple[Array, Finish]:
    """Update all of B with all threads, and return all of it."""
    return _update_all(state, seen, codes.weighted(weight, total), weight)


def full(
    state: State, seen: Observation, codes: Codes, weight: float, total: int
) -> tuple[Array, Finish]:
    """Update all of B with all threads."""
    if seen.mask.observes_all:
        return everywhere(state, seen, codes, weight, total)
    # This product is made twice, here and in the tiles, so that the asynchronous rule
    # can start the pass before the tiles: the same bits.
    new = codes.weighted(weight, total)
    B = _observed(state.B, seen, new, weight)
    _, finish = _update_all(state, seen, new, weight)
    return B, finish


def deferred(
    state: State, seen: Observation, codes: Codes, weight: float, total: int
) -> tuple[Array, Finish]:
    """Update B on the other threads during the dictionary pass."""
    if seen.mask.observes_all:  # the pass needs all of B: nothing can wait
        return everywhere(state, seen, codes, weight, total)
    new = codes.weighted(weight, total)
    B = _observed(state.B, seen, new, weight)
    work = _tile_worker(state.B, seen, new, weight)
    seen.team.start(work)
    return B, lambda: _complete(work, seen.team)


def masked(
    state: State, seen: Observation, codes: Codes, weight: float, total: int
) -> tuple[Array, Finish]:
    """Update the observed features only: O(n_observed).

    A feature that was hidden for a while catches up: its weight is what all the
    iterations since its last visit would have given, 1 − Π(1 − w_s). So B and C forget
    at the same pace, and a feature seen for the first time starts from its batch alone.
    """
    keep = visit(state, seen.mask)
    added = observed_sums(seen, codes, total)
    return mix(mix_features, state.B, seen, added, keep, 1 - keep), seen.team.finish


def visit(state: State, mask: Mask) -> Array:
    """Note a visit of the observed features; return what is left of their B."""
    assert state.feature_clock is not None
    keep = np.exp(state.clock - state.feature_clock[mask.features])
    state.feature_clock[mask.features] = state.clock
    return keep.astype(state.B.dtype)


def observed_sums(seen: Observation, codes: Codes, total: int) -> Array:
    """mean(x aᵀ) on the observed features, (k, q)."""
    return _added(seen, codes.weighted(1.0, total))


AGGREGATIONS: dict[str, Rule] = {"full": full, "async": deferred, "masked": masked}


def _observed(B: Array, seen: Observation, new: Array | ByAtom, weight: float) -> Array:
    """(1 − w)·B + w·mean(x aᵀ) on the observed features; the state is left alone."""
    n_observed = len(seen.mask.features)
    keep = np.full(n_observed, 1 - weight, B.dtype)
    return mix(gather_mixed, B, seen, _added(seen, new), keep, np.ones_like(keep))


def mix(
    kernel: Callable[..., Any],
    B: Array,
    view: View,
    added: Array,
    keep: Array,
    gain: Array,
) -> Array:
    """keep·B + gain·added on the observed features; some kernels overwrite B too."""
    features = view.mask.features
    out = view.workspace.array("B", added.shape, B.dtype)

    def part(start: int, stop: int) -> None:
        kernel(B, features, keep, gain, added, out, start, stop)

    view.team.share(part, len(B))
    return out


def _added(seen: Observation, new: Array | ByAtom) -> Array:
    """AᵀX over the observed features, (k, q)."""
    out = seen.workspace.array("added", seen.D.shape, seen.D.dtype)
    if seen.mask.observes_all:
        out[:] = 0
        _do_tiles(out, seen, new, weight=0)
        return out

    def multiply(start: int, stop: int) -> None:
        if isinstance(new, ByAtom):
            new.add_to(out, 0, seen.X, np.arange(len(seen.X)), start, stop)
        else:
            np.matmul(new.T, seen.X[:, start:stop], out=out[:, start:stop])

    seen.team.share(multiply, out.shape[1], smallest=1024)
    return out


def _tile_worker(
    B: Array, seen: Observation, new: Array | ByAtom, weight: float
) -> Callable[[], None]:
    """Return a function that updates tiles of B until none is left.

    Any number of threads may run it at the same time: a tile is taken once, and what
    is done to it does not depend on who does it.
    """
    batch, n_features = seen.whole, B.shape[1]
    keep = B.dtype.type(1 - weight)
    size = min(TILE, -(-n_features // seen.team.n_threads))  # work for everybody
    tiles = itertools.count(0, size)  # next() is atomic
    workers = itertools.count()

    def add_dense(A: Array, low: int, high: int, room: Array, products: Array) -> None:
        read = read_tile(batch, low, high, room)
        product = products[: len(B) * (high - low)].reshape(len(B), high - low)
        np.matmul(A.T, read, out=product)
        tile = B[:, low:high]
        tile *= keep
        tile += product

    def work_dense(A: Array) -> None:
        # Buffers that stay: where memory is given back at once, as Dask asks its
        # workers to, new ones cost a page fault every 4 KiB.
        me = next(workers)
        room = seen.workspace.array(f"tile {me}", (len(batch) * size,), B.dtype)
        products = seen.workspace.array(f"product {me}", (len(B) * size,), B.dtype)
        for low in tiles:
            if low >= n_features:
                return
            add_dense(A, low, min(low + size, n_features), room, products)

    def work_sparse(A: ByAtom) -> None:
        for low in tiles:
            if low >= n_features:
                return
            high = min(low + size, n_features)
            A.add_to(B, keep, batch.X, batch.rows, low, high)

    if isinstance(new, ByAtom):
        return partial(work_sparse, new)
    return partial(work_dense, new)


def _update_all(
    state: State, seen: Observation, new: Array | ByAtom, weight: float
) -> tuple[Array, Finish]:
    _do_tiles(state.B, seen, new, weight)
    return state.B, seen.team.finish


def _do_tiles(B: Array, seen: Observation, new: Array | ByAtom, weight: float) -> None:
    """Update all tiles of B, with all threads if it is worth their while."""
    work = _tile_worker(B, seen, new, weight)
    n_codes = len(new.samples) if isinstance(new, ByAtom) else new.size
    if n_codes * B.shape[1] >= FEWEST_PRODUCTS:
        seen.team.start(work)
    _complete(work, seen.team)


def _complete(work: Callable[[], None], team: Team) -> None:
    """Take tiles along with the other threads, and wait until all are done."""
    work()
    team.finish()
