"""What a fit on several workers needs of each of them, of the client, and between."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from somf.choices import Choices
from somf.distributed.costs import (
    Compute,
    Network,
    Prediction,
    Sizes,
    exchange_bytes,
    exchange_flops,
    predict,
)
from somf.distributed.parts import PartedSource, Piece, joined, lay_out, share_out
from somf.distributed.run import FLUSH
from somf.needs import (
    averages_bytes,
    memory_bytes,
    reading_bytes,
    show_bytes,
    show_time,
)
from somf.reading import sample_order
from somf.solver.dictionary import residual_rows
from somf.sources.base import ArraySource, Source
from somf.sources.mapped import MappedSource
from somf.sources.sparse import SparseSource

MEMORY_SPEED = 5e9  # bytes a second at which answers are added up, about


@dataclass(frozen=True)
class WorkersPlan:
    """What a fit on several workers will need; a part of :class:`somf.Plan`."""

    n_workers: int
    n_samples: int  # of the worker that has most of them
    memory_bytes: int  # of that worker, with its samples if it keeps them
    samples_bytes: int  # of that: its samples
    reading_bytes: int  # of that: what is read, and chunks that are kept
    client_memory_bytes: int
    bytes_down: int  # in an exchange, to each worker
    bytes_up: int  # in an exchange, from each worker
    head_start_bytes: int  # both ways, while all features are exchanged; 0 if never
    hand_over_bytes: int  # from each worker
    hand_overs_per_epoch: float
    exchanges_per_epoch: int
    flops_of_worker: int  # in an exchange
    flops_of_client: int
    bandwidth: float
    latency: float
    seconds_per_epoch: float | None = None
    coding_seconds: float | None = None  # of an epoch: workers
    client_seconds: float | None = None  # of an epoch: the dictionary
    network_seconds: float | None = None  # of an epoch
    speedup: float | None = None

    @property
    def bytes_per_epoch(self) -> int:
        """On the link of the client."""
        each = self.exchanges_per_epoch * (self.bytes_up + self.bytes_down)
        handed_over = self.hand_overs_per_epoch * self.hand_over_bytes
        return int(self.n_workers * (each + handed_over))

    def lines(self) -> list[str]:
        """Return the plan in words."""
        rest = self.memory_bytes - self.samples_bytes
        lines = [
            f"{self.n_workers} workers, {self.n_samples:,} samples each at most",
            f"memory of a worker: {show_bytes(self.memory_bytes)} at most, "
            f"{show_bytes(self.samples_bytes)} of it for its samples, "
            f"{show_bytes(self.reading_bytes)} for what is read, "
            f"{show_bytes(rest - self.reading_bytes)} for the rest",
            f"memory of the client: {show_bytes(self.client_memory_bytes)} at most",
            f"an epoch has {self.exchanges_per_epoch:,} exchanges of "
            f"{self.flops_of_worker:.2g} flops for a worker and "
            f"{self.flops_of_client:.2g} for the client",
            f"network of an exchange: {show_bytes(self.bytes_down)} down and "
            f"{show_bytes(self.bytes_up)} up for each worker",
        ]
        if self.head_start_bytes:
            lines[-1] += (
                f", or {show_bytes(self.head_start_bytes)} both ways until the "
                "dictionary has settled"
            )
        if self.hand_overs_per_epoch:
            n = self.hand_overs_per_epoch
            lines[-1] += (
                f", and {n:.2g} times in an epoch {show_bytes(self.hand_over_bytes)} up"
            )
        if self.seconds_per_epoch is None:
            return lines
        assert self.coding_seconds is not None and self.client_seconds is not None
        assert self.network_seconds is not None
        later = " after that" if self.head_start_bytes else ""
        lines.append(
            f"an epoch{later} takes about {show_time(self.seconds_per_epoch)}: "
            f"{show_time(self.coding_seconds)} for codes, "
            f"{show_time(self.client_seconds)} for the dictionary, "
            f"{show_time(self.network_seconds)} for a network of "
            f"{show_bytes(self.bandwidth)}/s and {1000 * self.latency:g} ms, with "
            f"{1000 * Network.message:g} ms of Dask for a message"
        )
        lines.append(
            f"that is {self.speedup:.2g} times as fast as one such worker alone, with "
            "the same batches"
        )
        return lines


def sizes_of(
    parameters: dict[str, Any], choices: Choices, source: PartedSource
) -> Sizes:
    """Return what the costs of an exchange follow from."""
    return Sizes(
        *source.shape,
        choices.n_components,
        choices.batch_size,
        choices.reduction,
        source.dtype,
        source.n_lanes,
        parameters["local_steps"],
        choices.dict_update,
        parameters["aggregation"],
        parameters["code_estimator"],
        source.is_read,
        choices.reads_observed,
    )


def plan_workers(
    parameters: dict[str, Any],
    choices: Choices,
    source: PartedSource,
    network: Network,
    seconds: dict[str, float] | None = None,
) -> WorkersPlan:
    """Predict what each worker and the client need.

    `seconds` are those of the phases of an iteration that codes the share of one worker
    alone; None if they are not known.
    """
    sizes = sizes_of(parameters, choices, source)
    most = replace(sizes, dict_update="all") if choices.head_start else sizes
    pieces = max(share_out(source.pieces, source.n_lanes), key=_n_rows)
    part = lay_out(pieces, source)
    own = replace(choices, batch_size=max(1, round(sizes.share)))
    order = sample_order(part, own, bool(parameters["shuffle"]))
    sent, flops = exchange_bytes(sizes), exchange_flops(sizes)
    samples = sum(_kept_bytes(piece, source) for piece in joined(pieces))
    memory = memory_bytes(parameters, own, part, order.mix) + samples
    memory += averages_bytes(parameters, own, part)
    memory += max(_on_its_way(sizes), _on_its_way(most))
    n_epoch = sizes.exchanges_per_epoch * sizes.local_steps
    told = None if seconds is None else _predict(sizes, network, seconds, source)
    return WorkersPlan(
        n_workers=source.n_lanes,
        n_samples=_n_rows(pieces),
        memory_bytes=memory,
        samples_bytes=samples,
        reading_bytes=reading_bytes(own, part, order.mix),
        client_memory_bytes=max(client_bytes(sizes), client_bytes(most)),
        bytes_down=int(sent.down),
        bytes_up=int(sent.up),
        head_start_bytes=int(exchange_bytes(most).total) if most is not sizes else 0,
        hand_over_bytes=int(sent.hand_over),
        hand_overs_per_epoch=sizes.exchanges_per_epoch * sizes.hand_overs,
        exchanges_per_epoch=sizes.exchanges_per_epoch,
        flops_of_worker=int(flops.worker),
        flops_of_client=int(flops.client),
        bandwidth=network.bandwidth,
        latency=network.latency,
        **({} if told is None else _seconds(told, n_epoch)),
    )


def _on_its_way(sizes: Sizes) -> int:
    """Return the bytes of messages that a worker makes or reads."""
    sent = exchange_bytes(sizes)
    # Where B begins anew, the old one is on its way.
    renewed = sent.hand_over if sizes.n_workers > 1 else 0
    return int(sent.up + sent.down + renewed)


def _seconds(told: Prediction, n_iterations: int) -> dict[str, float]:
    return {
        "seconds_per_epoch": n_iterations * told.seconds,
        "coding_seconds": n_iterations * (told.coding + told.waiting),
        "client_seconds": n_iterations * told.update,
        "network_seconds": n_iterations * (told.transfer + told.latency),
        "speedup": told.speedup,
    }


def _predict(
    sizes: Sizes, network: Network, seconds: dict[str, float], source: PartedSource
) -> Prediction:
    of_client = {"mask", "dictionary"}
    unread = {"read"} if source.in_memory else set()  # workers have it in memory
    coding = sum(s for name, s in seconds.items() if name not in of_client | unread)
    compute = Compute(
        sample=coding / sizes.share,
        update=sum(seconds.get(name, 0.0) for name in of_client),
        merge=exchange_bytes(sizes).up / MEMORY_SPEED,
    )
    return predict(sizes, compute, network)


def client_bytes(sizes: Sizes) -> int:
    """Return the bytes of the client: D, B, and the answers of all workers."""
    p, k, q = sizes.n_features, sizes.n_components, sizes.n_exchanged
    sent = exchange_bytes(sizes)
    numbers = 2 * p * k + 2 * k * k + 3 * k * q + residual_rows(k) * q
    answers = sizes.n_workers * (sent.up + sent.down)
    hand_over = min(sizes.n_workers, 3) * sent.hand_over  # one at a time is added
    logged = 0.0  # tasks, until the next hand-over
    if not sizes.keeps_nothing:
        every = min(FLUSH * max(1, round(sizes.reduction)), sizes.exchanges_per_epoch)
        logged = every * sizes.n_workers * (4 * q + 8 * sizes.share)
    each = 8 * (3 * p + 2 * sizes.n_samples)
    return int(sizes.itemsize * numbers + max(answers, hand_over) + logged + each)


def _n_rows(pieces: list[Piece]) -> int:
    return sum(len(piece) for piece in pieces)


def _kept_bytes(piece: Piece, source: Source) -> int:
    """Return the bytes of a piece that a worker keeps in memory."""
    what, rows = piece.what, len(piece)
    if isinstance(what, SparseSource):
        X = what.X
        stored = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
        return int(stored * rows / X.shape[0])
    mapped = isinstance(what, MappedSource) and what.in_place  # pages; can be reclaimed
    if piece.held or mapped or isinstance(what, ArraySource):
        return rows * source.row_bytes
    return 0
