"""Progress of a command on the error stream: a bar on a terminal, else plain lines."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from somf.progress import Lines


class SampleProgress:
    """Samples done, of all samples; call it with both numbers."""

    def __init__(self, what: str) -> None:
        self.what = what
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

    def __call__(self, done: int, total: int) -> None:
        """Show how far it is."""
        if not sys.stderr.isatty():
            share = 100 * done / total
            self._lines.show(f"{self.what}: {done} of {total} samples ({share:.0f} %)")
            return
        if self._bar is None:
            self._open(total)
        self._bar.update(self._task, completed=done)

    def _open(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn(self.what),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("samples"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("", total=total)
        self._bar.start()
