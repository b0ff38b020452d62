"""Progress of a run for people: a bar in the terminal, scikit-learn's callbacks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

from somf.rates import WorkerRates
from somf.solver.run import Report, WorkerProgress

try:  # scikit-learn 1.9 and later
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Stands in for scikit-learn's callbacks where it has none."""

    def with_callbacks(method: Any) -> Any:
        """Return the method as it is."""
        return method


__all__ = [
    "CallbackSupportMixin",
    "CountProgress",
    "EpochCallbacks",
    "ProgressBar",
    "observed_by",
    "tell_observers",
    "with_callbacks",
]

Observer = Callable[[Any, Report], None]
_OBSERVERS: ContextVar[tuple[Observer, ...]] = ContextVar("somf_observers", default=())


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Let `observer(model, report)` be called after each iteration of fits inside.

    It sees the model as it is: its trace, objective and components so far. It must not
    change it.

    >>> import numpy as np
    >>> from somf import SOMF
    >>> steps = []
    >>> with observed_by(lambda model, report: steps.append(report.step)):
    ...     model = SOMF(2, batch_size=5, n_epochs=1).fit(np.eye(10))
    >>> steps
    [1, 2]
    """
    token = _OBSERVERS.set((*_OBSERVERS.get(), observer))
    try:
        yield
    finally:
        _OBSERVERS.reset(token)


def tell_observers(model: Any, report: Report) -> None:
    """Call the observers of this fit."""
    for observer in _OBSERVERS.get():
        observer(model, report)


PATIENCE = 2.0  # seconds that people wait before they ask whether it is going


class Lines:
    """Plain lines on the error stream, at most one in `EVERY` seconds, and the last."""

    EVERY = 5.0  # seconds

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self._next = 0.0
        self._waiting: str | None = None

    def show(self, text: str) -> None:
        """Print the line if it is time, or keep it."""
        elapsed = time.perf_counter() - self.start
        self._waiting = f"{text}, {elapsed:.0f} s"
        if elapsed >= self._next:
            self.flush()
            self._next = elapsed + self.EVERY

    def flush(self) -> None:
        """Print the line that was kept, if any."""
        if self._waiting is not None:
            print(self._waiting, file=sys.stderr, flush=True)
        self._waiting = None


class Display:
    """A bar on a terminal and in a notebook, elsewhere plain lines.

    `columns` are what stands between the bar and the times, in rich's words. `wanted`
    is True, False, or "auto": only if the error stream is a terminal. Nothing is shown
    in the first `delay` seconds.
    """

    def __init__(
        self, name: str, *columns: str, wanted: bool | str = True, delay: float = 0.0
    ) -> None:
        self.wanted = sys.stderr.isatty() if wanted == "auto" else bool(wanted)
        self.delay = delay
        self._start = time.perf_counter()
        self.name = name
        self.columns = columns
        self._lines = Lines()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lines.flush()
        if self._bar is not None:
            self._bar.stop()

    def show(
        self,
        done: int,
        total: int,
        line: str,
        notes: Sequence[str] = (),
        **fields: str,
    ) -> None:
        """Bring the bar up to date with `fields` for its columns, or show the line.

        `notes` are lines under the bar, or the end of the line.
        """
        if not self.wanted or time.perf_counter() - self._start < self.delay:
            return
        if not _has_bars():
            self._lines.show("; ".join([line, *notes]))
            return
        if self._bar is None:
            self._open(total, fields)
        self._bar.notes = notes
        self._bar.update(self._task, completed=done, **fields)

    def _open(self, total: int, fields: dict[str, str]) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.text import Text

        class Bars(Progress):
            notes: Sequence[str] = ()

            def get_renderables(self) -> Iterator[Any]:
                yield from super().get_renderables()
                yield from (Text(f"     {note}") for note in self.notes)

        self._bar = Bars(
            TextColumn(self.name),
            BarColumn(),
            *(TextColumn(column) for column in self.columns),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("", total=total, **fields)
        self._bar.start()


def _has_bars() -> bool:
    """Whether the error stream shows a bar: a terminal does, and so does a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class CountProgress(Display):
    """How many things are done, of all of them; call it with both numbers."""

    def __init__(self, name: str, things: str = "samples", **settings: Any) -> None:
        count = f"{{task.completed:.0f}}/{{task.total:.0f}} {things}"
        super().__init__(name, count, **settings)
        self.things = things

    def __call__(self, done: int, total: int) -> None:
        """Show how far it is."""
        share = 100 * done / total
        line = f"{self.name}: {done} of {total} {self.things} ({share:.0f} %)"
        self.show(done, total, line)


class ProgressBar(Display):
    """Objective, samples per second and time left, once a run takes two seconds."""

    DELAY = PATIENCE

    def __init__(self, wanted: bool | str) -> None:
        super().__init__(
            "somf",
            "{task.percentage:3.0f}%",
            "objective {task.fields[objective]}",
            "{task.fields[speed]} samples/s",
            wanted=wanted,
            delay=self.DELAY,
        )
        self._mean = 0.0
        self._n_shown = 0
        self._n_samples = 0
        self._rates = WorkerRates()

    def follow(self, report: Report, workers: Sequence[WorkerProgress] = ()) -> None:
        """Take in what an iteration reports, and how far workers are, if there are."""
        # A running mean: single batches are noisy.
        self._n_shown += 1
        self._n_samples += report.n_samples
        rate = max(0.05, 1 / self._n_shown)
        self._mean += rate * (report.objective - self._mean)
        elapsed = time.perf_counter() - self._start
        step, total = report.step, report.n_steps_planned
        self.show(
            step,
            total,
            f"fit: iteration {step} of {total} ({100 * step / total:.0f} %), "
            f"objective {self._mean:.4g}",
            self._rates.follow(workers),
            objective=f"{self._mean:.4g}",
            speed=f"{self._n_samples / elapsed:,.0f}",
        )


class EpochCallbacks:
    """Tells scikit-learn's callbacks of the fit and of each epoch."""

    def __init__(self, estimator: Any, X: Any, y: Any, n_epochs: int) -> None:
        self.data = {"estimator": estimator, "X": X, "y": y}
        self._fit: Any = None
        self._epoch: Any = None
        if hasattr(estimator, "_init_callback_context"):
            self._fit = estimator._init_callback_context(max_subtasks=n_epochs)
            self._fit.call_on_fit_task_begin(**self.data)
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Call the hooks of the beginning of an epoch."""
        if self._fit is not None:
            self._epoch = self._fit.subcontext(task_name="epoch")
            self._epoch.call_on_fit_task_begin(**self.data)

    def end_epoch(self, attributes: dict[str, Any]) -> bool:
        """Call the hooks of the end of an epoch; returns whether one asks to stop."""
        return self._end(self._epoch, attributes)

    def end(self, attributes: dict[str, Any]) -> None:
        """Call the hooks of the end of the fit."""
        self._end(self._fit, attributes)

    def _end(self, context: Any, attributes: dict[str, Any]) -> bool:
        if context is None:
            return False
        stop = context.call_on_fit_task_end(
            **self.data, reconstruction_attributes=attributes
        )
        return bool(stop)
