"""The page of a run while it is going: trace.csv and report.html, kept up to date."""

from __future__ import annotations

import time
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from somf.cli.runs import RunFolder, write_trace, written_beside

if TYPE_CHECKING:
    from somf.estimator import SOMF

EVERY = 5.0  # seconds
SHARE = 0.03  # of the time of a run that its page may take


class LivePage:
    """Observes a fit, and writes its trace and its page now and then.

    The page begins some seconds after the first iteration, which may compile: a run
    that is over by then has none. `soon` writes it at once, for somebody who waits.
    """

    def __init__(self, folder: RunFolder, soon: bool = False) -> None:
        self.folder = folder
        self.written = False
        self._soon = soon
        self._next: float | None = None
        self._wanted = all(find_spec(name) for name in ("jinja2", "matplotlib"))
        self._model: SOMF | None = None

    def __call__(self, model: SOMF, report: Any) -> None:
        """Write both files if it is time."""
        self._model = model
        start = time.monotonic()
        if self._next is None:
            self._next = start if self._soon else start + EVERY
        if start < self._next:
            return
        if self._wanted:
            import somf.report  # noqa: F401  not part of what a page costs

        cost = -time.thread_time()
        self._try(self._write)
        cost += time.thread_time()
        self._next = time.monotonic() + max(EVERY, cost / SHARE)

    def stop(self) -> None:
        """Tell on the page, if there is one, that the run was stopped."""
        reason = f"to continue: {self.folder.resume_command}"
        if self.written:
            self._try(lambda: self._write("stopped", reason))

    def finish(self) -> None:
        """Put the report of the finished run in the place of the page."""
        from somf.cli.report import write_report

        model = self._model
        if self.written and model is not None:
            self._try(lambda: write_report(self.folder, model, "finished"))

    def _write(self, status: str = "running", reason: str = "") -> None:
        assert self._model is not None, "called with a model"
        write_trace(self.folder.trace, self._model.trace_)
        if not self._wanted:
            return
        from somf.report import facts_of, make_report

        facts = facts_of(
            self._model, name=self.folder.name, status=status, stop_reason=reason
        )
        with written_beside(self.folder.report) as beside:
            make_report(facts, brief=True).save(beside)
        self.written = True

    def _try(self, write: Any) -> None:
        """Write; a page that fails must not end a run of hours."""
        try:
            write()
        except Exception as error:
            self._wanted = False
            warnings.warn(
                f"The page of the run could not be written ({error}). The run itself "
                "is not affected; somf report writes it later.",
                RuntimeWarning,
                stacklevel=2,
            )
