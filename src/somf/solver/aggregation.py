"""How a batch enters B, the mean of x aᵀ: everywhere, everywhere but later, observed.

Each rule returns the observed part of the new B, (k, q), for the dictionary pass, and a
function that completes the update of the state. `full` and `deferred` do the same
operations on the same tiles and give the same bits. `total` is the number of samples
that means are over: those of the batch, and of other batches of the same iteration.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.kernels.aggregation import GROUP, add_outer, sort_by_atom
from somf.kernels.gather import gather_mixed, mix_features
from somf.sampling import Mask
from somf.solver.observation import Observation, View
from somf.solver.products import TILE, read_tile
from somf.solver.state import State
from somf.threads import Team

Array = NDArray[Any]
Finish = Callable[[], None]
Rule = Callable[[State, Observation, Array, float, int], tuple[Array, Finish]]

# Density below which sparse sums beat a dense product: by 1.3 to 1.7 at 20 %.
SPARSE = 0.25


@dataclass
class ByAtom:
    """The codes that are not zero, as `sort_by_atom` leaves them."""

    starts: NDArray[np.intp]
    samples: NDArray[np.intp]
    weights: Array

    @classmethod
    def of(cls, codes: Array) -> ByAtom:
        """Sort codes (n, k)."""
        n, k = codes.shape
        n_nonzero = np.count_nonzero(codes)
        sorted_ = cls(
            np.empty((-(-n // GROUP), k + 1), np.intp),
            np.empty(n_nonzero, np.intp),
            np.empty(n_nonzero, codes.dtype),
        )
        sort_by_atom(codes, sorted_.starts, sorted_.samples, sorted_.weights)
        return sorted_

    def add_to(
        self,
        B: Array,
        keep: float,
        X: Array,
        rows: NDArray[np.intp],
        start: int,
        stop: int,
    ) -> None:
        """B ← keep·B + AᵀX on features start..stop."""
        weight = B.dtype.type(keep)
        codes = self.starts, self.samples, self.weights
        add_outer(B, weight, X, rows, *codes, start, stop)


@dataclass
class WeightedCodes:
    """Codes times weight / total: what the batch adds to B is Xᵀ of this."""

    dense: Array
    by_atom: ByAtom | None  # None where the dense product is less work

    @classmethod
    def of(cls, codes: Array, weight: float, total: int) -> WeightedCodes:
        """Scale the codes, and keep them by atom if that is less work."""
        dense = codes * codes.dtype.type(weight / total)
        sparse = np.count_nonzero(dense) < SPARSE * dense.size
        return cls(dense, ByAtom.of(dense) if sparse else None)


def everywhere(
    state: State, seen: Observation, codes: Array, weight: float, total: int
) -> tuple[Array, Finish]:
    """Update all of B with all threads, and return all of it."""
    return _update_all(state, seen, WeightedCodes.of(codes, weight, total), weight)


def full(
    state: State, seen: Observation, codes: Array, weight: float, total: int
) -> tuple[Array, Finish]:
    """Update all of B with all threads."""
    if seen.mask.observes_all:
        return everywhere(state, seen, codes, weight, total)
    # This product is made twice, here and in the tiles, so that the asynchronous rule
    # can start the pass before the tiles: the same bits.
    new = WeightedCodes.of(codes, weight, total)
    B = _observed(state.B, seen, new, weight)
    _, finish = _update_all(state, seen, new, weight)
    return B, finish


def deferred(
    state: State, seen: Observation, codes: Array, weight: float, total: int
) -> tuple[Array, Finish]:
    """Update B on the other threads during the dictionary pass."""
    if seen.mask.observes_all:  # the pass needs all of B: nothing can wait
        return everywhere(state, seen, codes, weight, total)
    new = WeightedCodes.of(codes, weight, total)
    B = _observed(state.B, seen, new, weight)
    work = _tile_worker(state.B, seen, new, weight)
    seen.team.start(work)
    return B, lambda: _complete(work, seen.team)


def masked(
    state: State, seen: Observation, codes: Array, weight: float, total: int
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


def observed_sums(seen: Observation, codes: Array, total: int) -> Array:
    """mean(x aᵀ) on the observed features, (k, q)."""
    return _added(seen, WeightedCodes.of(codes, 1.0, total))


AGGREGATIONS: dict[str, Rule] = {"full": full, "async": deferred, "masked": masked}


def _observed(B: Array, seen: Observation, new: WeightedCodes, weight: float) -> Array:
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


def _added(seen: Observation, new: WeightedCodes) -> Array:
    """AᵀX over the observed features, (k, q)."""
    shape = (new.dense.shape[1], len(seen.mask.features))
    out = seen.workspace.array("added", shape, new.dense.dtype)
    if seen.mask.observes_all:
        out[:] = 0
        work = _tile_worker(out, seen, new, weight=0)
        seen.team.start(work)
        _complete(work, seen.team)
        return out

    def dense(start: int, stop: int) -> None:
        np.matmul(new.dense.T, seen.X[:, start:stop], out=out[:, start:stop])

    def sparse(start: int, stop: int) -> None:
        assert new.by_atom is not None
        new.by_atom.add_to(out, 0, seen.X, np.arange(len(seen.X)), start, stop)

    multiply = dense if new.by_atom is None else sparse
    seen.team.share(multiply, out.shape[1], smallest=1024)
    return out


def _tile_worker(
    B: Array, seen: Observation, new: WeightedCodes, weight: float
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

    def add_dense(low: int, high: int, room: Array, products: Array) -> None:
        read = read_tile(batch, low, high, room)
        product = products[: len(B) * (high - low)].reshape(len(B), high - low)
        np.matmul(new.dense.T, read, out=product)
        tile = B[:, low:high]
        tile *= keep
        tile += product

    def work_dense() -> None:
        # Buffers that stay: where memory is given back at once, as Dask asks its
        # workers to, new ones cost a page fault every 4 KiB.
        me = next(workers)
        room = seen.workspace.array(f"tile {me}", (len(batch) * size,), B.dtype)
        products = seen.workspace.array(f"product {me}", (len(B) * size,), B.dtype)
        for low in tiles:
            if low >= n_features:
                return
            add_dense(low, min(low + size, n_features), room, products)

    def work_sparse() -> None:
        assert new.by_atom is not None
        for low in tiles:
            if low >= n_features:
                return
            high = min(low + size, n_features)
            new.by_atom.add_to(B, keep, batch.X, batch.rows, low, high)

    return work_dense if new.by_atom is None else work_sparse


def _update_all(
    state: State, seen: Observation, new: WeightedCodes, weight: float
) -> tuple[Array, Finish]:
    work = _tile_worker(state.B, seen, new, weight)
    seen.team.start(work)
    _complete(work, seen.team)
    return state.B, seen.team.finish


def _complete(work: Callable[[], None], team: Team) -> None:
    """Take tiles along with the other threads, and wait until all are done."""
    work()
    team.finish()
