"""Sources in memory that behave as if they were on a disk."""

import numpy as np

from somf.sources.base import read_batch


class Plain:
    """Somebody's source: nothing but what it must have."""

    def __init__(self, X):
        self.X, self.shape, self.dtype = X, X.shape, X.dtype

    def read(self, rows):
        return self.X[rows]


class Chunked(Plain):
    """Chunks in memory, and what was read of them."""

    feature_order = None
    in_memory = False

    def __init__(self, X, row_chunk, feature_chunk):
        super().__init__(X)
        self.row_chunks = np.append(np.arange(0, len(X), row_chunk), len(X))
        self.feature_chunk = feature_chunk
        self.log = []

    def read(self, rows):
        self.log.append((rows, np.arange(self.shape[1])))
        return super().read(rows)

    def read_features(self, rows, features):
        self.log.append((rows, features))
        return self.X[np.ix_(rows, features)]


def read_all(reader, draw):
    """Stands in for `Reader.read`, and reads the features that are hidden too."""
    return read_batch(reader.source, draw.rows, reader.wanted)
