"""A pass of block coordinate descent over the atoms, shared between threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.kernels import barrier
from somf.kernels.dictionary import sweep_block
from somf.kernels.projection import CHUNK, Part, n_sampled
from somf.problem import AtomConstraint
from somf.solver.products import TILE
from somf.solver.workspace import Workspace
from somf.threads import Team

Array = NDArray[Any]
# What to do with atoms, on observed features start to stop, once they are final there.
Done = Callable[[NDArray[np.intp], int, int], None]

BLOCK = 32  # atoms that are visited by one call of the kernel
GROUP = 64  # atoms whose residuals come from one product; BLOCK if there are few atoms
FEWEST = 400_000  # entries of D for which a thread is worth the waiting for it


def residual_rows(k: int) -> int:
    """Of how many atoms at a time the residuals are kept."""
    return min(k, GROUP if k > 2 * GROUP else BLOCK)


def _chunks(n_observed: int, n_threads: int) -> tuple[int, int]:
    """Size and number of chunks: as many for every thread, unless they are too few."""
    n_chunks = -(-n_observed // (n_threads * CHUNK)) * n_threads
    size = -(-n_observed // n_chunks)
    return size, -(-n_observed // size)


def _cut(atoms: NDArray[np.intp], most: int) -> list[NDArray[np.intp]]:
    """Cut into pieces of about equal length, none longer than `most`."""
    n, pieces = len(atoms), -(-len(atoms) // most)
    return [atoms[n * i // pieces : n * (i + 1) // pieces] for i in range(pieces)]


class DictionaryPass:
    """d_j ← Π_j[ d_j + (b_j − D c_j)/C_jj ] for every atom, in `order`.

    D, B (k, q) are the observed part; D and `norms`, the norms over all features, are
    overwritten. The iterates are those of the plain loop, but most of the flops are in
    matrix products: −C_J D for a group J of atoms, then for each block of the group
    what the blocks before it have changed since.

    The threads share the features, and exchange the sums that the projections need.
    While they are busy with other work the caller does it all: the same bits.
    """

    def __init__(
        self,
        constraint: AtomConstraint,
        D: Array,
        B: Array,
        C: Array,
        norms: NDArray[np.float64],
        order: NDArray[np.intp],
        team: Team,
        workspace: Workspace,
        done: Done | None = None,
    ) -> None:
        self.constraint = constraint
        self.D, self.B, self.C, self.norms = D, B, C, norms
        self.order = order
        self.team = team
        self.done = done
        n_observed = D.shape[1]
        n_threads = len(team.slices(D.size, smallest=FEWEST))
        self.chunk, n_chunks = _chunks(n_observed, n_threads)
        self.slices = team.slices(n_chunks, smallest=-(-n_chunks // n_threads))
        self.n_threads = 1 if team.busy else len(self.slices)
        self.gate = barrier.new_gate(self.n_threads)
        self.sums = np.zeros((2, n_chunks, 4))
        self.sample = np.empty((n_chunks, n_sampled(n_chunks)), D.dtype)
        self.norm_parts = np.empty((BLOCK, n_chunks + 1))
        self.most_rows = residual_rows(len(order))
        self.R = workspace.array("R", (self.most_rows, n_observed), D.dtype)

    def run(self) -> None:
        """Visit all atoms."""
        give_up = partial(barrier.close, self.gate)
        self.team.together(self._visit, self.n_threads, give_up)

    def _visit(self, me: int) -> None:
        """Visit all atoms on the features of thread `me`."""
        mine = self.slices if self.n_threads == 1 else self.slices[me : me + 1]
        first, last = mine[0][0], mine[-1][1]
        shared = self.sums, self.sample, self.gate
        part = Part(self.chunk, first, last, *shared, me, self.n_threads)
        # One thread alone makes the same products as several: the same bits.
        columns = [slice(low * self.chunk, high * self.chunk) for low, high in mine]
        for group in _cut(self.order, self.most_rows):
            minus_C = -self.C[group]
            for some in columns:
                out = self.R[: len(group), some]
                np.matmul(minus_C, self.D[:, some], out=out)
            low = 0
            for atoms in _cut(group, BLOCK):
                self._visit_block(atoms, group[:low], columns, part)
                low += len(atoms)
            if self.done is not None:
                self.done(group, first * self.chunk, last * self.chunk)

    def _visit_block(
        self,
        atoms: NDArray[np.intp],
        before: NDArray[np.intp],
        columns: list[slice],
        part: Part,
    ) -> None:
        """Visit atoms, when those `before` of the same group have been visited."""
        R = self.R[len(before) : len(before) + len(atoms)]
        if len(before):
            self._catch_up(R, atoms, before, columns)
        sweep_block(
            self.D,
            self.B,
            R,
            self.C,
            self.norms,
            atoms,
            float(self.constraint.l1_ratio),
            float(self.constraint.l2_ratio),
            self.constraint.positive,
            self.norm_parts,
            part,
        )

    def _catch_up(
        self,
        R: Array,
        atoms: NDArray[np.intp],
        before: NDArray[np.intp],
        columns: list[slice],
    ) -> None:
        """Take from the residuals R of atoms what those `before` have changed."""
        changes = self.R[: len(before)]  # the kernel leaves them there
        minus_C = -self.C[np.ix_(atoms, before)]
        for some in columns:
            stop = min(some.stop, R.shape[1])
            for start in range(some.start, stop, TILE):
                tile = slice(start, min(start + TILE, stop))
                R[:, tile] += minus_C @ changes[:, tile]
