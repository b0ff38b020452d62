"""Checkpoints of a run: written in time, never half, found again."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

logger = logging.getLogger("somf")

KEEP = 2  # the newest may be damaged by what made the run fail
NAME = "checkpoint-{:09d}.safetensors"
PATTERN = "checkpoint-[0-9]*.safetensors"
UNFINISHED = (f".{PATTERN}.*", ".tmp??????")  # ours, and those of safetensors from 0.8


class Interrupted(KeyboardInterrupt):
    """A signal ended a fit after an iteration, and a checkpoint was written."""

    def __init__(self, number: int, path: Path | None, command: str = "") -> None:
        self.signal = number
        self.path = path
        name = signal.Signals(number).name
        where = "No checkpoint could be written."
        if path is not None:
            command = command or f"SOMF.resume({str(path)!r}, X)"
            where = f"The checkpoint {path} continues it: {command}"
        super().__init__(f"The fit was stopped by {name}. {where}")


class Checkpoints:
    """The last two checkpoints of a run, in a folder.

    Parameters
    ----------
    folder : path
        Made if it does not exist.
    minutes : float
        Time after which the next one is due.
    steps : int or None
        Iterations after which the next one is due, whatever the time.
    """

    def __init__(
        self, folder: str | os.PathLike[str], minutes: float, steps: int | None = None
    ) -> None:
        self.folder = Path(folder)
        self.seconds = 60 * minutes
        self.steps = steps
        self._last_time = time.monotonic()
        self._last_step: int | None = None

    def begin(self, fresh: bool) -> None:
        """Make the folder, and refuse to start a fresh run over an old one."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(
                f"checkpoint={str(self.folder)!r} is a file; it must be a folder, or "
                "a name for a new one."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        if fresh and find(self.folder):
            raise ValueError(
                f"checkpoint={str(self.folder)!r} holds checkpoints of another run. "
                "SOMF.resume continues it; name another folder, or delete this one, to "
                "start anew."
            )
        for pattern in UNFINISHED:  # by a process that was killed
            for rest in self.folder.glob(pattern):
                rest.unlink(missing_ok=True)

    def after_step(
        self,
        step: int,
        write: Callable[[Path], None],
        *,
        last: bool,
        signal: int | None,
    ) -> None:
        """Write a checkpoint if one is due, at the end, and when a signal came."""
        if not (last or signal is not None or self.due(step)):
            return
        path = self.write(step, write)
        if signal is not None and not last:
            raise Interrupted(signal, path)

    def due(self, step: int) -> bool:
        """Whether it is time for one after iteration `step`."""
        if self._last_step is None:
            self._last_step = step - 1
        waited = time.monotonic() - self._last_time
        many = self.steps is not None and step - self._last_step >= self.steps
        return many or waited >= self.seconds

    def write(self, step: int, write: Callable[[Path], None]) -> Path | None:
        """Let `write` make the checkpoint of iteration `step`; returns where it is.

        A disk that is full does not end a run of hours: the checkpoint before stays,
        a warning tells, and None is returned.
        """
        self._last_time, self._last_step = time.monotonic(), step
        path = self.folder / NAME.format(step)
        try:
            write(path)
        except OSError as error:
            warnings.warn(
                f"The checkpoint {path} could not be written ({error}). The run goes "
                "on; free some space before the next one is due.",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        logger.info("Checkpoint %s written.", path)
        for old in find(self.folder)[KEEP:]:
            old.unlink(missing_ok=True)
        return path


def find(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the checkpoints of a folder, the newest first; none if there is none."""
    return sorted(Path(folder).glob(PATTERN), reverse=True)


def read_newest(path: str | os.PathLike[str], read: Callable[[Path], Any]) -> Any:
    """Read the newest checkpoint that is whole; warn if it is not the very newest."""
    found = find(path) if Path(path).is_dir() else [Path(path)]
    if not found:
        raise FileNotFoundError(f"{os.fspath(path)} holds no checkpoint.")
    for i, candidate in enumerate(found):
        try:
            return read(candidate)
        except ValueError as error:
            if i + 1 == len(found):
                raise
            warnings.warn(
                f"{error} Going on from {found[i + 1]}.", RuntimeWarning, stacklevel=3
            )
    raise AssertionError("unreachable")


class Signals:
    """The signal that asked for an end, if one did."""

    received: int | None = None

    def _note(self, number: int, frame: Any) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice: at once
        self.received = number


@contextmanager
def catch_signals(wanted: bool) -> Iterator[Signals]:
    """Note SIGINT and SIGTERM instead of dying of them; only the main thread can."""
    signals = Signals()
    main = threading.current_thread() is threading.main_thread()
    if not (wanted and main):
        yield signals
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signals._note) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
