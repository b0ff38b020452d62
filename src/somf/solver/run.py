"""A whole run: epochs of mini-batches until a reason to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from somf.sampling import Draw, Mask, Sampler
from somf.solver.iteration import Factorization
from somf.solver.trace import Trace
from somf.sources.ahead import DEPTH, read_ahead
from somf.sources.base import (
    COMPLETE,
    Batch,
    ObservedBatch,
    Requirements,
    Source,
    read_batch,
    read_observed,
)


@dataclass(frozen=True)
class StopRule:
    """When a run ends; a full epoch is always made."""

    n_epochs: int
    tol: float = 0.0
    patience: int = 2


@dataclass
class Progress:
    """How far a run has come: what it needs, beside the state, to go on."""

    n_done: int = 0  # iterations
    n_epochs_done: int = 0
    objective: float = np.inf  # of the last epoch
    n_samples: int = 0  # of this epoch, and the sum of their objectives
    total: float = 0.0
    best: float = np.inf
    epochs_without_gain: int = 0
    stop_reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers."""
        return asdict(self)


@dataclass(frozen=True)
class Report:
    """What is known after an iteration."""

    step: int
    n_steps_planned: int  # as far as is known: batches may be taken in pieces
    n_samples: int
    objective: float
    ends_epoch: bool


@dataclass(frozen=True)
class WorkerProgress:
    """How far one of the workers of a run has come with its samples."""

    address: str
    n_rows: int  # that it has
    n_samples: int  # that it has coded
    behind: int = 0  # exchanges that the others have made without it


class Reader:
    """Reads what an iteration needs; `partial` takes the observed features alone.

    Samples that were read as a whole and found good are not looked at again.
    """

    def __init__(
        self, source: Source, wanted: Requirements = COMPLETE, partial: bool = False
    ) -> None:
        self.source = source
        self.wanted = wanted
        self.partial = partial
        self._known = np.zeros(source.shape[0], bool)

    def read(self, draw: Draw) -> Batch | ObservedBatch:
        """Read the batch of a draw."""
        rows = draw.rows
        if self.partial and not draw.mask.observes_all:
            return read_observed(self.source, rows, draw.mask.features, self.wanted)
        wanted = replace(self.wanted, known=bool(self._known[rows].all()))
        batch = read_batch(self.source, rows, wanted)
        self._known[rows] = True
        return batch

    @property
    def depth(self) -> int:
        """How many batches to read ahead."""
        return 0 if self.source.in_memory else DEPTH


def record_step(
    solver: Factorization,
    batch: Batch | ObservedBatch,
    mask: Mask,
    trace: Trace,
    waited: Mapping[str, float] = MappingProxyType({}),
) -> float:
    """Make one iteration and add its row to the trace; return its objective.

    `waited` tells the seconds of the phases that came before it.
    """
    state = solver.state
    start = time.perf_counter()
    coded = solver.step(batch, mask)
    elapsed = time.perf_counter() - start + sum(waited.values())
    seconds = solver.stopwatch.seconds | dict(waited)
    trace.append(
        step=state.n_steps,
        time=trace.last("time") + elapsed,
        objective=coded.objective,
        density=coded.codes.density,
        reduction=coded.seen.mask.scale,
        replaced_atoms=state.n_replaced,
        **{f"seconds_{name}": s for name, s in seconds.items()},
    )
    return coded.objective


def _passed(sampler: Sampler) -> float:
    """Return the part of the epoch that has been drawn."""
    assert sampler.order is not None, "a run goes over samples in an order"
    return sampler.order.passed


