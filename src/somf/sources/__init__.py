"""Matrices that may not fit in memory, read by rows."""

from somf.sources.base import Batch, SampleSource, as_source
from somf.sources.patches import PatchSource

__all__ = ["Batch", "PatchSource", "SampleSource", "as_source"]
