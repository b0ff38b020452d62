"""A run on several workers: rounds of tasks and answers, and the dictionary updates.

An exchange: every lane gets the rows of D that changed, codes its next batch, and
answers with the observed rows of its share of B, with C and a few counters. The client
adds them up, makes the pass over the atoms and has the only copy of the truth.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.choices import Choices
from somf.distributed.cluster import (
    CHECK,
    Cluster,
    Seat,
    WorkerLostError,
    unwrap,
)
from somf.distributed.messages import (
    Answer,
    Features,
    Memory,
    News,
    Setup,
    Task,
    Visit,
)
from somf.distributed.parts import PartedSource, joined, share_out
from somf.kernels.gather import mix_features, scatter_features
from somf.sampling import Draw, Mask, StratifiedOrder
from somf.solver.aggregation import mix, visit
from somf.solver.averages import Averages
from somf.solver.coding import REMEMBERS_SAMPLES
from somf.solver.iteration import Aggregated, Factorization
from somf.solver.observation import View
from somf.solver.run import (
    Progress,
    Reader,
    Report,
    Run,
    StopRule,
    WorkerProgress,
)
from somf.solver.state import State
from somf.solver.trace import Trace
from somf.solver.workspace import Workspace
from somf.sources.base import Indices, Requirements, Source

Array = NDArray[Any]
logger = logging.getLogger("somf")

FLUSH = 4  # cycles of masks after which workers hand over all of their share of B
SLOW = 4.0  # times the usual seconds of an answer after which others go on
SLOW_SECONDS = 1.0  # but not before
MOST_LOSSES = 5  # workers that a seat may lose without an answer


@dataclass(frozen=True)
class Change:
    """What an exchange changed in the dictionary."""

    number: int
    mask: Mask
    replaced: NDArray[np.intp]
    clock: float  # when it was over


class Coordinator(Factorization):
    """The state of a run, without memory of samples: workers have that."""

    def _remember(self, n_samples: int) -> None:
        self.state.averages = None

    def remember_everything(self) -> None:
        """Make room for what all workers remember."""
        assert self.state.sampler.order is not None
        super()._remember(self.state.sampler.order.n_samples)

    def absorb(self, view: View, B: Array) -> None:
        """Update the dictionary, given B on the features in view."""
        whole = self.settings.dict_update == "all"
        D = self.state.D if whole else view.D
        self._aggregated = Aggregated(view, D, B, lambda: None)
        self.minimize()


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
        self.source = source
        self.cluster = cluster
        self.choices = choices
        self.wanted = wanted
        self.n_threads = cluster.n_threads or n_threads
        self.local_steps = local_steps
        self.max_staleness = max_staleness
        self.seats: list[Seat] = []
        self.settled = True
        self._number = 0  # of the last exchange
        self._since_flush = 0
        self._changes: deque[Change] = deque()
        self._latest: tuple[int, Array] | None = None  # rows of D of the last exchange
        self._feature_clock = np.full(source.shape[1], solver.state.clock)
        self._usual = math.inf  # seconds of an answer
        self._workspace = Workspace()
        self._memory = solver.state.averages  # of samples, until workers have it
        solver.state.averages = None

    # -- rounds ----------------------------------------------------------------------

    def __iter__(self) -> Generator[Report]:
        if self.stop_reason:
            return
        self._seat_everyone()
        try:
            draws = self._draws()
            while group := self._next_group(draws):
                reports = self._exchange(group)
                if self._must_settle():
                    self._settle_on_the_clock()
                if group[-1].ends_epoch and not self.stop_reason and self._welcome():
                    draws = self._draws()
                yield from reports
                if self.stop_reason:
                    self.settle()
                    return
        finally:
            for seat in self.seats:
                if seat.actor is not None and seat.future is None:
                    self.cluster.release(seat)
                self.cluster.abandon(seat)

    def _next_group(self, draws: Iterator[Draw]) -> list[Draw]:
        """Return the draws of the next exchange; none goes beyond an epoch."""
        group: list[Draw] = []
        for draw in draws:
            group.append(draw)
            if draw.ends_epoch or len(group) == self.local_steps:
                break
        return group

    def _exchange(self, group: list[Draw]) -> list[Report]:
        """Let all workers make the iterations of some draws, and learn from it."""
        start = time.perf_counter()
        state, solver = self.state, self.solver
        self._number += 1
        before = state.clock
        first = state.n_steps
        schedule = solver.settings.schedule
        weights = [schedule.weight(first + 1 + i) for i in range(len(group))]
        if not self._have_samples(group):  # only those that are slow have
            self._absorb_all_late()
        for seat in self.seats:
            if seat.future is None:
                self._send(seat, self._task(seat, group, weights, before))
                seat.known = self._number - 1
        answers, late = self._collect()
        coded = time.perf_counter() - start
        for seat, answer in late:
            self._absorb_late(seat, answer)
        for weight in weights:
            solver.forget(weight)
        self._absorb(group[-1].mask, answers)
        state.n_steps += len(group)
        state.n_seen += sum(len(draw.rows) for draw in group)
        self.settled = self._keeps_nothing
        self._since_flush += 1
        seconds = {
            "code": coded,
            "dictionary": time.perf_counter() - start - coded,
        }
        return [
            self._record(draw, i, len(group), answers, seconds)
            for i, draw in enumerate(group)
        ]

    def _record(
        self,
        draw: Draw,
        i: int,
        n_parts: int,
        answers: dict[int, Answer],
        seconds: dict[str, float],
    ) -> Report:
        """Add a row to the trace for one of the iterations of an exchange."""
        state = self.state
        seats = [self.seats[lane] for lane in answers]
        n_coded = sum(_n_rows(seat, i) for seat in seats)
        losses = sum(answer.losses[i] for answer in answers.values())
        n_nonzero = sum(answer.n_nonzero[i] for answer in answers.values())
        objective = losses / max(1, n_coded)
        self.trace.append(
            step=state.n_steps - n_parts + i + 1,
            time=self.trace.last("time") + sum(seconds.values()) / n_parts,
            objective=objective,
            density=n_nonzero / max(1, n_coded * len(state.C)),
            reduction=draw.mask.scale,
            replaced_atoms=state.n_replaced,
            **{f"seconds_{name}": s / n_parts for name, s in seconds.items()},
        )
        return self._note(draw, objective)

    @property
    def state(self) -> State:
        """The state of the run."""
        return self.solver.state

    @property
    def alone(self) -> bool:
        """Whether one lane has all samples, and so all of B."""
        return len(self.seats) == 1

    @property
    def workers(self) -> list[WorkerProgress]:
        """How far each worker has come; one that took over rows is there twice."""
        number = self._number
        return [
            WorkerProgress(
                address=seat.address,
                n_rows=seat.setup.n_rows,
                n_samples=seat.n_samples,
                behind=number - seat.task.number if seat.future and seat.task else 0,
            )
            for seat in self.seats
        ]

    @property
    def _masked(self) -> bool:
        return self.solver.settings.aggregation == "masked"

    @property
    def _keeps_nothing(self) -> bool:
        """Whether workers tell all that they know in every exchange."""
        settings = self.solver.settings
        in_view = settings.dict_update == "all" or settings.schedule.reduction <= 1
        return self._masked or in_view

    # -- tasks -----------------------------------------------------------------------

    def _task(
        self, seat: Seat, group: list[Draw], weights: list[float], clock: float
    ) -> Task:
        visits = []
        for i, (draw, weight) in enumerate(zip(group, weights, strict=True)):
            rows = _rows(seat, draw)
            if i == 0 and not self._masked and seat.clock != clock:  # it missed some
                faded = clock + math.log1p(-min(weight, 1 - 1e-12)) - seat.clock
                weight = -math.expm1(faded)
            visits.append(
                Visit(
                    rows - seat.setup.first_row,
                    Features.of(draw.mask),
                    weight,
                    len(draw.rows),
                    self.state.n_steps + i,
                )
            )
        return Task(self._number, self._news(seat), tuple(visits))

    def _news(self, seat: Seat) -> News | None:
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

    def _send(self, seat: Seat, task: Task) -> None:
        try:
            self.cluster.send(seat, task)
        except WorkerLostError:
            self._take_over(seat, task)

    def _have_samples(self, group: list[Draw]) -> bool:
        """Whether workers that are free have samples in all iterations."""
        free = [seat for seat in self.seats if seat.future is None]
        return all(any(len(_rows(seat, draw)) for seat in free) for draw in group)

    # -- answers ---------------------------------------------------------------------

    def _collect(self) -> tuple[dict[int, Answer], list[tuple[Seat, Answer]]]:
        """Wait for the answers of this exchange, but not for ever for slow workers."""
        answers: dict[int, Answer] = {}
        late: list[tuple[Seat, Answer]] = []
        waiting = {i: seat for i, seat in enumerate(self.seats) if seat.future}
        checked = time.monotonic()
        while waiting:
            for i, seat in list(waiting.items()):
                if not seat.future.done():
                    continue
                answer = self._answer(seat)
                if answer is None:  # the worker is gone, and another one has the task
                    continue
                del waiting[i]
                if answer.number == self._number:
                    answers[i] = answer
                else:
                    late.append((seat, answer))
            if not waiting or (self._is_enough(answers) and self._may_go_on(waiting)):
                break
            if self.cluster.hears(*(seat.future for seat in waiting.values())):
                continue
            ask = time.monotonic() - checked > CHECK
            self._look_for_lost(list(waiting.values()), ask)
            checked = time.monotonic() if ask else checked
        return dict(sorted(answers.items())), late

    def _answer(self, seat: Seat) -> Answer | None:
        """Take the answer of a seat; None if its worker is gone."""
        try:
            answer: Answer = unwrap(self.cluster.end(seat, seat.future))
        except WorkerLostError:
            assert seat.task is not None
            self._take_over(seat, seat.task)
            return None
        assert seat.task is not None
        seat.future = None
        if seat.answered:
            usual = self._usual if math.isfinite(self._usual) else seat.waited
            self._usual = 0.9 * usual + 0.1 * seat.waited
        seat.answered += 1
        seat.n_losses = 0
        seat.n_samples += sum(len(visit.rows) for visit in seat.task.visits)
        if not self._keeps_nothing:
            seat.log.append(_again(seat.task))
        return answer

    def _is_enough(self, answers: dict[int, Answer]) -> bool:
        """Whether every iteration has samples of those that have answered."""
        seats = [self.seats[lane] for lane in answers]
        tasks = [seat.task for seat in seats if seat.task is not None]
        visits = zip(*(task.visits for task in tasks), strict=True)
        counts = [sum(len(visit.rows) for visit in group) for group in visits]
        return len(counts) > 0 and min(counts) > 0

    def _may_go_on(self, waiting: dict[int, Seat]) -> bool:
        """Whether all that are waited for are slow, but not too far behind."""
        limit = max(SLOW_SECONDS, SLOW * self._usual)
        for seat in waiting.values():
            assert seat.task is not None
            behind = self._number - seat.task.number
            if seat.answered == 0 or seat.waited < limit:
                return False
            if behind >= self.max_staleness:
                return False
        for seat in waiting.values():
            assert seat.task is not None
            if seat.task.number == self._number:
                logger.warning(
                    "Worker %s is slow (%.1f s, usually %.1f s): the others go on "
                    "for up to %d exchanges without it.",
                    seat.address,
                    seat.waited,
                    self._usual,
                    self.max_staleness,
                )
        return True

    def _absorb(self, mask: Mask, answers: dict[int, Answer]) -> None:
        """Put the answers together, and update the dictionary."""
        state, solver = self.state, self.solver
        gain = state.C.dtype.type(self._gain(answers))
        for lane, answer in answers.items():
            state.C += answer.C * gain
            self.seats[lane].clock = state.clock
        whole = solver.settings.dict_update == "all" or mask.observes_all
        if whole:
            n_features = state.D.shape[1]
            mask = Mask(np.arange(n_features), n_features, 1.0)
        view = View(mask, state.D, solver.team, self._workspace)
        B = self._merge(view, answers)
        solver.absorb(view, B)
        replaced = self._replace_idle_atoms(answers)
        # A copy: it may still be on its way to a slow worker when D changes again.
        rows = state.D if whole else view.D
        if len(replaced) and not whole:  # they travel by themselves, as a whole
            rows = state.D[:, mask.features]
        self._latest = self._number, rows.copy()
        self._changes.append(Change(self._number, mask, replaced, state.clock))
        self._forget_changes()

    def _merge(self, view: View, answers: dict[int, Answer]) -> Array:
        """Return B on the features in view, of which the state now knows all."""
        state, mask = self.state, view.mask
        parts = [answer.B for answer in answers.values() if answer.B is not None]
        if self.alone and not self._masked:
            self._feature_clock[mask.features] = state.clock
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
        if self._masked:
            keep = visit(state, mask)
            gain = (1 - keep) * keep.dtype.type(self._gain(answers))
        else:
            clock = self._feature_clock
            keep = np.exp(state.clock - clock[mask.features]).astype(state.B.dtype)
            gain = np.ones_like(keep)
            clock[mask.features] = state.clock
        merged = mix(mix_features, state.B, view, total, keep, gain)
        return state.B if mask.observes_all else merged

    def _gain(self, answers: dict[int, Answer]) -> float:
        """Samples of an iteration over those of the answers, where means are mixed.

        Where lanes keep their share of B, those that are late make up for it.
        """
        if not self._masked:
            return 1.0
        tasks = [self.seats[lane].task for lane in answers]
        visits = [task.visits[-1] for task in tasks if task is not None]
        return visits[0].total / sum(len(visit.rows) for visit in visits)

    def _absorb_late(self, seat: Seat, answer: Answer) -> None:
        """Add the answer to an exchange that went on without it."""
        state = self.state
        assert seat.task is not None
        change = next(c for c in self._changes if c.number == answer.number)
        C = answer.C.copy()
        gone = self._replaced_since(answer.number - 1)  # it speaks of atoms before them
        C[gone], C[:, gone] = 0, 0
        if self._masked:
            self._mix_late(seat.task.visits[-1], answer.B, C, gone)
            return
        state.C += C * state.C.dtype.type(math.exp(state.clock - change.clock))
        seat.clock = change.clock
        if answer.B is not None:
            features = change.mask.features
            keep = np.exp(self._feature_clock[features] - change.clock)
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

    def _replace_idle_atoms(self, answers: dict[int, Answer]) -> NDArray[np.intp]:
        """Give atoms that nobody uses a new start from a sample of the batch."""
        solver = self.solver
        used = np.any([answer.used for answer in answers.values()], axis=0)
        dead = solver.idle_atoms(used)
        if len(dead) == 0:
            return dead
        seats = [self.seats[lane] for lane in answers]
        sizes = [_n_rows(seat) for seat in seats]
        ends = np.cumsum(sizes)
        if ends[-1] == 0:  # they wait for a batch
            return np.empty(0, np.intp)
        chosen = solver.choose(dead, int(ends[-1]))
        samples = np.empty((len(dead), self.state.D.shape[1]), self.state.D.dtype)
        for i, seat in enumerate(seats):
            here = np.flatnonzero((chosen >= ends[i] - sizes[i]) & (chosen < ends[i]))
            if len(here):
                which = chosen[here] - (ends[i] - sizes[i])
                samples[here] = self._samples(seat, which)
        solver.replace_atoms(dead, samples)
        return dead

    def _samples(self, seat: Seat, which: NDArray[np.intp]) -> Array:
        """Return samples of the last batch of a seat."""
        try:
            return np.asarray(unwrap(self.cluster.call(seat, "samples", which)))
        except WorkerLostError:  # the client can read some itself
            assert seat.task is not None
            rows = seat.setup.first_row + seat.task.visits[-1].rows[which]
            unique, inverse = np.unique(rows, return_inverse=True)
            samples = self.source.read(unique)[inverse.ravel()]
            samples[np.isnan(samples)] = 0
            return samples

    def _replaced_since(self, number: int) -> NDArray[np.intp]:
        """Return the atoms that were replaced after an exchange."""
        since = [c.replaced for c in self._changes if c.number > number]
        return np.unique(np.concatenate([np.empty(0, np.intp), *since]))

    def _forget_changes(self) -> None:
        """Keep what a slow worker may have missed, and no more."""
        oldest = min((seat.known for seat in self.seats), default=self._number)
        while self._changes and self._changes[0].number <= oldest - 1:
            self._changes.popleft()

    # -- workers that come and go ----------------------------------------------------

    def _seat_everyone(self) -> None:
        """Share the rows out among the workers, and let them begin."""
        workers = self.cluster.wait_for_workers()
        parts = share_out(self.source.pieces, len(workers))
        if len(parts) < len(workers):
            logger.warning(
                "X has %d pieces for %d workers: %d of them have nothing to do. "
                "Rechunk it into more.",
                len(parts),
                len(workers),
                len(workers) - len(parts),
            )
        shuffle = self._order_samples(len(parts))
        first = 0
        self.seats = []
        for pieces in parts:
            n_rows = sum(len(piece) for piece in pieces)
            setup = Setup(
                problem=self.solver.problem,
                settings=self.solver.settings,
                choices=self.choices,
                wanted=self.wanted,
                dtype=self.source.dtype,
                shuffle=shuffle,
                first_row=first,
                n_rows=n_rows,
                n_threads=self.n_threads,
                alone=len(parts) == 1,
            )
            self.seats.append(Seat(setup, joined(pieces)))
            first += n_rows
        logger.info(
            "%d workers share %d samples. Dask's dashboard: %s",
            len(parts),
            first,
            self.cluster.dashboard,
        )
        self._changes.clear()
        memory, self._memory = self._memory, None
        for seat, address in zip(self.seats, workers, strict=False):
            seat.known, seat.clock = self._number, self.state.clock
            rows = slice(seat.setup.first_row, seat.setup.first_row + seat.setup.n_rows)
            arrays = {} if memory is None else memory.arrays
            part = {name: array[rows] for name, array in arrays.items()}
            self._start(seat, address, part or None)
        for seat in self.seats:
            self._occupy(seat)

    def _occupy(self, seat: Seat) -> None:
        """Let the worker at which a seat was started take it, or another one."""
        while True:
            try:
                self.cluster.place(seat)
                self._catch_up(seat)
                return
            except WorkerLostError:
                self._look_elsewhere(seat, "before it had read them")

    def _catch_up(self, seat: Seat) -> None:
        """Bring a lane to where the one before it was, or the run stands."""
        base = None
        if seat.setup.alone and not self._masked:
            fade = np.exp(self.state.clock - self._feature_clock)
            base = self.state.B * fade.astype(self.state.B.dtype)
        tasks = list(seat.log)
        if tasks or base is not None:
            unwrap(self.cluster.call(seat, "catch_up", tasks, base))

    def _start(self, seat: Seat, address: str, memory: Memory = None) -> None:
        """Let a worker begin to read the rows of a seat."""
        # If it is gone, `_occupy` will notice.
        with suppress(WorkerLostError):
            everything = News(None, self.state.D, self.state.G)
            self.cluster.start(seat, address, everything, memory)

    def _look_elsewhere(self, seat: Seat, when: str) -> None:
        """Let another worker begin with the rows of one that is gone."""
        lost = seat.address
        self.cluster.abandon(seat)
        seat.n_losses += 1
        if seat.n_losses > MOST_LOSSES:
            raise RuntimeError(
                f"{seat.n_losses} workers were lost one after the other with the "
                f"{seat.rows} of X, the last one at {lost}. See the logs of the "
                "workers; if it was for want of memory, give them more, or smaller "
                "parts of X: start more workers, or rechunk X."
            )
        address = self._least_loaded(but=lost)
        logger.warning(
            "Worker %s was lost %s; its %s are taken over by %s.%s",
            lost,
            when,
            seat.rows,
            address,
            " What was remembered of these samples begins anew."
            if self._remembers
            else "",
        )
        self._start(seat, address)

    def _least_loaded(self, but: str) -> str:
        """Return the worker with the fewest rows."""
        end = time.monotonic() + 5.0
        workers = self.cluster.wait_for_workers()
        while but in workers and len(workers) == 1 and time.monotonic() < end:
            time.sleep(0.2)  # the scheduler may not have noticed yet
            workers = self.cluster.wait_for_workers()
        load = dict.fromkeys((w for w in workers if w != but), 0) or {but: 0}
        for seat in self.seats:
            if seat.address in load:
                load[seat.address] += seat.setup.n_rows
        return min(load, key=lambda address: (load[address], address))

    def _move(self, seat: Seat, when: str) -> None:
        """Give the rows of a worker that is gone to another one."""
        self._look_elsewhere(seat, when)
        self._occupy(seat)

    def _take_over(self, seat: Seat, task: Task) -> None:
        """Give the rows of a worker that is gone, and its task, to another one."""
        self._move(seat, f"in exchange {task.number}, whose batch is made again")
        self._send(seat, _again(task))

    def _look_for_lost(self, seats: list[Seat], ask: bool) -> None:
        """Replace the workers of silent seats that Dask, if asked, does not know."""
        workers = self.cluster.workers() if ask else None
        for seat in seats:
            gone = workers is not None and seat.address not in workers
            if (gone or seat.is_adrift) and seat.task is not None:
                self._take_over(seat, seat.task)

    def _welcome(self) -> bool:
        """Share the rows out anew if workers have come, or have too much to do."""
        workers = self.cluster.workers()
        wanted = min(len(workers), len(self.source.pieces))
        hosts = {seat.address for seat in self.seats} & set(workers)
        if not workers or (wanted == len(self.seats) == len(hosts)):
            return False
        logger.info(
            "There are %d workers now: the samples are shared out anew.", len(workers)
        )
        self.settle()
        self._memory = self._gather_memory()
        for seat in self.seats:
            self.cluster.release(seat)
        self._seat_everyone()
        return True

    # -- what workers remember of samples --------------------------------------------

    @property
    def _remembers(self) -> bool:
        return self.solver.settings.code_estimator in REMEMBERS_SAMPLES

    @contextmanager
    def complete(self) -> Iterator[None]:
        """Let the state hold all that a checkpoint needs, for as long as that takes."""
        self.state.averages = self._gather_memory()
        try:
            yield
        finally:
            self.state.averages = None

    def _gather_memory(self) -> Averages | None:
        """Return what all workers remember of their samples; a lost one nothing."""
        if not self._remembers:
            return None
        self.solver.remember_everything()
        memory = self.state.averages
        assert memory is not None
        results = self.cluster.call_all(self.seats, "remembered")
        for seat, result in zip(self.seats, results, strict=True):
            if isinstance(result, WorkerLostError):
                continue
            first = seat.setup.first_row
            for name, array in unwrap(result).items():
                memory.arrays[name][first : first + len(array)] = array
        self.state.averages = None
        return memory

    # -- what workers keep -----------------------------------------------------------

    def _must_settle(self) -> bool:
        if self._keeps_nothing:
            return False
        reduction = max(1, math.ceil(self.solver.settings.schedule.reduction))
        return bool(self.stop_reason) or self._since_flush >= FLUSH * reduction

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
        if self._keeps_nothing or self.settled:
            self.settled = True
            return
        state = self.state
        fade = np.exp(state.clock - self._feature_clock).astype(state.B.dtype)
        results = self.cluster.call_all(self.seats, "hand_over")
        total: Array | None = None
        for seat, result in zip(self.seats, results, strict=True):
            if isinstance(result, WorkerLostError):
                result = self._hand_over_again(seat)
            share = unwrap(result)
            seat_fade = state.B.dtype.type(math.exp(state.clock - seat.clock))
            share = share * seat_fade
            share[self._replaced_since(seat.known)] = 0  # the lane has not heard of it
            total = share if total is None else total + share
            seat.clock = state.clock
            seat.log.clear()
        assert total is not None
        if self.alone:
            state.B[:] = total
        else:
            state.B *= fade
            state.B += total
        self._feature_clock[:] = state.clock
        self._since_flush = 0
        self.settled = True

    def _hand_over_again(self, seat: Seat) -> Any:
        """Let other workers make what a lost one had, until one can hand it over."""
        while True:
            self._move(seat, "when it was to hand over its share")
            try:
                return self.cluster.call(seat, "hand_over")
            except WorkerLostError:
                continue

    def _absorb_all_late(self) -> None:
        for seat, answer in self._await_everybody():
            self._absorb_late(seat, answer)

    def _await_everybody(self) -> list[tuple[Seat, Answer]]:
        """Wait for slow workers, so that nothing is on its way."""
        late = []
        checked = time.monotonic()
        for seat in self.seats:
            while seat.future is not None:
                if seat.future.done():
                    answer = self._answer(seat)
                    if answer is not None:
                        late.append((seat, answer))
                        break
                if self.cluster.hears(seat.future):
                    continue
                ask = time.monotonic() - checked > CHECK
                self._look_for_lost([seat], ask)
                checked = time.monotonic() if ask else checked
        return late

    def _order_samples(self, n_lanes: int) -> bool:
        """Let batches take samples of all lanes, from the next epoch on.

        Returns whether samples are shuffled.
        """
        sampler = self.state.sampler
        old = sampler.order
        assert old is not None
        if n_lanes > 1:
            self.source.n_lanes = n_lanes
            new = self.cluster.sample_order(
                self.source, self.choices, bool(old.shuffle)
            )
            assert isinstance(new, StratifiedOrder)
            new.continue_from(old)
            sampler.order = new
        return bool(old.shuffle)


def _again(task: Task) -> Task:
    """Return a task for a worker that has the dictionary of now."""
    news = task.news
    return replace(task, news=news.again() if news and len(news.replaced) else None)


def _rows(seat: Seat, draw: Draw) -> Indices:
    """Rows of a draw that are a seat's."""
    first, n_rows = seat.setup.first_row, seat.setup.n_rows
    low, high = np.searchsorted(draw.rows, [first, first + n_rows])
    return draw.rows[low:high]


def _n_rows(seat: Seat, i: int = -1) -> int:
    """Samples of a seat in one of the iterations of its task."""
    assert seat.task is not None
    return len(seat.task.visits[i].rows)