class Run:
    """Iterate over it to run it; it yields a `Report` after each iteration.

    `validate` returns the objective on held-out samples; without it, the mean objective
    of the batches of an epoch, each before it is learned from, stands for it. A run
    that goes on from a checkpoint gets the `progress` that was saved with it. While it
    is `settled`, the state holds all that is known, and can be saved.
    """

    settled = True

    def __init__(
        self,
        solver: Factorization,
        reader: Reader,
        rule: StopRule,
        trace: Trace,
        validate: Callable[[], float] | None = None,
        progress: Progress | None = None,
    ) -> None:
        order = solver.state.sampler.order
        assert order is not None, "a run goes over samples in an order"
        self.solver = solver
        self.reader = reader
        self.rule = rule
        self.trace = trace
        self.validate = validate
        self.progress = progress or Progress()
        self.n_batches = order.n_batches
        self._mask_seconds = 0.0

    def stop(self, reason: str) -> None:
        """End the run after this iteration."""
        self.progress.stop_reason = reason

    def settle(self) -> None:
        """Let the state hold all that is known."""

    def hurry(self) -> None:
        """Let the state hold all that is known before long: somebody waits for it."""

    def complete(self) -> AbstractContextManager[None]:
        """Let the state hold all that a checkpoint needs, for as long as that takes."""
        return nullcontext()

    @property
    def workers(self) -> list[WorkerProgress]:
        """The workers that share the samples; none if all is done here."""
        return []

    @property
    def stop_reason(self) -> str:
        """Why the run ended, or will after this iteration; empty if it goes on."""
        return self.progress.stop_reason

    def _draws(self) -> Iterator[Draw]:
        """Draw the iterations to come, as far ahead as the reader wants them."""
        if self.stop_reason:  # the run that is resumed had ended
            return
        schedule, state = self.solver.settings.schedule, self.solver.state
        sampler, t = state.sampler.copy(), state.n_steps
        n_epochs = self.progress.n_epochs_done
        while n_epochs < self.rule.n_epochs:
            start = time.perf_counter()
            t += 1
            done = (n_epochs + _passed(sampler)) / self.rule.n_epochs
            draw = sampler.draw(schedule.reduction_at(done), state.pace.pieces_at(t))
            n_epochs += draw.ends_epoch
            self._mask_seconds = time.perf_counter() - start
            yield draw

    def __iter__(self) -> Generator[Report]:
        reader = self.reader
        start = time.perf_counter()
        for draw, batch in read_ahead(reader.read, self._draws(), reader.depth):
            elapsed = time.perf_counter() - start
            drawing = min(elapsed, self._mask_seconds)
            waited = {"mask": drawing, "read": elapsed - drawing}
            objective = record_step(self.solver, batch, draw.mask, self.trace, waited)
            yield self._note(draw, objective)
            if self.stop_reason:
                return
            start = time.perf_counter()

    def _note(self, draw: Draw, objective: float) -> Report:
        """Note that the iteration of a draw is done."""
        progress, n_samples = self.progress, len(draw.rows)
        self.solver.state.sampler = draw.after
        progress.n_done += 1
        progress.n_samples += n_samples
        progress.total += objective * n_samples
        epoch = progress.n_epochs_done + (_passed(draw.after) or 1)
        self.trace.amend(epoch=epoch)
        if draw.ends_epoch:
            self._end_epoch()
        if progress.n_epochs_done == self.rule.n_epochs and not self.stop_reason:
            self.stop(f"n_epochs={self.rule.n_epochs} epochs are done")
        left = round((self.rule.n_epochs - epoch) * self.n_batches)
        done = progress.n_done
        return Report(done, done + left, n_samples, objective, draw.ends_epoch)

    def _end_epoch(self) -> None:
        progress = self.progress
        progress.n_epochs_done += 1
        mean = progress.total / progress.n_samples
        progress.n_samples, progress.total = 0, 0.0
        if self.validate is not None:
            progress.objective = self.validate()
            self.trace.amend(validation_objective=progress.objective)
        else:
            progress.objective = mean
        if progress.objective < progress.best * (1 - self.rule.tol):
            progress.best = progress.objective
            progress.epochs_without_gain = 0
            return
        progress.epochs_without_gain += 1
        if self.rule.tol > 0 and progress.epochs_without_gain >= self.rule.patience:
            kind = "batches" if self.validate is None else "held-out samples"
            self.stop(
                f"the objective on {kind} did not fall by tol={self.rule.tol:g} "
                f"(relative) in patience={self.rule.patience} epochs"
            )
