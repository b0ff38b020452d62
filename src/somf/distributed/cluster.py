"""The workers of a Dask cluster, and the lanes that live on them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from somf.choices import Choices
from somf.distributed.messages import Failure, Memory, News, Setup, Task
from somf.distributed.parts import (
    PartedSource,
    Piece,
    lay_out,
    packed,
    part,
    share_out,
)
from somf.distributed.worker import Lane
from somf.inputs import is_source
from somf.reading import sample_order
from somf.sampling import Draw, SampleOrder, StratifiedOrder
from somf.sources.base import Indices, Source
from somf.sources.checks import need

logger = logging.getLogger("somf")

PATIENCE = 60.0  # seconds to wait for a worker when there is none
NOTICE = 5.0  # seconds in which the scheduler learns that a worker is gone
CHECK = 1.0  # seconds after which a silent worker is asked for
LOOK = 0.05  # seconds between two looks at what is awaited, if no bell rings


class WorkerLostError(Exception):
    """A worker is gone, and what it held with it."""


def find_client(client: Any = None) -> Any:
    """Return the Dask client to use: the one given, or the active one, or None."""
    if client is False:
        return None
    if client is None:
        import sys

        distributed = sys.modules.get("distributed")
        if distributed is None:  # without it there cannot be a client
            return None
        try:
            return distributed.default_client()
        except ValueError:
            return None
    distributed = need("distributed", "dask", "Running on Dask")
    if isinstance(client, distributed.Client) and client.asynchronous:
        raise TypeError(
            f"client={client!r} is asynchronous, and fit waits for its workers. Give a "
            "Client that was made without asynchronous=True."
        )
    if not isinstance(client, distributed.Client):
        raise TypeError(
            f'client={client!r} must be a dask.distributed.Client, "local" for a '
            "cluster on this machine, or False for none."
        )
    return client


@contextmanager
def local_client(n_workers: int) -> Iterator[Any]:
    """Start a cluster of processes on this machine, with one thread each."""
    distributed = need("distributed", "dask", "Running on Dask")
    with (
        distributed.LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",  # any port: the usual one may be taken
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@contextmanager
def cluster_for(X: Any, client: Any, n_workers: int) -> Iterator[Cluster | None]:
    """Open the cluster on which to factorize X; None if that is to be done here."""
    if isinstance(client, str) and client == "local":
        with local_client(n_workers) as started, Cluster(started, 1) as cluster:
            yield cluster
        return
    found = find_client(client)
    if found is not None and client is None and not _comes_in_parts(X):
        logger.info(
            "A Dask client is active, but X is neither a Dask array nor a list: the "
            "work is done here. client=client does it on the workers."
        )
        found = None
    if found is None:
        yield None
        return
    with Cluster(found) as cluster:
        yield cluster


def _comes_in_parts(X: Any) -> bool:
    is_dask = type(X).__module__.partition(".")[0] == "dask"
    return is_dask or (isinstance(X, list | tuple) and is_source(X))


@dataclass
class Seat:
    """A lane as the client sees it."""

    setup: Setup
    pieces: list[Piece]
    address: str = ""
    blocks: list[Any] = field(default_factory=list)  # on their way to the worker
    handle: Any = None  # Dask's future of the lane
    actor: Any = None
    future: Any = None  # of the answer that is awaited
    task: Task | None = None  # the last one
    sent: float = 0.0
    known: int = 0  # the last exchange whose news it has
    clock: float = 0.0  # up to where its share of B has faded
    answered: int = 0
    n_losses: int = 0  # workers that it has lost since its last answer
    n_samples: int = 0  # that it has coded
    log: deque[Task] = field(default_factory=deque)  # answered since it told all of B

    @property
    def rows(self) -> str:
        """Its rows, in words."""
        last = self.setup.first_row + self.setup.n_rows - 1
        return f"rows {self.setup.first_row} to {last}"

    def rows_in(self, draw: Draw) -> Indices:
        """Return the rows of a draw that are its own."""
        first = self.setup.first_row
        low, high = np.searchsorted(draw.rows, [first, first + self.setup.n_rows])
        return draw.rows[low:high]

    def n_rows_in(self, i: int = -1) -> int:
        """Return how many samples one of the iterations of its task has."""
        assert self.task is not None
        return len(self.task.visits[i].rows)

    @property
    def is_adrift(self) -> bool:
        """Whether Dask has lost the lane that had begun here."""
        return self.actor is not None and self.handle.status != "finished"

    @property
    def waited(self) -> float:
        """Seconds since the task was sent."""
        return time.monotonic() - self.sent


class Cluster:
    """Starts lanes on workers, talks to them, and notices when workers are gone."""

    def __init__(self, client: Any, n_threads: int | None = None) -> None:
        self.user_client = client
        self.n_threads = n_threads  # of each worker, where that is known
        self.client = client
        self._own = False
        self._bell = threading.Event()

    def __enter__(self) -> Cluster:
        self.client = self._direct() or self.user_client
        self._own = self.client is not self.user_client
        return self

    def __exit__(self, *error: object) -> None:
        if self._own:
            self.client.close()

    def _direct(self) -> Any:
        """Return a client that talks to workers without a detour, if it can."""
        if self.user_client.direct_to_workers or self.user_client.asynchronous:
            return None
        distributed = need("distributed", "dask", "Running on Dask")
        direct = distributed.Client(
            self.user_client.scheduler.address,
            direct_to_workers=True,
            set_as_default=False,
            security=self.user_client.security,
        )
        try:
            workers = list(self.user_client.nthreads())
            direct.sync(_greet, direct, workers, callback_timeout=5)
        except Exception as error:  # they can be reached by the scheduler only
            direct.close()
            logger.warning(
                "Workers cannot be reached from here (%r): everything goes through the "
                "scheduler, which is slow. Run the client inside of the network of the "
                "workers, or open their ports (`dask worker --worker-port`).",
                error,
            )
            return None
        return direct

    def share(self, X: Any, source: Source) -> PartedSource:
        """Cut samples into pieces for the workers."""
        return part(X, source, len(self.wait_for_workers()))

    def sample_order(
        self, source: Source, choices: Choices, shuffle: bool
    ) -> SampleOrder:
        """Return the order of samples: batches have samples of all workers."""
        assert isinstance(source, PartedSource), "`share` makes them"
        parts = share_out(source.pieces, source.n_lanes)
        if len(parts) == 1:
            return sample_order(source, choices, shuffle)
        layouts = [lay_out(pieces, source) for pieces in parts]
        orders = [sample_order(layout, choices, shuffle) for layout in layouts]
        return StratifiedOrder(orders, choices.batch_size)

    @property
    def dashboard(self) -> str:
        """Where Dask shows what it does."""
        return str(self.user_client.dashboard_link or "none")

    def workers(self) -> dict[str, int]:
        """Return the addresses of the workers, each with its number of threads."""
        return dict(self.user_client.nthreads())

    def wait_for_workers(self) -> dict[str, int]:
        """Return the workers; wait for one if there is none."""
        end = time.monotonic() + PATIENCE
        told = False
        while not (workers := self.workers()):
            if time.monotonic() > end:
                address = self.user_client.scheduler.address
                raise RuntimeError(
                    f"The Dask cluster at {address} has had no worker for "
                    f"{PATIENCE:.0f} seconds, and needs one. Start some, with `dask "
                    f"worker {address}`, wait for them with client.wait_for_workers, "
                    "and fit again, or call SOMF.resume if there is a checkpoint."
                )
            if not told:
                logger.warning("The Dask cluster has no worker: waiting for one.")
                told = True
            time.sleep(0.2)
        return workers

    def start(self, seat: Seat, address: str, news: News, memory: Memory) -> None:
        """Let a worker begin to take the rows of a seat."""
        seat.address, seat.actor, seat.future = address, None, None
        client, place = self.client, [address]
        try:
            blocks = [piece.what for piece in seat.pieces if piece.held]
            # Not there alone: it would wait for a worker that is gone for ever, and so
            # would everybody who wants the same block later.
            seat.blocks = client.compute(
                blocks, workers=place, allow_other_workers=True
            )
            # Data without a recipe: Dask cannot make this lane again by itself.
            parcel = [[packed(piece) for piece in seat.pieces], news, memory]
            parcel = client.scatter(parcel, workers=place, hash=False, timeout=NOTICE)
            seat.handle = client.submit(
                Lane,
                seat.setup,
                seat.blocks,
                *parcel,
                actor=True,
                pure=False,
                workers=place,
                allow_other_workers=False,
            )
        except OSError as error:  # a timeout too
            self.abandon(seat)
            raise WorkerLostError(address) from error

    def place(self, seat: Seat) -> None:
        """Wait until the worker of a seat has its rows."""
        try:
            self._enter(seat)
            unwrap(self.call(seat, "ready"))
        except WorkerLostError:
            self.abandon(seat)
            raise
        finally:
            for block in seat.blocks:  # the lane has them
                block.release()
            seat.blocks = []

    def _enter(self, seat: Seat) -> None:
        if seat.handle is None:  # it could not even be started
            raise WorkerLostError(seat.address)
        self._await(seat.handle, seat)
        if seat.handle.status == "error":
            self._blame(seat, seat.handle.exception())
        if seat.handle.status != "finished":
            raise WorkerLostError(seat.address)
        try:
            with self.client.as_current():
                seat.actor = seat.handle.result(timeout=NOTICE)
        except Exception as error:  # it was there a moment ago
            raise WorkerLostError(seat.address) from error

    def _blame(self, seat: Seat, error: BaseException) -> None:
        """Raise for a lane that could not begin: the worker died, or rows are bad."""
        killed = type(error).__name__ == "KilledWorker"
        lost = killed or "Actor was lost" in str(error)  # in Dask's words
        if lost or seat.address not in self.workers():
            raise WorkerLostError(seat.address) from error
        where = f"Worker {seat.address} could not compute the {seat.rows} of X"
        Failure.of(error, where).raise_()

    def _await(self, future: Any, seat: Seat) -> None:
        """Wait for a future, as long as the worker of the seat lives."""
        asked = time.monotonic()
        while not self.hears(future):
            if seat.is_adrift:
                raise WorkerLostError(seat.address)
            if time.monotonic() - asked > CHECK:
                if seat.address not in self.workers():
                    raise WorkerLostError(seat.address)
                asked = time.monotonic()

    def begin(self, seat: Seat, method: str, *args: Any) -> Any:
        """Call a method of a lane; returns a future."""
        try:
            future = getattr(seat.actor, method)(*args)
        except (RuntimeError, OSError) as error:  # the actor is known to be lost
            raise WorkerLostError(seat.address) from error
        self.client.loop.add_callback(_ring, future, self._bell)
        return future

    def end(self, seat: Seat, future: Any) -> Any:
        """Return the result of a call that is done."""
        try:
            return future.result()
        except Exception as error:  # errors of lanes come as a Failure
            raise WorkerLostError(seat.address) from error

    def call(self, seat: Seat, method: str, *args: Any) -> Any:
        """Call a method of a lane and wait for its result."""
        future = self.begin(seat, method, *args)
        self._await(future, seat)
        return self.end(seat, future)

    def call_each(self, seats: list[Seat], method: str) -> Iterator[tuple[Seat, Any]]:
        """Call a method of all lanes; yields each with its result, or WorkerLostError.

        The next one works while a result is used; more would fill the memory here.
        """
        begun: deque[tuple[Seat, Any]] = deque()
        for seat in seats:
            begun.append((seat, self._begin_or_lose(seat, method)))
            if len(begun) == 2:
                yield self._end_or_lose(*begun.popleft())
        while begun:
            yield self._end_or_lose(*begun.popleft())

    def _begin_or_lose(self, seat: Seat, method: str) -> Any:
        try:
            return self.begin(seat, method)
        except WorkerLostError as error:
            return error

    def _end_or_lose(self, seat: Seat, future: Any) -> tuple[Seat, Any]:
        if isinstance(future, WorkerLostError):
            return seat, future
        try:
            self._await(future, seat)
            return seat, self.end(seat, future)
        except WorkerLostError as error:
            return seat, error

    def send(self, seat: Seat, task: Task) -> None:
        """Give a lane its next task."""
        seat.task, seat.sent = task, time.monotonic()
        seat.future = self.begin(seat, "work", task)

    def hears(self, *futures: Any) -> bool:
        """Wait a moment for some futures; returns whether one of them is done."""
        if any(future.done() for future in futures):
            return True
        self._bell.wait(LOOK)
        self._bell.clear()
        return any(future.done() for future in futures)

    def release(self, seat: Seat) -> None:
        """Let a worker forget a lane, which must have nothing to do."""
        with suppress(WorkerLostError):
            self.call(seat, "close")
        self.abandon(seat)

    @staticmethod
    def abandon(seat: Seat) -> None:
        """Forget a lane, whatever it does: Dask lets its worker forget it."""
        seat.actor, seat.handle, seat.future = None, None, None


async def _ring(future: Any, bell: threading.Event) -> None:
    """Ring when the answer of a lane is there, or will not come."""
    try:
        with suppress(Exception):  # whoever takes the result hears of it
            await future
    finally:
        bell.set()


async def _greet(client: Any, addresses: list[str]) -> None:
    for address in addresses:
        await client.rpc(address).identity()


def unwrap(result: Any) -> Any:
    """Return what a lane answered, or raise what it failed with."""
    if isinstance(result, Failure):
        result.raise_()
    return result
