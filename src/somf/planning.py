"""What a fit will need, told before it runs: memory, reading, flops and time."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from sklearn.base import clone

from somf.choices import Choices, choose
from somf.estimator import SOMF
from somf.inputs import check_samples
from somf.memory import available_memory
from somf.parameters import check_parameters
from somf.reading import cache_bytes, reads_chunks, rows_read, sample_order
from somf.solver.products import TILE
from somf.sources.ahead import DEPTH
from somf.sources.base import ArraySource, Source
from somf.sources.mapped import MappedSource
from somf.threads import Team, resolve_n_threads

WARM_UP = 3  # iterations that compile, and allocate buffers


@dataclass(frozen=True)
class Plan:
    """What a fit will need; see :func:`plan`."""

    n_samples: int
    n_features: int
    n_components: int
    settings: dict[str, Any]
    reasons: dict[str, str]
    memory_bytes: int
    reading_bytes: int
    averages_bytes: int
    data_bytes: int
    read_bytes_per_epoch: int
    flops_per_iteration: int
    iterations_per_epoch: int
    seconds_per_epoch: float | None = None
    advice: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the plan in words."""
        flops = f"{self.flops_per_iteration:.2g}"
        lines = [
            f"{self.n_samples:,} samples of {self.n_features:,} features "
            f"({show_bytes(self.data_bytes)}), {self.n_components} components",
            f"memory beside the data: {show_bytes(self.memory_bytes)} at most, "
            f"{show_bytes(self.reading_bytes)} of it for what is read ahead",
            f"read in an epoch: {show_bytes(self.read_bytes_per_epoch)}",
            f"an epoch has {self.iterations_per_epoch:,} iterations of {flops} flops",
        ]
        if self.averages_bytes:
            lines.append(f"averages of samples: {show_bytes(self.averages_bytes)}")
        if self.seconds_per_epoch is not None:
            lines.append(f"an epoch takes about {show_time(self.seconds_per_epoch)}")
        lines += [
            f"{name}={value}: {self.reasons[name]}"
            for name, value in self.settings.items()
        ]
        return lines + self.advice

    def __str__(self) -> str:
        return "\n".join(self.lines())


def plan(X: Any, model: SOMF | None = None, *, seconds: float = 2.0) -> Plan:
    """Tell what ``model.fit(X)`` will need, and recommend settings.

    Parameters
    ----------
    X : what `fit` takes
    model : SOMF, default=None
        The estimator with its parameters; it is not changed. None is ``SOMF()``.
    seconds : float, default=2.0
        How long iterations are tried to estimate the time of an epoch, compilation not
        counted; 0 does not try.

    Returns
    -------
    plan : Plan
        Print it, or look at its attributes.

    Examples
    --------
    >>> import numpy as np, somf
    >>> X = np.random.default_rng(0).standard_normal((1000, 5000), dtype=np.float32)
    >>> told = somf.plan(X, somf.SOMF(20, alpha=1.0), seconds=0)
    >>> told.settings["reduction"], told.iterations_per_epoch
    (5.0, 5)
    """
    model = clone(model or SOMF())
    model.set_params(checkpoint=None, progress=False)
    parameters = model.get_params(deep=False)
    check_parameters(parameters)
    source = check_samples(model, X, reset=True)
    model._check_against(source)
    init = model.dict_init
    n_given = None if isinstance(init, str) else len(np.asarray(init))
    choices = choose(parameters, source, n_given)
    order = sample_order(source, choices, bool(model.shuffle))
    n_samples, n_features = source.shape
    row_bytes = n_features * source.dtype.itemsize
    data = n_samples * row_bytes
    n_rows: float = rows_read(source, choices, order.n_batches)
    if choices.reads_observed:
        n_rows /= choices.reduction
    averages = averages_bytes(parameters, choices, source)
    needed = memory_bytes(parameters, choices, source, order.mix)
    needed += averages if averages < available_memory() // 2 else 0
    took = None
    if seconds > 0 and needed < available_memory():
        took = _try(model, source, seconds)
    return Plan(
        n_samples=n_samples,
        n_features=n_features,
        n_components=choices.n_components,
        settings=_settings(parameters, choices),
        reasons=_reasons(parameters, choices, source),
        memory_bytes=needed,
        reading_bytes=reading_bytes(choices, source, order.mix),
        averages_bytes=averages,
        data_bytes=data,
        read_bytes_per_epoch=0 if source.in_memory else int(row_bytes * n_rows),
        flops_per_iteration=flops(parameters, choices, source),
        iterations_per_epoch=order.n_batches,
        seconds_per_epoch=None if took is None else took * order.n_batches,
        advice=_advice(parameters, source, data, needed),
    )


