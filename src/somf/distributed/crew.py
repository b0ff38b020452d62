"""The workers of a run: who has which rows, who is awaited, and who is lost."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.choices import Choices
from somf.distributed.cluster import CHECK, Cluster, Seat, WorkerLostError, unwrap
from somf.distributed.ledger import Answers, Ledger
from somf.distributed.messages import Answer, Memory, Setup, Task
from somf.distributed.parts import MOST_RANGES, PartedSource, joined, share_out
from somf.sampling import Draw, StratifiedOrder
from somf.solver.averages import Averages
from somf.solver.run import WorkerProgress
from somf.sources.base import Requirements

Array = NDArray[Any]
logger = logging.getLogger("somf")

SLOW = 4.0  # times the usual seconds of an answer after which others go on
SLOW_SECONDS = 1.0  # but not before
MOST_LOSSES = 5  # workers that a seat may lose without an answer


class Crew:
    """Shares the rows out among workers, awaits them, and replaces those that are lost.

    Parameters
    ----------
    max_staleness : int
        Exchanges that the others make without a worker that is slow.
    """

    def __init__(
        self,
        cluster: Cluster,
        source: PartedSource,
        ledger: Ledger,
        choices: Choices,
        wanted: Requirements,
        n_threads: int | None,
        max_staleness: int,
    ) -> None:
        self.cluster = cluster
        self.source = source
        self.ledger = ledger
        self.solver = ledger.solver
        self.choices = choices
        self.wanted = wanted
        self.n_threads = cluster.n_threads or n_threads
        self.max_staleness = max_staleness
        self.seats: list[Seat] = []
        self.usual = math.inf  # seconds of an answer

    @property
    def progress(self) -> list[WorkerProgress]:
        """How far each worker has come; one that took over rows is there twice."""
        number = self.ledger.number
        return [
            WorkerProgress(
                address=seat.address,
                n_rows=seat.setup.n_rows,
                n_samples=seat.n_samples,
                behind=number - seat.task.number if seat.future and seat.task else 0,
            )
            for seat in self.seats
        ]

    # -- who has which rows ----------------------------------------------------------

    def take_seats(self, memory: Averages | None) -> None:
        """Share the rows out among the workers, and let them begin.

        `memory` is what is remembered of all samples.
        """
        workers = self.cluster.wait_for_workers()
        parts = share_out(self.source.pieces, len(workers))
        if len(parts) < len(workers):
            logger.warning(
                "X has %d pieces for %d workers: %d of them have nothing to do. Use "
                "smaller chunks, as with X.rechunk((1000, -1)), or more files; one "
                "file has %d pieces at most.",
                len(parts),
                len(workers),
                len(workers) - len(parts),
                MOST_RANGES,
            )
        shuffle = self._order_samples(len(parts))
        firsts = np.cumsum([0] + [sum(map(len, pieces)) for pieces in parts])
        self.seats = [
            Seat(self._setup(i, firsts, shuffle), joined(pieces))
            for i, pieces in enumerate(parts)
        ]
        starts = self.solver.has_head_start(self.solver.state.n_steps)
        logger.info(
            "%d %s %d samples, with dict_update=%r%s. Dask's dashboard: %s",
            len(parts),
            "worker has" if len(parts) == 1 else "workers share",
            firsts[-1],
            self.solver.settings.dict_update,
            ", all features at first" if starts else "",
            self.cluster.dashboard,
        )
        self.ledger.begin_anew()
        arrays = {} if memory is None else memory.arrays
        for seat, address in zip(self.seats, workers, strict=False):
            seat.known, seat.clock = self.ledger.number, self.solver.state.clock
            rows = slice(seat.setup.first_row, seat.setup.first_row + seat.setup.n_rows)
            part = {name: array[rows] for name, array in arrays.items()}
            self._start(seat, address, part or None)
        for seat in self.seats:
            self._occupy(seat)

    def _setup(self, i: int, firsts: NDArray[np.intp], shuffle: bool) -> Setup:
        """Return what the worker of a seat needs to begin, beside its rows."""
        return Setup(
            problem=self.solver.problem,
            settings=self.solver.settings,
            choices=self.choices,
            wanted=self.wanted,
            dtype=self.source.dtype,
            shuffle=shuffle,
            first_row=int(firsts[i]),
            n_rows=int(firsts[i + 1] - firsts[i]),
            n_threads=self.n_threads,
            alone=len(firsts) == 2,
        )

    def _order_samples(self, n_lanes: int) -> bool:
        """Let batches take samples of all lanes, from the next epoch on.

        Returns whether samples are shuffled.
        """
        sampler = self.solver.state.sampler
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

    def is_ill_seated(self) -> bool:
        """Whether workers have come, or some have the rows of others, too."""
        workers = self.cluster.workers()
        wanted = min(len(workers), len(self.source.pieces))
        hosts = {seat.address for seat in self.seats} & set(workers)
        if not workers or (wanted == len(self.seats) == len(hosts)):
            return False
        logger.info(
            "%d of %d workers have samples, and %d could: they are shared out anew.",
            len(hosts),
            len(workers),
            wanted,
        )
        return True

    def leave_seats(self) -> None:
        """Let workers forget their lanes, which have nothing to do."""
        for seat in self.seats:
            self.cluster.release(seat)

    def disband(self) -> None:
        """Let workers forget their lanes, whatever they do."""
        for seat in self.seats:
            if seat.actor is not None and seat.future is None:
                self.cluster.release(seat)
            self.cluster.abandon(seat)

    # -- who is awaited --------------------------------------------------------------

    @property
    def free(self) -> list[Seat]:
        """Seats that have nothing to do."""
        return [seat for seat in self.seats if seat.future is None]

    @property
    def has_told_all(self) -> bool:
        """Whether no worker keeps anything of B, or has an answer on its way."""
        return all(
            seat.future is None and seat.task is not None and seat.task.whole
            for seat in self.seats
        )

    def have_samples(self, group: list[Draw]) -> bool:
        """Whether workers that are free have samples in all iterations."""
        return all(any(len(seat.rows_in(draw)) for seat in self.free) for draw in group)

    def send(self, seat: Seat, task: Task) -> None:
        """Give a worker its next task."""
        try:
            self.cluster.send(seat, task)
        except WorkerLostError:
            self._take_over(seat, task)

    def collect(self) -> tuple[Answers, Answers]:
        """Wait for the answers of this exchange, but not for ever for slow workers.

        Returns them, and late ones of earlier exchanges.
        """
        answers: dict[int, Answer] = {}
        late: Answers = []
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
                if answer.number == self.ledger.number:
                    answers[i] = answer
                else:
                    late.append((seat, answer))
            done = [self.seats[i] for i in answers]
            if not waiting or (_are_enough(done) and self._may_go_on(waiting)):
                break
            checked = self._listen(list(waiting.values()), checked)
        return [(self.seats[i], answers[i]) for i in sorted(answers)], late

    def await_everybody(self) -> Answers:
        """Wait for slow workers, so that nothing is on its way."""
        late = []
        checked = time.monotonic()
        for seat in self.seats:
            while seat.future is not None:
                if seat.future.done():
                    answer = self._answer(seat)
                    if answer is not None:
                        late.append((seat, answer))
                    continue
                checked = self._listen([seat], checked)
        return late

    def _listen(self, seats: list[Seat], checked: float) -> float:
        """Wait a moment for some seats; if all are silent, look for lost workers.

        `checked` is when Dask was last asked for its workers; returns that.
        """
        if self.cluster.hears(*(seat.future for seat in seats)):
            return checked
        ask = time.monotonic() - checked > CHECK
        workers = self.cluster.workers() if ask else None
        for seat in seats:
            gone = workers is not None and seat.address not in workers
            if (gone or seat.is_adrift) and seat.task is not None:
                self._take_over(seat, seat.task)
        return time.monotonic() if ask else checked

    def _answer(self, seat: Seat) -> Answer | None:
        """Take the answer of a seat; None if its worker is gone."""
        assert seat.task is not None
        try:
            answer: Answer = unwrap(self.cluster.end(seat, seat.future))
        except WorkerLostError:
            self._take_over(seat, seat.task)
            return None
        seat.future = None
        if seat.answered:
            usual = self.usual if math.isfinite(self.usual) else seat.waited
            self.usual = 0.9 * usual + 0.1 * seat.waited
        seat.answered += 1
        seat.n_losses = 0
        seat.n_samples += sum(len(visit.rows) for visit in seat.task.visits)
        if seat.task.whole:  # it has kept nothing
            seat.log.clear()
        elif not self.solver.masked:
            seat.log.append(seat.task.again())
        return answer

    def _may_go_on(self, waiting: dict[int, Seat]) -> bool:
        """Whether all that are waited for are slow, but not too far behind."""
        limit = max(SLOW_SECONDS, SLOW * self.usual)
        number = self.ledger.number
        for seat in waiting.values():
            assert seat.task is not None
            if seat.answered == 0 or seat.waited < limit:
                return False
            if number - seat.task.number >= self.max_staleness:
                return False
        for seat in waiting.values():
            assert seat.task is not None
            if seat.task.number == number:
                logger.warning(
                    "Worker %s is slow (%.1f s, usually %.1f s): the others go on "
                    "for up to %d exchanges without it. If that is often so, even out "
                    "the chunks, or leave its machine out.",
                    seat.address,
                    seat.waited,
                    self.usual,
                    self.max_staleness,
                )
        return True

    # -- what workers have -----------------------------------------------------------

    def samples(self, seat: Seat, which: NDArray[np.intp]) -> Array:
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

    def hand_over(self) -> Iterator[tuple[Seat, Array]]:
        """Yield what each lane has kept of B; one that is lost has it made again."""
        for seat, result in self.cluster.call_each(self.seats, "hand_over"):
            while isinstance(result, WorkerLostError):
                self._move(seat, "when it was to hand over its share")
                try:
                    result = self.cluster.call(seat, "hand_over")
                except WorkerLostError as error:
                    result = error
            yield seat, unwrap(result)

    def remembered(self) -> Averages | None:
        """Return what all workers remember of their samples; a lost one nothing."""
        if not self.solver.remembers:
            return None
        state = self.solver.state
        self.solver.remember_everything()
        memory, state.averages = state.averages, None
        assert memory is not None
        for seat, result in self.cluster.call_each(self.seats, "remembered"):
            if isinstance(result, WorkerLostError):
                continue
            first = seat.setup.first_row
            for name, array in unwrap(result).items():
                memory.arrays[name][first : first + len(array)] = array
        return memory

    # -- who is lost -----------------------------------------------------------------

    def _start(self, seat: Seat, address: str, memory: Memory = None) -> None:
        """Let a worker begin to read the rows of a seat."""
        # If it is gone, `_occupy` will notice.
        with suppress(WorkerLostError):
            self.cluster.start(seat, address, self.ledger.everything(), memory)

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
        if seat.setup.alone and not self.solver.masked:
            base = self.ledger.known_B()
        tasks = list(seat.log)
        if tasks or base is not None:
            unwrap(self.cluster.call(seat, "catch_up", tasks, base))

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
            if self.solver.remembers
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
        self.send(seat, task.again())


def _are_enough(seats: list[Seat]) -> bool:
    """Whether every iteration has samples of those that have answered."""
    tasks = [seat.task for seat in seats if seat.task is not None]
    visits = zip(*(task.visits for task in tasks), strict=True)
    counts = [sum(len(visit.rows) for visit in group) for group in visits]
    return len(counts) > 0 and min(counts) > 0
