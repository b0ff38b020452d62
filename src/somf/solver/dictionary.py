"""A pass of block coordinate descent over the atoms, shared between threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.kernels import barrier
from somf.kernels.dictionary import sweep_block
from somf.kernels.projection import CHUNK, Part, n_sampled
from somf.problem import AtomConstraint
from somf.solver.workspace import Workspace
from somf.threads import Team

Array = NDArray[Any]
# What to do with atoms, on observed features start to stop, once they are final there.
Done = Callable[[NDArray[np.intp], int, int], None]

GROUP = 64  # atoms whose residuals come from one product over all atoms
BLOCK = 16  # atoms of a group that are visited by one call of the kernel
TILE = 4096  # features of a correction: its product stays in the cache


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
        n_chunks = -(-n_observed // CHUNK)
        self.slices = team.slices(n_chunks, smallest=2)
        self.n_threads = 1 if team.busy else len(self.slices)
        self.gate = barrier.new_gate(self.n_threads)
        self.sums = np.zeros((2, n_chunks, 4))
        self.sample = np.empty((n_chunks, n_sampled(n_observed)), D.dtype)
        self.norm_parts = np.empty((BLOCK, n_chunks + 1))
        n_rows = min(GROUP, len(order))
        self.R = workspace.array("R", (n_rows, n_observed), D.dtype)

    def run(self) -> None:
        """Visit all atoms."""
        give_up = lambda: barrier.close(self.gate)  # noqa: E731
        self.team.together(self._visit, self.n_threads, give_up)

    def _visit(self, me: int) -> None:
        """Visit all atoms on the features of thread `me`."""
        mine = self.slices if self.n_threads == 1 else self.slices[me : me + 1]
        first, last = mine[0][0], mine[-1][1]
        part = Part(first, last, self.sums, self.sample, self.gate, me, self.n_threads)
        # One thread alone makes the same products as several: the same bits.
        columns = [slice(low * CHUNK, high * CHUNK) for low, high in mine]
        for start in range(0, len(self.order), GROUP):
            group = self.order[start : start + GROUP]
            minus_C = -self.C[group]
            for some in columns:
                out = self.R[: len(group), some]
                np.matmul(minus_C, self.D[:, some], out=out)
            for low in range(0, len(group), BLOCK):
                self._visit_block(group, low, columns, part)
            if self.done is not None:
                self.done(group, first * CHUNK, last * CHUNK)

    def _visit_block(
        self, group: NDArray[np.intp], low: int, columns: list[slice], part: Part
    ) -> None:
        atoms = group[low : low + BLOCK]
        R = self.R[low : low + len(atoms)]
        changes = self.R[:low]  # of the atoms before: the kernel leaves them there
        minus_C = -self.C[np.ix_(atoms, group[:low])]
        for some in columns if low else []:
            stop = min(some.stop, R.shape[1])
            for start in range(some.start, stop, TILE):
                tile = slice(start, min(start + TILE, stop))
                R[:, tile] += minus_C @ changes[:, tile]
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
