"""What the client knows: statistics of all workers, and what each must still hear.

B on a feature is told when the feature is exchanged; until it is told again, what is
known of it fades as all statistics do, by the clock of the run.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.distributed.cluster import Seat
from somf.distributed.messages import Answer, News, Visit
from somf.kernels.gather import mix_features, scatter_features
from somf.sampling import Mask
from somf.solver.aggregation import mix, visit
from somf.solver.coding import REMEMBERS_SAMPLES
from somf.solver.iteration import Aggregated, Factorization
from somf.solver.observation import View
from somf.solver.schedule import SETTLED_U
from somf.solver.state import State
from somf.solver.workspace import Workspace

Array = NDArray[Any]
logger = logging.getLogger("somf")
Answers = list[tuple[Seat, Answer]]


class Coordinator(Factorization):
    """The state of a run, without memory of samples: workers have that.

    With a head start, exchanges are of all features until the objective has settled,
    whatever `settings` say: features that wait for their turn would hold up the others.
    """

    head_start = 0  # iterations that it lasts at least; 0 if there is none

    def _remember(self, n_samples: int) -> None:
        self.state.averages = None

    def remember_everything(self) -> None:
        """Make room for what all workers remember."""
        assert self.state.sampler.order is not None
        super()._remember(self.state.sampler.order.n_samples)

    @property
    def remembers(self) -> bool:
        """Whether codes take what is remembered of samples."""
        return self.settings.code_estimator in REMEMBERS_SAMPLES

    @property
    def masked(self) -> bool:
        """Whether B is a mean of what was observed, which the client keeps alone."""
        return self.settings.aggregation == "masked"

    @property
    def hears_all(self) -> bool:
        """Whether workers tell all that they know in every exchange."""
        return self.masked or self.settings.updates_all

    def exchanged(self, mask: Mask) -> Mask:
        """Return the features of the next exchange, whose last iteration has a mask."""
        if self.settings.updates_all or self.has_head_start(self.state.n_steps):
            return Mask.everything(mask.n_features)
        return mask

    def has_head_start(self, n_steps: int) -> bool:
        """Whether it is not over yet after some iterations."""
        if not self.head_start:
            return False
        return n_steps < self.head_start or not self.state.pace.has_settled(n_steps)

    def note_pace(self, t: int, objective: float) -> None:
        """Let the weights follow the objective, where all features are updated."""
        pace = self.state.pace
        if not self.has_head_start(t - 1):
            super().note_pace(t, objective)
            return
        pace.note(t, objective, self.settings.most_pieces)
        if not self.has_head_start(t):
            pace.exponent = SETTLED_U  # statistics have to last from now on
            logger.info(
                "All features were exchanged for %d iterations; from now on it is the "
                "observed ones.",
                t,
            )

    def absorb(self, view: View, B: Array) -> None:
        """Update the dictionary, given B on the features in view."""
        self._aggregated = Aggregated(view, view.D, B, lambda: None)
        self.minimize()


@dataclass(frozen=True)
class Change:
    """What an exchange changed in the dictionary."""

    number: int
    mask: Mask
    replaced: NDArray[np.intp]
    clock: float  # when it was over


class Ledger:
    """Puts answers together, and keeps what slow workers have missed."""

    def __init__(self, solver: Coordinator) -> None:
        self.solver = solver
        self.number = 0  # of the last exchange
        self._changes: deque[Change] = deque()
        self._latest: tuple[int, Array] | None = None  # rows of D of the last exchange
        self._clocks = np.full(solver.state.D.shape[1], solver.state.clock)
        self._workspace = Workspace()

    @property
    def state(self) -> State:
        """The state of the run."""
        return self.solver.state

    # -- what workers must hear ------------------------------------------------------

    def news(self, seat: Seat) -> News | None:
        """Return what has changed since a seat last heard of the dictionary."""
        missed = [c for c in self._changes if c.number > seat.known]
        if not missed:
            return None
        G = None if self.state.G is None else self.state.G.copy()
        replaced = np.unique(np.concatenate([c.replaced for c in missed]))
        atoms = self.state.D[replaced] if len(replaced) else None
        assert self._latest is not None
        if any(c.mask.observes_all for c in missed):
            rows = self._latest[1]  # of all features, if the last exchange had all
            if rows.shape != self.state.D.shape:
                rows = self.state.D.copy()
            return News(None, rows, G, replaced, atoms)
        if len(missed) == 1 and self._latest[0] == missed[0].number:
            features = missed[0].mask.features
            rows = self._latest[1]
        else:
            features = np.unique(np.concatenate([c.mask.features for c in missed]))
            rows = self.state.D[:, features]
        return News(features.astype(np.int32), rows, G, replaced, atoms)

    def everything(self) -> News:
        """Return the dictionary as it is now."""
        return News(None, self.state.D, self.state.G)

    def note_change(self, view: View, replaced: NDArray[np.intp]) -> None:
        """Keep what the exchange has changed for those who must hear of it."""
        state = self.state
        # A copy: it may still be on its way to a slow worker when D changes again.
        if view.mask.observes_all:
            rows = state.D.copy()
        elif len(replaced):  # they travel by themselves, as a whole
            rows = state.D[:, view.mask.features]
        else:
            rows = view.D.copy()
        self._latest = self.number, rows
        change = Change(self.number, view.mask, replaced, state.clock)
        self._changes.append(change)

    def forget_changes(self, seats: list[Seat]) -> None:
        """Keep what the slowest of some seats may have missed, and no more."""
        oldest = min((seat.known for seat in seats), default=self.number)
        while self._changes and self._changes[0].number <= oldest - 1:
            self._changes.popleft()

    def begin_anew(self) -> None:
        """Forget all changes: every worker is about to get the whole dictionary."""
        self._changes.clear()

    def _replaced_since(self, number: int) -> NDArray[np.intp]:
        """Return the atoms that were replaced after an exchange."""
        since = [c.replaced for c in self._changes if c.number > number]
        return np.unique(np.concatenate([np.empty(0, np.intp), *since]))

    # -- what workers tell -----------------------------------------------------------

    def absorb(self, mask: Mask, answers: Answers) -> View:
        """Put answers on some features together, and update the dictionary there.

        Returns what was seen.
        """
        state, solver = self.state, self.solver
        gain = state.C.dtype.type(self._gain(answers))
        for seat, answer in answers:
            state.C += answer.C * gain
            seat.clock = state.clock
        view = View(mask, state.D, solver.team, self._workspace)
        solver.absorb(view, self._merge(view, answers))
        return view

    def _merge(self, view: View, answers: Answers) -> Array:
        """Return B on the features in view, of which the state now knows all."""
        state, mask = self.state, view.mask
        parts = [answer.B for _, answer in answers if answer.B is not None]
        if _alone(answers) and not self.solver.masked:
            self._clocks[mask.features] = state.clock
            if mask.observes_all:
                state.B[:] = parts[0]
                return np.asarray(state.B)
            scatter_features(state.B, np.arange(len(state.B)), mask.features, parts[0])
            return np.asarray(parts[0])
        if not parts:  # only workers that are slow had samples in this exchange
            parts = [np.zeros((len(state.B), len(mask.features)), state.B.dtype)]
        total = np.array(parts[0]) if len(parts) > 1 else parts[0]
        for more in parts[1:]:
            total += more
        if self.solver.masked:
            keep = visit(state, mask)
            gain = (1 - keep) * keep.dtype.type(self._gain(answers))
        else:
            told = self._clocks[mask.features]
            keep = np.exp(state.clock - told).astype(state.B.dtype)
            gain = np.ones_like(keep)
            self._clocks[mask.features] = state.clock
        merged = mix(mix_features, state.B, view, total, keep, gain)
        return state.B if mask.observes_all else merged

    def _gain(self, answers: Answers) -> float:
        """Samples of an iteration over those of the answers, where means are mixed.

        Where lanes keep their share of B, those that are late make up for it.
        """
        if not self.solver.masked:
            return 1.0
        tasks = [seat.task for seat, _ in answers]
        visits = [task.visits[-1] for task in tasks if task is not None]
        return visits[0].total / sum(len(visit.rows) for visit in visits)

    def absorb_late(self, seat: Seat, answer: Answer) -> None:
        """Add the answer to an exchange that went on without it."""
        state = self.state
        assert seat.task is not None
        change = next(c for c in self._changes if c.number == answer.number)
        C = answer.C.copy()
        gone = self._replaced_since(answer.number - 1)  # it speaks of atoms before them
        C[gone], C[:, gone] = 0, 0
        if self.solver.masked:
            self._mix_late(seat.task.visits[-1], answer.B, C, gone)
            return
        state.C += C * state.C.dtype.type(math.exp(state.clock - change.clock))
        seat.clock = change.clock
        if answer.B is not None:
            features = change.mask.features
            keep = np.exp(self._clocks[features] - change.clock)
            late = answer.B * keep.astype(state.B.dtype)
            late[gone] = 0
            state.B[:, features] += late

    def _mix_late(
        self, visit: Visit, B: Array | None, C: Array, gone: NDArray[np.intp]
    ) -> None:
        """Let a batch have its share of means that were made without it."""
        if B is None:
            return
        state, features = self.state, visit.features.mask().features
        share = state.C.dtype.type(visit.weight * len(visit.rows) / visit.total)
        state.C *= 1 - share
        state.C += C
        kept = np.ones(len(B), bool)
        kept[gone] = False
        mean = B[kept] * B.dtype.type(visit.total / len(visit.rows))
        here = np.ix_(kept, features)
        state.B[here] += share * (mean - state.B[here])

    # -- what workers keep -----------------------------------------------------------

    def known_B(self) -> Array:
        """Return B as far as it was told, faded to now."""
        fade = np.exp(self.state.clock - self._clocks)
        return np.asarray(self.state.B * fade.astype(self.state.B.dtype))

    def take_shares(self, shares: Iterable[tuple[Seat, Array]]) -> None:
        """Add what all lanes have kept of B, of which nothing is untold then."""
        state = self.state
        state.B *= np.exp(state.clock - self._clocks).astype(state.B.dtype)
        self._clocks[:] = state.clock
        for seat, share in shares:
            fade = state.B.dtype.type(math.exp(state.clock - seat.clock))
            unheard = self._replaced_since(seat.known)
            for j in np.setdiff1d(np.arange(len(share)), unheard):
                if seat.setup.alone:  # it has all of B, not a share
                    state.B[j] = share[j] * fade
                else:
                    state.B[j] += share[j] * fade
            seat.clock = state.clock
            seat.log.clear()


def _alone(answers: Answers) -> bool:
    """Whether one lane has all samples, and so all of B."""
    return any(seat.setup.alone for seat, _ in answers)
