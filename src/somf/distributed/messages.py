"""What client and workers tell one another."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.choices import Choices
from somf.problem import Problem
from somf.sampling import Mask
from somf.solver.iteration import Settings
from somf.sources.base import Indices, Requirements

Array = NDArray[Any]
Memory = dict[str, Array] | None  # what estimators remember of samples, by name


@dataclass(frozen=True)
class Setup:
    """What a worker needs to begin with its rows, beside them."""

    problem: Problem
    settings: Settings
    choices: Choices
    wanted: Requirements
    dtype: np.dtype[Any]
    shuffle: bool
    first_row: int
    n_rows: int
    n_threads: int | None  # None: as many as Dask gave to the worker
    alone: bool  # whether it holds all rows, and so all of B


@dataclass(frozen=True)
class Features:
    """Observed features on their way: 4 bytes each, None if all are observed."""

    which: NDArray[np.int32] | None
    n_features: int
    scale: float

    @classmethod
    def of(cls, mask: Mask) -> Features:
        """Pack a mask."""
        which = None if mask.observes_all else mask.features.astype(np.int32)
        return cls(which, mask.n_features, mask.scale)

    def mask(self) -> Mask:
        """Unpack it."""
        if self.which is None:
            return Mask(np.arange(self.n_features), self.n_features, self.scale)
        return Mask(self.which.astype(np.intp), self.n_features, self.scale)


@dataclass(frozen=True)
class Visit:
    """One local iteration: samples of the worker, and what is observed of them."""

    rows: Indices
    features: Features
    weight: float
    total: int  # samples of all workers in this iteration
    n_steps: int  # iterations before it


@dataclass(frozen=True)
class Preview:
    """Samples of the next exchange, which a worker reads before their turn comes."""

    rows: Indices
    features: Features | None  # None if all features are read, whatever is observed


@dataclass(frozen=True)
class News:
    """What has changed since the worker last heard of the dictionary."""

    which: NDArray[np.int32] | None  # features; None means all
    D: Array  # (k, q)
    G: Array | None = None
    replaced: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))
    atoms: Array | None = None  # all features of them; None if they are known

    def again(self) -> News:
        """Return what a lane that knows the dictionary must still hear: little."""
        nothing = self.D[:, :0].copy()  # a view would keep all of it
        return News(np.empty(0, np.int32), nothing, None, self.replaced)


@dataclass(frozen=True)
class Task:
    """What a worker does between two exchanges."""

    number: int  # of the exchange
    news: News | None
    visits: tuple[Visit, ...]
    whole: bool  # whether B is told on all features, not on those of the last mask
    ahead: Preview | None = None  # None if there is nothing to read ahead

    def again(self) -> Task:
        """Return it for a worker that has the dictionary of now."""
        news = self.news
        if news is not None:
            news = news.again() if len(news.replaced) else None
        return replace(self, news=news, ahead=None)


@dataclass(frozen=True)
class Answer:
    """What a worker found out; B on the features of the exchange."""

    number: int
    B: Array | None  # None if there was no sample
    C: Array
    used: NDArray[np.bool_]
    losses: tuple[float, ...]  # sum of the objectives, for each visit
    n_nonzero: tuple[int, ...]


@dataclass(frozen=True)
class Failure:
    """An error on a worker, in words that a user of the client understands."""

    kind: str  # of the exception
    message: str

    def raise_(self) -> None:
        """Raise it here."""
        raise KINDS.get(self.kind, RuntimeError)(self.message)

    @classmethod
    def of(cls, error: BaseException, where: str) -> Failure:
        """Put an error into words; what is raised is the nearest of the known kinds."""
        names = [kind.__name__ for kind in type(error).__mro__]
        kind = next((name for name in names if name in KINDS), "RuntimeError")
        text = str(error)
        if kind == "RuntimeError" or not text:  # its name tells more
            text = f"{type(error).__name__}: {text}"
        return cls(kind, f"{where}: {text}")


KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (ValueError, TypeError, FileNotFoundError, OSError, MemoryError)
}
