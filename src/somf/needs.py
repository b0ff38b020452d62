"""What a fit needs: bytes of memory, and flops of an iteration; sizes in words."""

from __future__ import annotations

from typing import Any

from somf.choices import Choices
from somf.reading import cache_bytes, reads_chunks
from somf.solver.dictionary import residual_rows
from somf.solver.products import SAMPLES, TILE
from somf.sources.ahead import DEPTH
from somf.sources.base import ArraySource, Source
from somf.sources.mapped import MappedSource
from somf.threads import resolve_n_threads


def memory_bytes(
    parameters: dict[str, Any], choices: Choices, source: Source, mix: int = 0
) -> int:
    """Return the bytes beside the data and the averages; docs/how-it-works.md."""
    n, p = source.shape
    k, b = choices.n_components, choices.batch_size
    q = p / choices.reduction
    n_threads = resolve_n_threads(parameters["n_threads"])
    whole = choices.dict_update == "all" or choices.reduction == 1
    masked = parameters["aggregation"] == "masked"
    numbers: float = 2 * p * k + 2 * k * k
    if choices.reduction > 1:
        rows = k + (min(b, SAMPLES * n_threads) if whole else b + 2 * k)
        numbers += rows * q
    elif masked:
        numbers += 2 * k * p
    numbers += residual_rows(k) * (p if whole else q)
    if parameters["missing"] == "mask":
        numbers += b * k * k  # each sample has a Gram matrix of its own
    numbers += TILE * (b + k) * n_threads
    size = int(source.dtype.itemsize * numbers) + 8 * (2 * p + n)
    size += reading_bytes(choices, source, mix)
    if isinstance(source, MappedSource) and source.in_place:
        size += n * p * source.dtype.itemsize  # its pages, which the system can reclaim
    return size + (8 * p if masked else 0)


def reading_bytes(choices: Choices, source: Source, mix: int = 0) -> int:
    """Return the bytes of batches that wait or are in use, and of chunks kept."""
    if isinstance(source, ArraySource | MappedSource) and source.in_place:
        return 0
    n_features = source.shape[1]
    width = n_features / choices.reduction if choices.reads_observed else n_features
    depth = 0 if source.in_memory else DEPTH
    size = int((depth + 1) * choices.batch_size * width * source.dtype.itemsize)
    if reads_chunks(source, choices):
        size += cache_bytes(source, mix)
    return size


def averages_bytes(parameters: dict[str, Any], choices: Choices, source: Source) -> int:
    """Return the bytes of what the estimators "averaged" and "gram" remember."""
    k = choices.n_components
    numbers = {"averaged": k * k + 2 * k, "gram": 2 * k}
    each = numbers.get(parameters["code_estimator"], 0)
    return source.shape[0] * each * source.dtype.itemsize


def flops(parameters: dict[str, Any], choices: Choices, source: Source) -> int:
    """Return the flops of the products of an iteration, with dense codes."""
    p, k, b = source.shape[1], choices.n_components, choices.batch_size
    q = p / choices.reduction
    everywhere = choices.dict_update == "all"
    coded = p if parameters["code_estimator"] == "exact" else q
    added = q if parameters["aggregation"] == "masked" else p
    code = 2 * coded * k * b + 2 * q * k * k
    return int(code + 2 * added * k * b + 2 * (p if everywhere else q) * k * k)


def show_bytes(n: float) -> str:
    """Return a size in words."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"


def show_time(seconds: float) -> str:
    """Return a duration in words."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.2g} s"
