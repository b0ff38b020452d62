"""How a fit goes over a source: in which order, and what of it is read and kept."""

from __future__ import annotations

import logging

from somf.choices import Choices
from somf.memory import available_memory
from somf.sampling import SampleOrder
from somf.solver.run import Reader
from somf.sources.base import Requirements, Source
from somf.sources.chunked import ChunkCache

logger = logging.getLogger("somf")

# Bytes of samples that are mixed where rows are read in chunks. Twice as much is kept:
# a batch may reach into the chunks that come next.
MIX_BYTES = 2**28


def reads_chunks(source: Source, choices: Choices) -> bool:
    """Whether whole chunks of rows are read, and kept until all their rows are used."""
    return source.row_chunks is not None and not choices.reads_observed


def sample_order(source: Source, choices: Choices, shuffle: bool) -> SampleOrder:
    """Return the order of samples that suits the way they are stored.

    Any permutation where rows can be read one by one; where they come in chunks,
    shuffled chunks, of which as many as fit in memory are mixed. If an iteration reads
    the observed features alone, chunks are not mixed: they would be read once for every
    batch that takes a sample of them.
    """
    mix = 0
    if reads_chunks(source, choices):
        mix = max(choices.batch_size, MIX_BYTES // source.row_bytes)
    return SampleOrder(
        source.shape[0], choices.batch_size, shuffle, source.row_chunks, mix
    )


def cache_bytes(source: Source, mix: int) -> int:
    """Return the bytes that the chunks of two mixed groups may take."""
    n_kept = min(2 * (mix + source.longest_chunk), source.shape[0])
    return n_kept * source.row_bytes


def rows_read(source: Source, choices: Choices, n_batches: int) -> int:
    """Return how many rows an epoch reads: long chunks are read for every batch."""
    if source.row_chunks is None or not choices.reads_observed:
        return source.shape[0]
    return max(source.shape[0], n_batches * source.longest_chunk)


def make_reader(
    source: Source, choices: Choices, order: SampleOrder, wanted: Requirements
) -> Reader:
    """Return the reader of the batches of a fit."""
    n_rows = rows_read(source, choices, order.n_batches)
    if n_rows > 1.5 * source.shape[0]:
        logger.warning(
            "Batches of %d samples read chunks of %d rows: %.1f times too much. Choose "
            "batch_size=%d or more.",
            choices.batch_size,
            source.longest_chunk,
            n_rows / source.shape[0],
            source.longest_chunk,
        )
    if reads_chunks(source, choices):
        n_bytes = cache_bytes(source, order.mix)
        if n_bytes > available_memory() // 2:
            logger.warning(
                "Chunks of %d rows take %.1f GB in memory, of which %.1f GB are free. "
                "Store the data in chunks of fewer rows: `somf convert` does.",
                source.longest_chunk,
                n_bytes / 1e9,
                available_memory() / 1e9,
            )
        source = ChunkCache(source, n_bytes)
    return Reader(source, wanted, choices.reads_observed)
