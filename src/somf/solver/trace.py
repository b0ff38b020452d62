"""What a run reports: where the time went, and how well it does."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

PHASES = ("mask", "read", "gather", "code", "aggregate", "dictionary")
COLUMNS = (
    "step",
    "epoch",
    "time",
    "objective",
    "density",
    "reduction",
    "replaced_atoms",
    "validation_objective",
    *(f"seconds_{phase}" for phase in PHASES),
)


class Stopwatch:
    """Seconds of each phase of an iteration."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start a new iteration."""
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what runs inside."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start

    def move(self, seconds: float, source: str, target: str) -> None:
        """Count seconds of one phase for another, whose work was done inside of it."""
        self.seconds[source] -= seconds
        self.seconds[target] += seconds


class Trace:
    """A table with a row for each iteration, 8 bytes a number."""

    def __init__(self) -> None:
        self._columns = {name: array("d") for name in COLUMNS}

    def __len__(self) -> int:
        return len(self._columns["step"])

    def append(self, **values: float) -> None:
        """Add a row; what is not given is NaN."""
        for name, column in self._columns.items():
            column.append(values.get(name, np.nan))

    def amend(self, **values: float) -> None:
        """Change values of the last row."""
        for name, value in values.items():
            self._columns[name][-1] = value

    def last(self, name: str, default: float = 0.0) -> float:
        """Return the last value of a column."""
        column = self._columns[name]
        return column[-1] if column else default

    def as_dict(self) -> dict[str, NDArray[np.float64]]:
        """Return the columns as arrays (what pandas.DataFrame takes)."""
        return {name: np.array(column) for name, column in self._columns.items()}

    def restore(self, columns: dict[str, NDArray[np.float64]]) -> None:
        """Take over columns from `as_dict`."""
        for name, values in columns.items():
            self._columns[name] = array("d", values.tolist())
