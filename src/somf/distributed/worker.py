"""What runs on a worker: codes of its own samples, and its share of the statistics."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.distributed.messages import (
    Answer,
    Failure,
    Memory,
    News,
    Preview,
    Setup,
    Task,
    Visit,
)
from somf.distributed.parts import Piece, open_part
from somf.memory import available_memory
from somf.reading import make_reader, sample_order
from somf.sampling import Draw, Mask, MaskSampler, Sampler, as_generator
from somf.solver.aggregation import AGGREGATIONS, everywhere, observed_sums
from somf.solver.averages import Averages
from somf.solver.iteration import Coded, Factorization
from somf.solver.run import Reader
from somf.solver.state import State
from somf.sources.ahead import Ahead
from somf.sources.base import Batch, ObservedBatch
from somf.threads import Team

Array = NDArray[Any]


class Lane:
    """Some rows of X, a replica of the dictionary, and what the rows add to B.

    B of its state is what the rows have added since the client last heard of a feature,
    or all of B if there is no other lane. It lives on a worker as a Dask actor, and the
    client talks to it through `work`; errors come back as a `Failure`.
    """

    def __init__(
        self,
        setup: Setup,
        blocks: list[Array],
        pieces: list[Piece],
        news: News,
        memory: Memory,
    ) -> None:
        self.setup = setup
        self.where = _where(setup)
        self._rest: threading.Thread | None = None
        self._rest_error: BaseException | None = None
        self._last: Coded | None = None
        self._spare: Array | None = None
        self._failure: Failure | None = None
        self._clears = not setup.alone  # whether what was told is kept no longer
        try:
            self._open(pieces, blocks, news, memory)
        except Exception as error:
            self._failure = self._failed(error)

    def _open(
        self, pieces: list[Piece], blocks: list[Array], news: News, memory: Memory
    ) -> None:
        setup = self.setup
        computed = iter(blocks)
        filled = [replace(p, what=next(computed)) if p.held else p for p in pieces]
        wanted = replace(setup.wanted, first_row=setup.first_row)
        source = open_part(filled, setup.dtype, wanted, room=_room_of_worker())
        order = sample_order(source, setup.choices, setup.shuffle)
        self.reader = make_reader(source, setup.choices, order, wanted)
        self.team = Team(setup.n_threads or _threads_of_worker()).__enter__()
        self._end = weakref.finalize(self, self.team.__exit__, None, None, None)
        folder = setup.settings.averages_folder
        folder = None if folder is None else os.fspath(folder)
        D = np.array(news.D)
        rng = as_generator(0)  # nothing here is drawn
        sampler = Sampler(rng, MaskSampler(D.shape[1]), order)
        self._read = _reading(self.reader, sampler)
        self._ahead = Ahead(self._read) if self.reader.depth else None
        state = State(
            D=D,
            B=np.zeros_like(D),
            C=np.zeros((len(D), len(D)), D.dtype),
            norms=np.zeros(len(D)),
            rng=rng,
            sampler=sampler,
            constraint=setup.problem.constraint,
            G=news.G,
            idle=np.zeros(len(D), np.int64),
            averages=None if memory is None else Averages.restore(memory, folder),
        )
        self.solver = Factorization(setup.problem, setup.settings, state, self.team)

    @property
    def state(self) -> State:
        """Replica and statistics."""
        return self.solver.state

    def ready(self) -> Failure | None:
        """Return what went wrong at the start."""
        return self._failure

    def work(self, task: Task) -> Answer | Failure:
        """Hear the news, iterate, and return what the client needs of it."""
        result: Answer | Failure = self._guarded(lambda: self._work(task))
        return result

    def catch_up(self, tasks: list[Task], base: Array | None) -> Failure | None:
        """Make again what was lost with another worker.

        `tasks` were answered since features were last exchanged; their codes are made
        again with the dictionary of now. `base` is the rest of B, if all of it is here.
        """

        def again() -> None:
            self._clears = True
            for task in tasks:
                self._work(task)
            self._settle()
            self._clears = not self.setup.alone
            if base is not None:
                self.state.B += base

        result: Failure | None = self._guarded(again)
        return result

    def hand_over(self) -> Array | Failure:
        """Return B, of which nothing is kept unless all of it is here."""

        def give() -> Array:
            self._settle()
            B = self.state.B
            if self._clears:
                self._renew()
            return B

        result: Array | Failure = self._guarded(give)
        return result

    def remembered(self) -> Memory | Failure:
        """Return what the estimator of codes remembers of the samples."""

        def arrays() -> Memory:
            averages = self.state.averages
            n_rows = self.setup.n_rows
            if averages is None:
                return None
            return {name: a[:n_rows] for name, a in averages.arrays.items()}

        result: Memory | Failure = self._guarded(arrays)
        return result

    def samples(self, which: NDArray[np.intp]) -> Array | Failure:
        """Return samples of the last batch."""

        def copy() -> Array:
            assert self._last is not None
            return self._last.seen.batch.copy_rows(which)

        result: Array | Failure = self._guarded(copy)
        return result

    def close(self) -> None:
        """Give back threads and memory."""
        if self._failure is not None:
            return
        try:
            self._settle()
        finally:
            self._end()
            if self._ahead is not None:
                self._ahead.close()
            self._last = self._spare = None
            del self.solver, self.reader, self._read, self._ahead

    def _work(self, task: Task) -> Answer:
        self._settle()
        state = self.state
        if task.news is not None:
            self._hear(task.news)
        C = np.zeros_like(state.C)
        used = np.zeros(len(C), bool)
        B, losses, n_nonzero = None, [], []
        for i, visit in enumerate(task.visits):
            C *= 1 - C.dtype.type(visit.weight)
            batch = self._take(visit, (*task.visits, task.ahead)[i + 1])
            if batch is None:
                self._wait_out(visit)
                losses.append(0.0)
                n_nonzero.append(0)
                continue
            coded = self._code(batch, visit)
            C += coded.codes.second_moment(visit.weight, visit.total)
            used |= coded.codes.used
            losses.append(coded.objective * len(visit.rows))
            n_nonzero.append(coded.codes.n_nonzero)
            last = i + 1 == len(task.visits)
            B = self._aggregate(coded, visit, last, task.whole)
        if B is None and not self._sends_batch:
            B = self._all() if task.whole else self._observed(task.visits[-1])
        return Answer(
            task.number,
            B,
            C,
            used,
            tuple(losses),
            tuple(n_nonzero),
        )

    def _hear(self, news: News) -> None:
        state = self.state
        if len(news.replaced):
            if news.atoms is not None:
                state.D[news.replaced] = news.atoms
            state.B[news.replaced] = 0
            if state.averages is not None:
                state.averages.forget()
        if news.which is None:
            state.D[:] = news.D
        else:
            state.D[:, news.which] = news.D
        if news.G is not None:
            state.G = news.G

    def _take(
        self, visit: Visit, following: Visit | Preview | None
    ) -> Batch | ObservedBatch | None:
        """Return the batch of a visit, and let the one that follows be read."""
        ahead, batch = self._ahead, None
        if len(visit.rows):
            batch = ahead.take(self._key(visit), visit) if ahead else self._read(visit)
        if ahead is not None and following is not None and len(following.rows):
            ahead.begin(self._key(following), following)
        return batch

    def _key(self, what: Visit | Preview) -> tuple[bytes, bytes]:
        """Return what makes the batches of two draws the same."""
        features = what.features.which if what.features else None
        if features is None or not self.reader.partial:
            return what.rows.tobytes(), b""
        return what.rows.tobytes(), features.tobytes()

    def _code(self, batch: Batch | ObservedBatch, visit: Visit) -> Coded:
        self.state.n_steps = visit.n_steps
        coded = self.solver.majorize((batch, visit.features.mask()))
        self._last = coded
        return coded

    @property
    def _sends_batch(self) -> bool:
        """Whether the batch in view is all that is told, and nothing is kept."""
        return self.setup.settings.aggregation == "masked"

    def _aggregate(
        self, coded: Coded, visit: Visit, last: bool, whole: bool
    ) -> Array | None:
        """Add a batch to B; return what the client gets of it, after the last batch."""
        state, codes = self.state, coded.codes
        if self._sends_batch:
            return observed_sums(coded.seen, codes, visit.total)
        all_now = whole or not last
        aggregation = self.setup.settings.aggregation
        rule = everywhere if all_now else AGGREGATIONS[aggregation]
        B, finish = rule(state, coded.seen, codes, visit.weight, visit.total)
        if all_now:
            finish()
            return self._all() if last else None
        self._begin_rest(finish, coded.seen.mask.features)
        return B

    def _wait_out(self, visit: Visit) -> None:
        """Let B fade in an iteration that has no sample of this lane."""
        if not self._sends_batch:
            self.state.B *= self.state.B.dtype.type(1 - visit.weight)

    def _observed(self, visit: Visit) -> Array:
        """Return B on the features of the exchange, when no batch brought it up."""
        features = visit.features.mask().features
        B = self.state.B[:, features]
        if self._clears:
            self.state.B[:, features] = 0
        return B

    def _all(self) -> Array:
        B = self.state.B
        if self._clears:
            self._renew()
        return B

    def _renew(self) -> None:
        """Start from zero in another array: the old one is on its way."""
        old, new = self.state.B, self._spare
        if new is None:
            new = np.zeros_like(old)
        else:
            new[:] = 0
        self.state.B, self._spare = new, old

    def _begin_rest(self, finish: Callable[[], None], features: Array) -> None:
        """Update the features that nobody waits for while the answer is on its way."""

        def rest() -> None:
            try:
                finish()
                if self._clears:
                    self.state.B[:, features] = 0
            except BaseException as error:
                self._rest_error = error

        self._rest = threading.Thread(target=rest, name="somf-rest", daemon=True)
        self._rest.start()

    def _settle(self) -> None:
        """Wait for what the last iteration left to do."""
        if self._rest is not None:
            self._rest.join()
            self._rest = None
        if self._rest_error is not None:
            error, self._rest_error = self._rest_error, None
            raise error

    def _guarded(self, do: Callable[[], Any]) -> Any:
        if self._failure is not None:
            return self._failure
        try:
            return do()
        except Exception as error:
            return self._failed(error)

    def _failed(self, error: Exception) -> Failure:
        return Failure.of(error, self.where)


def _reading(
    reader: Reader, sampler: Sampler
) -> Callable[[Visit | Preview], Batch | ObservedBatch]:
    """Return what reads a batch; it does not know the lane, which would outlive it."""
    everything = Mask.everything(sampler.masks.n_features)

    def read(what: Visit | Preview) -> Batch | ObservedBatch:
        mask = what.features.mask() if what.features else everything
        return reader.read(Draw(what.rows, mask, False, sampler))

    return read


def _where(setup: Setup) -> str:
    """Return which worker this is and what it holds, for messages."""
    last = setup.first_row + setup.n_rows - 1
    return f"Worker {_address()}, which has the rows {setup.first_row} to {last} of X"


def _address() -> str:
    from distributed import get_worker

    try:
        return str(get_worker().address)
    except ValueError:  # not on a worker
        return "here"


def _room_of_worker() -> int:
    """Return the bytes that this process may still take, of machine, job and Dask."""
    from distributed import get_worker

    room = available_memory()
    try:
        worker = get_worker()
    except ValueError:  # not on a worker
        return room
    limit = worker.memory_manager.memory_limit
    if not limit:
        return room
    return max(0, min(room, limit - worker.monitor.get_process_memory()))


def _threads_of_worker() -> int:
    from distributed import get_worker

    return int(get_worker().state.nthreads)
