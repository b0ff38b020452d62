"""Matrices that may not fit in memory, read by rows."""

from somf.sources.base import ArraySource, Batch, SampleSource, Source
from somf.sources.chunked import ChunkCache, DaskSource, HDF5Source, ZarrSource
from somf.sources.mapped import MappedSource
from somf.sources.nifti import NiftiSource
from somf.sources.opening import as_source, open_source
from somf.sources.patches import PatchSource
from somf.sources.sparse import SparseSource
from somf.sources.stacked import StackedSource

__all__ = [
    "ArraySource",
    "Batch",
    "ChunkCache",
    "DaskSource",
    "HDF5Source",
    "MappedSource",
    "NiftiSource",
    "PatchSource",
    "SampleSource",
    "Source",
    "SparseSource",
    "StackedSource",
    "ZarrSource",
    "as_source",
    "open_source",
]