def memory_bytes(
    parameters: dict[str, Any], choices: Choices, source: Source, mix: int = 0
) -> int:
    """Return the bytes beside the data and the averages; docs/how-it-works.md."""
    n, p = source.shape
    k, b = choices.n_components, choices.batch_size
    q = p / choices.reduction
    whole = choices.dict_update == "all" or choices.reduction == 1
    masked = parameters["aggregation"] == "masked"
    numbers: float = 2 * p * k + 2 * k * k
    if choices.reduction > 1:
        numbers += (b + k) * q + (0 if whole else 2 * k * q)
    elif masked:
        numbers += 2 * k * p
    numbers += (16 if k <= 128 else 64) * (p if whole else q)
    if parameters["missing"] == "mask":
        numbers += b * k * k  # each sample has a Gram matrix of its own
    numbers += TILE * (b + k) * resolve_n_threads(parameters["n_threads"])
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


def _try(model: SOMF, source: Source, seconds: float) -> float:
    """Return the mean seconds of an iteration, reading included."""
    with Team(resolve_n_threads(model.n_threads)) as team:
        run = iter(model._new_run(team, source, None))
        for _ in islice(run, WARM_UP):
            pass
        n_done, elapsed = 0, 0.0
        start = time.perf_counter()
        for _ in run:
            n_done += 1
            elapsed = time.perf_counter() - start
            if elapsed > seconds:
                break
    if n_done == 0:  # a run of very few iterations
        return float(model.trace_["time"][-1] / len(model.trace_["time"]))
    return elapsed / n_done


def _settings(parameters: dict[str, Any], choices: Choices) -> dict[str, Any]:
    return {
        "reduction": choices.reduction,
        "batch_size": choices.batch_size,
        "code_estimator": parameters["code_estimator"],
        "aggregation": parameters["aggregation"],
        "dict_update": choices.dict_update,
        "mask_block": choices.mask_block,
    }


def _reasons(
    parameters: dict[str, Any], choices: Choices, source: Source
) -> dict[str, str]:
    """Say why each setting is what it is."""
    n_observed = round(source.shape[1] / choices.reduction)
    chosen = {
        "reduction": f"codes come from {n_observed:,} features at a time, enough for "
        f"{choices.n_components} components",
        "batch_size": "a pass over the atoms is then a small part of an iteration",
        "code_estimator": "no memory of samples, and the fastest on all data tried",
        "aggregation": "all features are kept up to date",
        "dict_update": "every iteration improves every feature"
        if choices.dict_update == "all"
        else "the paper's partial update",
        "mask_block": "whole chunks of features are read"
        if choices.reads_observed
        else "single features mix best in memory",
    }
    default = SOMF().get_params(deep=False)
    for name in chosen:
        if name in parameters and parameters[name] != default[name]:
            chosen[name] = "as you set it"
    return chosen


def _advice(
    parameters: dict[str, Any], source: Source, data: int, needed: int
) -> list[str]:
    """Return what a user might change."""
    advice = []
    free = available_memory()
    if needed > free:
        advice.append(
            f"This needs {show_bytes(needed)} of memory and {show_bytes(free)} are "
            "free: choose fewer components or smaller batches, and store data that are "
            "in chunks in chunks of fewer rows."
        )
    larger = not source.in_memory and data > free
    if larger and source.feature_chunk and parameters["aggregation"] != "masked":
        advice.append(
            "The data do not fit in memory and are stored in chunks of features: "
            'aggregation="masked" reads only the observed features of each batch.'
        )
    elif larger and not source.feature_chunk:
        advice.append(
            "The data do not fit in memory and every iteration reads whole rows. If "
            "reading takes longer than computing, `somf convert` rewrites them in "
            'chunks of features, and aggregation="masked" reads one in '
            "`reduction` of them."
        )
    return advice


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
