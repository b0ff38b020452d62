"""A run on several workers: rounds of tasks and answers, and the dictionary updates.

An exchange: every lane gets the rows of D that changed, codes its next batch, and
answers with the observed rows of its share of B, with C and a few counters. The client
adds them up, makes the pass over the atoms and has the only copy of the truth.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.choices import Choices
from somf.distributed.cluster import Cluster, Seat
from somf.distributed.crew import Crew
from somf.distributed.ledger import Answers, Coordinator, Ledger
from somf.distributed.messages import Features, Preview, Task, Visit
from somf.distributed.parts import PartedSource
from somf.sampling import Draw
from somf.solver.run import Progress, Reader, Report, Run, StopRule, WorkerProgress
from somf.solver.state import State
from somf.solver.trace import Trace
from somf.sources.base import Requirements, Source

FEWEST = 8  # exchanges of a head start before its end
FLUSH = 4  # cycles of masks after which workers hand over all of their share of B
SOON = 5.0  # seconds that somebody who wants to stop can wait for that


class DistributedRun(Run):
    """A `Run` whose samples are coded by the workers of a Dask cluster.

    Parameters
    ----------
    local_steps : int
        Batches that a worker codes between two exchanges.
    max_staleness : int
        Exchanges that the others make without a worker that is slow.
    """

    solver: Coordinator

    def __init__(
        self,
        solver: Coordinator,
        source: Source,
        cluster: Cluster,
        choices: Choices,
        wanted: Requirements,
        rule: StopRule,
        trace: Trace,
        validate: Any = None,
        progress: Progress | None = None,
        *,
        n_threads: int | None = None,
        local_steps: int = 1,
        max_staleness: int = 4,
    ) -> None:
        super().__init__(
            solver, Reader(source, wanted), rule, trace, validate, progress
        )
        assert isinstance(source, PartedSource), "`Cluster.share` makes them"
        self.ledger = Ledger(solver)
        self.crew = Crew(
            cluster, source, self.ledger, choices, wanted, n_threads, max_staleness
        )
        self.local_steps = local_steps
        if choices.head_start:
            solver.head_start = FEWEST * local_steps
        self.settled = True
        self._since_flush = 0
        self._memory = solver.state.averages  # of samples, until workers have it
        solver.state.averages = None

    @property
    def state(self) -> State:
        """The state of the run."""
        return self.solver.state

    @property
    def workers(self) -> list[WorkerProgress]:
        """How far each worker has come."""
        return self.crew.progress

    # -- rounds ----------------------------------------------------------------------

    def __iter__(self) -> Generator[Report]:
        if self.stop_reason:
            return
        self._take_seats()
        try:
            groups = self._groups()
            group: list[Draw] = next(groups, [])
            following: list[Draw]
            while group:
                following = next(groups, [])
                reports = self._exchange(group, following)
                if self._must_settle():
                    self._settle_on_the_clock()
                if group[-1].ends_epoch and not self.stop_reason and self._reseat():
                    groups = self._groups()
                    following = next(groups, [])
                yield from reports
                if self.stop_reason:
                    self.settle()
                    return
                group = following
        finally:
            self.crew.disband()

    def _take_seats(self) -> None:
        memory, self._memory = self._memory, None  # workers have it from now on
        self.crew.take_seats(memory)

    def _groups(self) -> Iterator[list[Draw]]:
        """Yield the draws of each exchange to come; none goes beyond an epoch."""
        group: list[Draw] = []
        for draw in self._draws():
            group.append(draw)
            if draw.ends_epoch or len(group) == self.local_steps:
                yield group
                group = []
        if group:
            yield group

    def _exchange(self, group: list[Draw], following: list[Draw]) -> list[Report]:
        """Let all workers make the iterations of some draws, and learn from it."""
        start = time.perf_counter()
        state, solver, ledger = self.state, self.solver, self.ledger
        ledger.number += 1
        mask = solver.exchanged(group[-1].mask)
        answers, late, weights = self._ask(group, following, mask.observes_all)
        coded = time.perf_counter() - start
        for seat, answer in late:
            ledger.absorb_late(seat, answer)
        for weight in weights:
            solver.forget(weight)
        view = ledger.absorb(mask, answers)
        ledger.note_change(view, self._replace_idle_atoms(answers))
        ledger.forget_changes(self.crew.seats)
        state.n_steps += len(group)
        state.n_seen += sum(len(draw.rows) for draw in group)
        self.settled = solver.hears_all or self.crew.has_told_all
        self._since_flush = 0 if self.settled else self._since_flush + 1
        seconds = {
            "code": coded,
            "dictionary": time.perf_counter() - start - coded,
        }
        return [
            self._record(draw, i, len(group), answers, seconds)
            for i, draw in enumerate(group)
        ]

    def _ask(
        self, group: list[Draw], following: list[Draw], whole: bool
    ) -> tuple[Answers, Answers, list[float]]:
        """Let workers code their samples; returns answers, late ones, and weights.

        `whole` is whether they tell B on all features.
        """
        state, crew = self.state, self.crew
        schedule = self.solver.settings.schedule
        steps = range(state.n_steps + 1, state.n_steps + 1 + len(group))
        weights = [schedule.weight(t, state.pace) for t in steps]
        if not crew.have_samples(group):  # only those that are slow have
            self._absorb_all_late()
        for seat in crew.free:
            task = self._task(seat, group, weights, whole)
            if following and crew.source.is_read:
                task = replace(task, ahead=self._preview(seat, following[0]))
            crew.send(seat, task)
            seat.known = self.ledger.number - 1
        return *crew.collect(), weights

    def _task(
        self, seat: Seat, group: list[Draw], weights: list[float], whole: bool
    ) -> Task:
        visits = []
        now = self.state.clock
        for i, (draw, weight) in enumerate(zip(group, weights, strict=True)):
            if (
                i == 0 and not self.solver.masked and seat.clock != now
            ):  # it missed some
                faded = now + math.log1p(-min(weight, 1 - 1e-12)) - seat.clock
                weight = -math.expm1(faded)
            visits.append(
                Visit(
                    seat.rows_in(draw) - seat.setup.first_row,
                    Features.of(draw.mask),
                    weight,
                    len(draw.rows),
                    self.state.n_steps + i,
                )
            )
        return Task(self.ledger.number, self.ledger.news(seat), tuple(visits), whole)

    def _preview(self, seat: Seat, draw: Draw) -> Preview:
        rows = seat.rows_in(draw) - seat.setup.first_row
        partly = self.crew.choices.reads_observed
        return Preview(rows, Features.of(draw.mask) if partly else None)

    def _record(
        self,
        draw: Draw,
        i: int,
        n_parts: int,
        answers: Answers,
        seconds: dict[str, float],
    ) -> Report:
        """Add a row to the trace for one of the iterations of an exchange."""
        state = self.state
        n_coded = sum(seat.n_rows_in(i) for seat, _ in answers)
        losses = sum(answer.losses[i] for _, answer in answers)
        n_nonzero = sum(answer.n_nonzero[i] for _, answer in answers)
        objective = losses / max(1, n_coded)
        step = state.n_steps - n_parts + i + 1
        if n_coded:
            self.solver.note_pace(step, objective)
        self.trace.append(
            step=step,
            time=self.trace.last("time") + sum(seconds.values()) / n_parts,
            objective=objective,
            density=n_nonzero / max(1, n_coded * len(state.C)),
            reduction=draw.mask.scale,
            replaced_atoms=state.n_replaced,
            **{f"seconds_{name}": s / n_parts for name, s in seconds.items()},
        )
        return self._note(draw, objective)

    def _replace_idle_atoms(self, answers: Answers) -> NDArray[np.intp]:
        """Give atoms that nobody uses a new start from a sample of the batch."""
        solver = self.solver
        sizes = [seat.n_rows_in() for seat, _ in answers]
        ends = np.cumsum(sizes)
        used = np.any([answer.used for _, answer in answers], axis=0)
        dead = solver.idle_atoms(used, int(ends[-1]))
        if len(dead) == 0 or ends[-1] == 0:  # they wait for a batch
            return np.empty(0, np.intp)
        chosen = solver.choose(dead, int(ends[-1]))
        samples = np.empty((len(dead), self.state.D.shape[1]), self.state.D.dtype)
        for (seat, _), start, stop in zip(answers, ends - sizes, ends, strict=True):
            here = np.flatnonzero((chosen >= start) & (chosen < stop))
            if len(here):
                samples[here] = self.crew.samples(seat, chosen[here] - start)
        solver.replace_atoms(dead, samples)
        return dead

    def _reseat(self) -> bool:
        """Share the rows out anew if workers have come, or have too much to do."""
        if not self.crew.is_ill_seated():
            return False
        self.settle()
        self._memory = self.crew.remembered()
        self.crew.leave_seats()
        self._take_seats()
        return True

    # -- what is saved ---------------------------------------------------------------

    @contextmanager
    def complete(self) -> Iterator[None]:
        """Let the state hold all that a checkpoint needs, for as long as that takes."""
        self.state.averages = self.crew.remembered()
        try:
            yield
        finally:
            self.state.averages = None

    def _must_settle(self) -> bool:
        if self.solver.hears_all:
            return False
        return bool(self.stop_reason) or self._since_flush >= self._flush_every

    @property
    def _flush_every(self) -> int:
        reduction = max(1, math.ceil(self.solver.settings.schedule.reduction))
        return FLUSH * reduction

    def _settle_on_the_clock(self) -> None:
        """Settle, in the time of the last iteration."""
        start = time.perf_counter()
        self.settle()
        seconds = time.perf_counter() - start
        self.trace.amend(
            time=self.trace.last("time") + seconds,
            seconds_code=self.trace.last("seconds_code") + seconds,
        )

    def settle(self) -> None:
        """Let the state know all of B: what is saved then is complete."""
        self._absorb_all_late()
        if not (self.solver.hears_all or self.settled):
            self.ledger.take_shares(self.crew.hand_over())
            self._since_flush = 0
        self.settled = True

    def hurry(self) -> None:
        """Settle now, unless it is due soon and costs a resumed run no rounding."""
        if self.settled:
            return
        left = self._flush_every - self._since_flush
        if left * self.crew.usual > SOON:
            self.settle()

    def _absorb_all_late(self) -> None:
        for seat, answer in self.crew.await_everybody():
            self.ledger.absorb_late(seat, answer)
