"""One iteration of OMF (nothing hidden) and SOMF, as an instance of SAMM."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.problem import Problem
from somf.sampling import Mask
from somf.solver import samm
from somf.solver.aggregation import AGGREGATIONS, Finish, everywhere
from somf.solver.averages import Averages
from somf.solver.codes import Codes
from somf.solver.coding import ESTIMATORS, NEEDS_GRAM, REMEMBERS_SAMPLES
from somf.solver.dictionary import DictionaryPass
from somf.solver.observation import Observation, View
from somf.solver.products import gram
from somf.solver.schedule import Schedule, looseness
from somf.solver.state import State
from somf.solver.trace import Stopwatch
from somf.solver.workspace import Workspace
from somf.sources.base import Batch, ObservedBatch
from somf.threads import Team

Array = NDArray[Any]

REFRESH = 500  # iterations after which a maintained Gram matrix is made anew


@dataclass(frozen=True)
class Settings:
    """How the problem is solved: each choice is independent of the others."""

    code_estimator: str = "masked"
    aggregation: str = "async"
    dict_update: str = "observed"  # or "all" features, which needs all of B
    schedule: Schedule = field(default_factory=Schedule)
    n_dict_passes: int = 1
    code_tol: float = 1e-3
    code_max_iter: int = 1000
    most_pieces: int = 1  # in which batches may be taken
    idle_limit: int = 20  # batches without use after which an atom is replaced
    averages_folder: str | os.PathLike[str] | None = None

    @property
    def updates_all(self) -> bool:
        """Whether every iteration updates all features of the dictionary."""
        return self.dict_update == "all" or self.schedule.reduction <= 1


@dataclass
class Coded:
    """A batch with its codes: the surrogate g_t, which (x aᵀ, a aᵀ) define."""

    seen: Observation
    codes: Codes
    objective: float  # mean over the batch, as the code estimator sees it


@dataclass
class Aggregated:
    """What the dictionary pass needs: all, or the observed part, of D and B."""

    view: View
    D: Array
    B: Array
    finish: Finish  # completes the update of B in the state


class Factorization:
    """Subsampled online matrix factorization: θ = D, ḡ = (B, C).

    majorize    codes α = argmin ½αᵀGα − βᵀα + λΩ(α), (G, β) from the estimator
    aggregate   C ← (1 − w)C + w·mean(ααᵀ),  B ← (1 − w)B + w·mean(xαᵀ)
    minimize    d_j ← Π_j[ d_j + (b_j − D c_j)/C_jj ] on the observed features, or all
    """

    def __init__(
        self,
        problem: Problem,
        settings: Settings,
        state: State,
        team: Team,
        workspace: Workspace | None = None,
    ) -> None:
        self.problem = problem
        self.settings = settings
        self.state = state
        self.team = team
        self.stopwatch = Stopwatch()
        self._workspace = workspace or Workspace()
        self._aggregated: Aggregated | None = None
        self._prepare()

    def _prepare(self) -> None:
        """Fit the state to the problem and to the rules, which may be new to it."""
        state, settings = self.state, self.settings
        constraint, order = self.problem.constraint, state.sampler.order
        if constraint != state.constraint:
            state.D = constraint.project(state.D)
            state.norms = constraint.norms(state.D)
            state.constraint, state.G = constraint, None
        if settings.code_estimator not in NEEDS_GRAM:
            state.G = None
        elif state.G is None:
            state.G = gram(state.D, self.team)
        if settings.aggregation != "masked":
            state.feature_clock = None
        elif (
            state.feature_clock is None
        ):  # +inf: never visited, so the next visit counts 1
            clock = state.clock if state.n_steps else np.inf
            state.feature_clock = np.full(state.D.shape[1], clock)
        if settings.code_estimator not in REMEMBERS_SAMPLES:
            state.averages = None
        elif state.averages is None or state.averages.with_gram != self._keeps_grams:
            self._remember(0 if order is None else order.n_samples)

    def _remember(self, n_samples: int) -> None:
        """Make room for what is remembered of samples."""
        self.state.averages = Averages(
            n_samples,
            len(self.state.C),
            self.state.D.dtype,
            with_gram=self._keeps_grams,
            folder=self.settings.averages_folder,
        )

    @property
    def _keeps_grams(self) -> bool:
        """Whether a Gram matrix is remembered of every sample."""
        return self.settings.code_estimator == "averaged"

    def step(self, batch: Batch | ObservedBatch, mask: Mask) -> Coded:
        """Absorb one mini-batch, of which only what `mask` shows drives the codes."""
        state = self.state
        self.stopwatch.reset()
        weight = self.settings.schedule.weight(state.n_steps + 1, state.pace)
        coded = samm.step(self, (batch, mask), weight)
        state.n_steps += 1
        self.note_pace(state.n_steps, coded.objective)
        state.n_seen += len(batch)
        self._replace_idle_atoms(coded)
        return coded

    def note_pace(self, t: int, objective: float) -> None:
        """Let the weights follow the objective.

        Not where an iteration updates a part of the dictionary: statistics must then
        last for the many iterations that update all of it.
        """
        if self.settings.updates_all:
            self.state.pace.note(t, objective, self.settings.most_pieces)

    def majorize(self, sample: tuple[Batch | ObservedBatch, Mask]) -> Coded:
        """Compute the codes of a batch from what a mask shows of it."""
        state, settings, clock = self.state, self.settings, self.stopwatch
        with clock.phase("gather"):
            keeps = settings.dict_update != "all"  # B needs it on those features alone
            seen = Observation(*sample, state.D, self.team, self._workspace, keeps)
        with clock.phase("code"):
            if not seen.energy.max() <= np.finfo(state.D.dtype).max:  # or it is NaN
                raise ValueError(
                    f"The samples hold NaN or infinity, or their squares overflow "
                    f"{state.D.dtype}. Clean the data; then scale them, or convert "
                    "them to float64."
                )
            estimate = ESTIMATORS[settings.code_estimator]
            G, beta, energy = estimate(state, seen, settings.schedule.v)
            codes, losses = self._solve(G, beta, energy, seen)
            objective = float(losses.mean())
            if not np.isfinite(objective):
                raise ValueError(
                    f"The codes of this batch are not finite in {state.D.dtype}. "
                    "Scale the data, convert them to float64, or raise alpha."
                )
            seen.impute(codes, state.D)
        clock.move(seen.seconds_gathering, "code", "gather")
        return Coded(seen, Codes.of(codes), objective)

    def _solve(
        self, G: Array, beta: Array, energy: Array, seen: Observation
    ) -> tuple[Array, NDArray[np.float64]]:
        """Return the codes of a batch, and the objective at each."""
        averages, index = self.state.averages, seen.batch.index
        tol = self.settings.code_tol
        if self.problem.penalty.positive:
            tol *= looseness(self.state.n_steps + 1)
        codes = np.zeros_like(beta)
        if averages is not None and index is not None:
            codes[:] = averages.codes(index)
        losses = self.problem.penalty.solve(
            G,
            beta,
            energy,
            codes,
            self.team,
            tol=tol,
            max_sweeps=self.settings.code_max_iter,
        )
        if averages is not None and index is not None:
            averages.keep_codes(index, codes)
        return codes, losses

    def aggregate(self, surrogate: Coded, weight: float) -> None:
        """Mix the batch into C and B."""
        state, codes = self.state, surrogate.codes
        with self.stopwatch.phase("aggregate"):
            self.forget(weight)
            state.C += codes.second_moment(weight, len(codes))
            seen = surrogate.seen
            whole = self.settings.dict_update == "all"
            rule = everywhere if whole else AGGREGATIONS[self.settings.aggregation]
            B, finish = rule(state, seen, codes, weight, len(codes))
            D = state.D if whole else seen.D
            self._aggregated = Aggregated(seen, D, B, finish)

    def forget(self, weight: float) -> None:
        """Let C, and the clock by which B is kept, make room for a new batch."""
        self.state.clock += math.log1p(-min(weight, 1 - 1e-12))
        self.state.C *= 1 - self.state.C.dtype.type(weight)

    def minimize(self) -> None:
        """Update all or a part of the dictionary, and the Gram matrix with it."""
        assert self._aggregated is not None, "aggregate comes before minimize"
        state, now = self.state, self._aggregated
        with self.stopwatch.phase("dictionary"):
            before = None
            if state.G is not None and now.D is not state.D:
                before = now.view.gram
            self._update_atoms(now)
            if state.G is not None:
                after = gram(now.D, self.team)
                state.G = after if before is None else state.G + (after - before)
        with self.stopwatch.phase("aggregate"):
            now.finish()
        if state.G is not None and state.n_steps % REFRESH == REFRESH - 1:
            state.G = gram(state.D, self.team)
        self._aggregated = None

    def _update_atoms(self, now: Aggregated) -> None:
        """Pass over the atoms; final ones are written back during the last pass."""
        state = self.state

        def write(atoms: NDArray[np.intp], start: int, stop: int) -> None:
            now.view.scatter(state.D, now.D, atoms, start, stop)

        for left in reversed(range(self.settings.n_dict_passes)):
            order = state.rng.permutation(len(state.C))
            done = write if left == 0 else None
            DictionaryPass(
                self.problem.constraint,
                now.D,
                now.B,
                state.C,
                state.norms,
                order,
                self.team,
                self._workspace,
                done,
            ).run()

    def _replace_idle_atoms(self, coded: Coded) -> None:
        """Give atoms that no sample uses any more a new start from a sample."""
        batch = coded.seen.batch
        dead = self.idle_atoms(coded.codes.used, len(batch))
        if len(dead):
            self.replace_atoms(dead, batch.copy_rows(self.choose(dead, len(batch))))

    def idle_atoms(self, used: NDArray[np.bool_], n_samples: int) -> NDArray[np.intp]:
        """Note which atoms a batch used; return those that are due for a new start.

        Batches with fewer samples than atoms cannot use all of them: they count less.
        """
        idle = self.state.idle
        idle[:] = np.where(used, 0, idle + 1)
        pieces = self.state.pace.pieces_at(self.state.n_steps)
        batches = max(pieces, -(-len(idle) // max(1, n_samples)))
        return np.flatnonzero(idle >= self.settings.idle_limit * batches)

    def choose(self, dead: NDArray[np.intp], n_samples: int) -> NDArray[np.intp]:
        """Choose a sample of a batch for each of these atoms."""
        more = len(dead) > n_samples
        return np.asarray(self.state.rng.choice(n_samples, len(dead), more))

    def replace_atoms(self, dead: NDArray[np.intp], samples: Array) -> Array:
        """Let samples, scaled into the ball, be the atoms `dead`; returns them."""
        state = self.state
        atoms = self.problem.constraint.rescale(samples)
        state.D[dead] = atoms
        state.norms[dead] = self.problem.constraint.norms(atoms)
        state.B[dead] = 0
        state.C[dead, :] = 0
        state.C[:, dead] = 0
        state.idle[dead] = 0
        state.n_replaced += len(dead)
        if state.averages is not None:  # they speak of atoms that are gone
            state.averages.forget()
        if state.G is not None:
            rows = atoms @ state.D.T
            state.G[dead, :] = rows
            state.G[:, dead] = rows.T
        return atoms
