"""A whole run: epochs of mini-batches until a reason to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from somf.sampling import SampleOrder
from somf.solver.iteration import Factorization
from somf.solver.trace import Trace
from somf.sources.base import Batch, SampleSource, read_batch


@dataclass(frozen=True)
class StopRule:
    """When a run ends; a full epoch is always made."""

    n_epochs: int
    tol: float = 0.0
    patience: int = 2


@dataclass(frozen=True)
class Report:
    """What is known after an iteration."""

    step: int
    n_steps_planned: int
    objective: float
    ends_epoch: bool


def record_step(solver: Factorization, batch: Batch, trace: Trace) -> float:
    """Make one iteration and add its row to the trace; return its objective."""
    state = solver.state
    start = time.perf_counter()
    coded = solver.step(batch)
    elapsed = time.perf_counter() - start
    trace.append(
        step=state.n_steps,
        time=trace.last("time") + elapsed,
        objective=coded.objective,
        density=np.count_nonzero(coded.codes) / coded.codes.size,
        reduction=coded.seen.mask.scale,
        replaced_atoms=state.n_replaced,
        **{f"seconds_{name}": s for name, s in solver.stopwatch.seconds.items()},
    )
    return coded.objective


class Run:
    """Iterate over it to run it; it yields a `Report` after each iteration.

    `validate` returns the objective on held-out samples; without it, the mean objective
    of the batches of an epoch, each before it is learned from, stands for it.
    """

    def __init__(
        self,
        solver: Factorization,
        source: SampleSource,
        order: SampleOrder,
        rule: StopRule,
        trace: Trace,
        validate: Callable[[], float] | None = None,
    ) -> None:
        self.solver = solver
        self.source = source
        self.order = order
        self.rule = rule
        self.trace = trace
        self.validate = validate
        self.n_epochs_done = 0
        self.objective = np.inf  # of the last epoch
        self.stop_reason = ""
        self._best = np.inf
        self._epochs_without_gain = 0

    def stop(self, reason: str) -> None:
        """End the run after this iteration."""
        self.stop_reason = reason

    def __iter__(self) -> Iterator[Report]:
        order, trace = self.order, self.trace
        n_planned = self.rule.n_epochs * order.n_batches
        for done in range(n_planned):
            self.solver.progress = done / n_planned
            rows = order.draw(self.solver.state.rng)
            batch = read_batch(self.source, rows)
            objective = record_step(self.solver, batch, trace)
            trace.amend(epoch=(done + 1) / order.n_batches)
            if order.at_epoch_end:
                self._end_epoch()
            yield Report(done + 1, n_planned, objective, order.at_epoch_end)
            if self.stop_reason:
                return
        self.stop_reason = f"n_epochs={self.rule.n_epochs} epochs are done"

    def _end_epoch(self) -> None:
        self.n_epochs_done += 1
        if self.validate is not None:
            self.objective = self.validate()
            self.trace.amend(validation_objective=self.objective)
        else:
            self.objective = self.trace.tail_mean("objective", self.order.n_batches)
        if self.objective < self._best * (1 - self.rule.tol):
            self._best = self.objective
            self._epochs_without_gain = 0
            return
        self._epochs_without_gain += 1
        if self.rule.tol > 0 and self._epochs_without_gain >= self.rule.patience:
            kind = "batches" if self.validate is None else "held-out samples"
            self.stop(
                f"the objective on {kind} did not fall by tol={self.rule.tol:g} "
                f"(relative) in patience={self.rule.patience} epochs"
            )
