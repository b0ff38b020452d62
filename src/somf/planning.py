"""What a fit will need, told before it runs: memory, reading, flops and time."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from sklearn.base import clone

from somf.choices import Choices, choose
from somf.distributed.costs import Network
from somf.distributed.needs import WorkersPlan, plan_workers
from somf.distributed.parts import PartedSource, part
from somf.estimator import SOMF
from somf.inputs import check_samples
from somf.memory import available_memory
from somf.needs import (
    averages_bytes,
    flops,
    memory_bytes,
    reading_bytes,
    show_bytes,
    show_time,
)
from somf.parameters import check_number, check_parameters
from somf.reading import rows_read, sample_order
from somf.solver.trace import PHASES
from somf.sources.base import Source
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
    workers: WorkersPlan | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the plan in words."""
        lines = [
            f"{self.n_samples:,} samples of {self.n_features:,} features "
            f"({show_bytes(self.data_bytes)}), {self.n_components} components",
        ]
        if self.workers is None:
            lines += self._lines_of_one()
        else:
            lines += self.workers.lines()
        lines += [
            f"{name}={value}: {self.reasons[name]}"
            for name, value in self.settings.items()
        ]
        return lines + self.advice

    def _lines_of_one(self) -> list[str]:
        flops = f"{self.flops_per_iteration:.2g}"
        lines = [
            f"memory beside the data: {show_bytes(self.memory_bytes)} at most, "
            f"{show_bytes(self.reading_bytes)} of it for what is read ahead",
            f"read in an epoch: {show_bytes(self.read_bytes_per_epoch)}",
            f"an epoch has {self.iterations_per_epoch:,} iterations of {flops} flops",
        ]
        if self.averages_bytes:
            lines.append(f"averages of samples: {show_bytes(self.averages_bytes)}")
        if self.seconds_per_epoch is not None:
            lines.append(f"an epoch takes about {show_time(self.seconds_per_epoch)}")
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def plan(
    X: Any,
    model: SOMF | None = None,
    *,
    seconds: float = 2.0,
    n_workers: int | None = None,
    bandwidth: float = Network.bandwidth,
    latency: float = Network.latency,
) -> Plan:
    """Tell what ``model.fit(X)`` will need, and recommend settings.

    ``reduction="auto"`` is told for the shape of X. A fit takes less if its first atoms
    show that most of a sample is in a few features.

    Parameters
    ----------
    X : what `fit` takes
    model : SOMF, default=None
        The estimator with its parameters; it is not changed. None is ``SOMF()``.
    seconds : float, default=2.0
        How long iterations are tried to estimate the time of an epoch, compilation not
        counted; 0 does not try.
    n_workers : int, default=None
        Tell what a fit on so many workers of a Dask cluster will need, machines like
        this one. None is a fit without a cluster.
    bandwidth, latency : float, default=1e9, 5e-4
        Bytes per second of the network of the client, and the seconds of a message.

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
    (5.0, 4)
    >>> told = somf.plan(X, somf.SOMF(20, alpha=1.0), seconds=0, n_workers=4)
    >>> told.workers.n_samples, told.workers.bytes_up
    (250, 81644)
    """
    model = clone(model or SOMF())
    model.set_params(checkpoint=None, progress=False)
    parameters = model.get_params(deep=False)
    check_parameters(parameters)
    source = check_samples(model, X, reset=True)
    model._check_against(source)
    init = model.dict_init
    n_given = None if isinstance(init, str) else len(np.asarray(init))
    check_number("bandwidth", bandwidth, 1)
    check_number("latency", latency, 0)
    shared = _share(X, source, n_workers)
    n_lanes = 1 if shared is None else shared.n_lanes
    choices = choose(parameters, source, n_given, n_workers=n_lanes)
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
    local = needed
    took = None
    if seconds > 0 and needed < available_memory():
        if shared is not None:  # what one of the workers does
            own = max(1, choices.batch_size // shared.n_lanes)
            model.set_params(batch_size=own, dict_update=choices.dict_update)
        took = _try(model, source, seconds) * order.n_batches
    advice = []
    told = None
    if shared is not None:
        network = Network(bandwidth, latency)
        phases = None if took is None else _phases(model)
        told = plan_workers(parameters, choices, shared, network, phases)
        took = told.seconds_per_epoch
        needed = max(told.memory_bytes, told.client_memory_bytes)
        if n_workers is not None and shared.n_lanes < n_workers:
            advice.append(
                f"The data come in {shared.n_lanes} pieces, so that {n_workers} "
                "workers are too many: store or rechunk them in more, of fewer rows."
            )
    return Plan(
        n_samples=n_samples,
        n_features=n_features,
        n_components=choices.n_components,
        settings=_settings(parameters, choices),
        reasons=_reasons(parameters, choices, source),
        memory_bytes=local,
        reading_bytes=reading_bytes(choices, source, order.mix),
        averages_bytes=averages,
        data_bytes=data,
        read_bytes_per_epoch=0 if source.in_memory else int(row_bytes * n_rows),
        flops_per_iteration=flops(parameters, choices, source),
        iterations_per_epoch=order.n_batches,
        seconds_per_epoch=took,
        advice=advice + _advice(parameters, source, data, needed),
        workers=told,
    )


def _share(X: Any, source: Source, n_workers: int | None) -> PartedSource | None:
    """Cut the data into pieces for workers, if there are any."""
    if n_workers is None:
        return None
    check_number("n_workers", n_workers, 1, integer=True)
    return part(X, source, n_workers)


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


def _phases(model: SOMF) -> dict[str, float]:
    """Return the mean seconds of each phase of the iterations that were tried."""
    trace = model.trace_
    first = min(WARM_UP, len(trace["time"]) - 1)
    return {name: float(trace[f"seconds_{name}"][first:].mean()) for name in PHASES}


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
        "dict_update": _why_updated(choices),
        "mask_block": "whole chunks of features are read"
        if choices.reads_observed
        else "single features mix best in memory",
    }
    default = SOMF().get_params(deep=False)
    for name in chosen:
        if name in parameters and parameters[name] != default[name]:
            chosen[name] = "as you set it"
    return chosen


def _why_updated(choices: Choices) -> str:
    if choices.dict_update == "all":
        return "every iteration improves every feature"
    if choices.head_start:
        return "traffic falls with the reduction; all features until they have settled"
    return "the paper's partial update"


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
