"""Features in another order than they are stored in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.sources.base import Indices, Source

Array = NDArray[Any]


class ReorderedSource(Source):
    """The columns `columns` of a source, in that order."""

    def __init__(
        self, source: Source, columns: Indices, feature_order: Indices | None = None
    ) -> None:
        self.source = source
        self.columns = columns
        self.feature_order = feature_order
        self.feature_key = source.feature_key
        self.shape = (source.shape[0], len(columns))
        self.dtype = source.dtype
        self.row_chunks = source.row_chunks

    def read(self, rows: Indices) -> Array:
        """Return the rows as a new C-ordered array."""
        return np.ascontiguousarray(self.source.read(rows)[:, self.columns])


def align_features(source: Source, wanted: Indices | None) -> Source:
    """Return the source with features in the order `wanted`; None is the original."""
    here = source.feature_order
    if (here is None and wanted is None) or (
        here is not None and wanted is not None and np.array_equal(here, wanted)
    ):
        return source
    place = np.arange(source.shape[1])  # of each original feature
    if here is not None:
        place[here] = np.arange(source.shape[1])
    return ReorderedSource(source, place if wanted is None else place[wanted], wanted)
