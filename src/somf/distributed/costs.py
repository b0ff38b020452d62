"""What a fit on several workers costs: bytes on the network, flops, and seconds.

The network is a star: all that workers hear and tell goes over the link of the client.

>>> sizes = Sizes(1_000_000, 200_000, 70, batch_size=1024, reduction=12, n_workers=16)
>>> sizes.n_observed
16667
>>> sent = exchange_bytes(sizes)
>>> round(sent.up / 1e6, 2), round(sent.down / 1e6, 2)  # MB of a worker
(4.69, 4.8)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from somf.distributed.run import FLUSH
from somf.solver.coding import NEEDS_GRAM

NUMBER = 8  # bytes of a row index, and of each counter of an answer
FEATURE = 4  # bytes of the index of an observed feature


@dataclass(frozen=True)
class Sizes:
    """What the costs of a fit follow from; the names are those of `SOMF`.

    `batch_size` counts the samples of all workers, as it does there. `dict_update` and
    `reduction` are numbers and words that are decided, not "auto".
    """

    n_samples: int
    n_features: int
    n_components: int
    batch_size: int
    reduction: float = 1.0
    dtype: Any = np.float32
    n_workers: int = 1
    local_steps: int = 1
    dict_update: str = "observed"
    aggregation: str = "async"
    code_estimator: str = "masked"
    reads: bool = False  # whether workers read samples that are not in memory,
    reads_observed: bool = False  # and of these the observed features alone

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return int(np.dtype(self.dtype).itemsize)

    @property
    def n_observed(self) -> int:
        """Features that a mask shows."""
        return max(1, round(self.n_features / self.reduction))

    @property
    def n_exchanged(self) -> int:
        """Features of which D and B travel in an exchange."""
        return self.n_features if self.dict_update == "all" else self.n_observed

    @property
    def share(self) -> float:
        """Samples of a batch that one worker codes, on average."""
        return min(self.batch_size, self.n_samples) / self.n_workers

    @property
    def needs_gram(self) -> bool:
        """Whether the Gram matrix of the dictionary travels with it."""
        return self.code_estimator in NEEDS_GRAM

    @property
    def keeps_nothing(self) -> bool:
        """Whether workers tell all that they know in every exchange."""
        everything = self.dict_update == "all" or self.reduction <= 1
        return self.aggregation == "masked" or everything

    @property
    def exchanges_per_epoch(self) -> int:
        """Exchanges in which every sample is coded once."""
        n_batches = math.ceil(self.n_samples / self.batch_size)
        return math.ceil(n_batches / self.local_steps)

    @property
    def hand_overs(self) -> float:
        """How often workers hand over all of their share of B, for each exchange."""
        if self.keeps_nothing:
            return 0.0
        return 1 / (FLUSH * max(1, math.ceil(self.reduction)))


@dataclass(frozen=True)
class ExchangeBytes:
    """Bytes of the arrays and counters that one worker hears and tells.

    What Dask puts around them, less than a kilobyte for a message, is not counted.
    """

    down: float  # in an exchange: the dictionary that changed, and what to do
    up: float  # in an exchange: B, C and counters
    hand_over: float  # up, at each hand-over: all of B
    hand_overs: float  # for each exchange, on average

    @property
    def total(self) -> float:
        """Both ways, for each exchange, on average."""
        return self.down + self.up + self.hand_over * self.hand_overs


def exchange_bytes(sizes: Sizes) -> ExchangeBytes:
    """Return what an exchange brings to one worker and back.

    Down come the features of D that changed, with their numbers if not all did, the
    Gram matrix if codes need it, and for each local iteration the rows to code and the
    features to observe; if workers read their samples, also those of the next
    exchange. Up go B on the features of the exchange, C, which atoms were
    used, and counters. The first exchange of a run has no news; it follows a message
    with all of D. Atoms that are replaced travel in addition, as a whole.

    Examples
    --------
    >>> sizes = Sizes(10_000, 1200, 10, batch_size=100, reduction=12, n_workers=2)
    >>> sent = exchange_bytes(sizes)
    >>> sent.up == 4 * (10 * 100 + 10 * 10) + 10 + 8 * 3  # B, C, atoms, counters
    True
    >>> sent.down == 4 * 10 * 100 + 4 * 100 + (8 * 50 + 4 * 100)  # D, where; rows, mask
    True
    >>> sent.hand_over == 4 * 10 * 1200 and 1 / sent.hand_overs  # one in so many
    48.0
    """
    k, q = sizes.n_components, sizes.n_exchanged
    partly = FEATURE * sizes.n_observed if sizes.n_observed < sizes.n_features else 0
    news = sizes.itemsize * k * q + (partly if q < sizes.n_features else 0)
    if sizes.needs_gram:
        news += sizes.itemsize * k * k
    visit = NUMBER * sizes.share + partly
    preview = NUMBER * sizes.share + (partly if sizes.reads_observed else 0)
    counters = NUMBER * (1 + 2 * sizes.local_steps)
    return ExchangeBytes(
        down=news + sizes.local_steps * visit + (preview if sizes.reads else 0),
        up=sizes.itemsize * k * (q + k) + k + counters,
        hand_over=0.0 if sizes.keeps_nothing else sizes.itemsize * k * sizes.n_features,
        hand_overs=sizes.hand_overs,
    )


@dataclass(frozen=True)
class ExchangeFlops:
    """Flops of the products of an exchange, with dense codes."""

    worker: float  # of each
    client: float


def exchange_flops(sizes: Sizes) -> ExchangeFlops:
    """Return what each worker and the client compute in an exchange.

    A worker correlates its samples with the observed features of D, makes their Gram
    matrix unless it is told, and adds its samples to B. The client adds up the answers
    and makes the pass over the atoms, and the Gram matrix if workers need it.

    Examples
    --------
    >>> flops = [
    ...     exchange_flops(Sizes(10_000, 1200, 10, 100, n_workers=n)) for n in (1, 10)
    ... ]
    >>> flops[0].worker / flops[1].worker  # the Gram matrix is made by each
    7.0
    """
    p, k, q = sizes.n_features, sizes.n_components, sizes.n_observed
    correlated = p if sizes.code_estimator == "exact" else q
    added = q if sizes.aggregation == "masked" else p
    coding = 2 * k * sizes.share * (correlated + added)
    gram = 0 if sizes.needs_gram else 2 * q * k * k
    update = 2 * sizes.n_exchanged * k * k
    if sizes.needs_gram:  # before the pass and after it
        update *= 3
    merge = sizes.n_workers * k * sizes.n_exchanged
    return ExchangeFlops(sizes.local_steps * (coding + gram), update + merge)


# -- seconds -------------------------------------------------------------------------


@dataclass(frozen=True)
class Compute:
    """Measured seconds: of a worker, and of the client."""

    sample: float  # coding one sample and adding it to B on the features of an exchange
    update: float  # the pass over the atoms at the client
    batch: float = 0.0  # of a batch, however few its samples: the Gram matrix
    rest: float = 0.0  # of one sample: the hidden features of B, after the answer
    merge: float = 0.0  # adding one answer to the others


@dataclass(frozen=True)
class Network:
    """What connects workers and client."""

    bandwidth: float = 1e9  # bytes a second, of the link of the client: 10 Gbit/s
    latency: float = 5e-4  # seconds, one way
    # Seconds that Dask keeps the client busy for a message, beside its bytes: a call
    # and its answer took 0.9 to 1.2 ms on loopback.
    message: float = 5e-4


@dataclass(frozen=True)
class Prediction:
    """Seconds of an iteration; `predict` makes it."""

    coding: float  # workers, side by side
    update: float  # the client alone
    transfer: float  # bytes on the link of the client
    latency: float
    waiting: float  # for workers that still update what the client did not need
    alone: float  # of the same iteration on one worker, without network
    n_workers: int

    @property
    def seconds(self) -> float:
        """Of an iteration."""
        return self.coding + self.update + self.transfer + self.latency + self.waiting

    @property
    def speedup(self) -> float:
        """How many times faster than one worker alone."""
        return self.alone / self.seconds

    @property
    def efficiency(self) -> float:
        """The speedup for each worker: 1 if nothing is lost on the way."""
        return self.speedup / self.n_workers


def predict(sizes: Sizes, compute: Compute, network: Network) -> Prediction:
    """Predict the seconds of an iteration; an exchange has `local_steps` of them.

    Workers code side by side; their messages follow one another on the link of the
    client. What a worker leaves for after its answer is done while the client computes
    and messages travel.

    Examples
    --------
    >>> network = Network(bandwidth=1e9, latency=1e-3)
    >>> compute = Compute(sample=1e-3, update=0.02)
    >>> for n_workers in (1, 16, 256):
    ...     sizes = Sizes(10**6, 200_000, 70, 2048, reduction=12, n_workers=n_workers)
    ...     told = predict(sizes, compute, network)
    ...     print(f"{told.speedup:.1f} times faster, efficiency {told.efficiency:.2f}")
    1.0 times faster, efficiency 0.99
    6.1 times faster, efficiency 0.38
    0.7 times faster, efficiency 0.00
    """
    steps, n_workers = sizes.local_steps, sizes.n_workers
    sent = exchange_bytes(sizes)
    transfer = n_workers * sent.total / network.bandwidth
    # There and back; two workers at a time hand over.
    latency = (2 + sent.hand_overs * max(2, n_workers)) * network.latency
    latency += 2 * (1 + sent.hand_overs) * n_workers * network.message
    update = compute.update + n_workers * compute.merge
    rest = steps * sizes.share * compute.rest
    waiting = max(0.0, rest - update - transfer - latency)
    whole = replace(sizes, n_workers=1)
    alone = compute.batch + whole.share * (compute.sample + compute.rest)
    return Prediction(
        coding=compute.batch + sizes.share * compute.sample,
        update=update / steps,
        transfer=transfer / steps,
        latency=latency / steps,
        waiting=waiting / steps,
        alone=alone + compute.update / steps,
        n_workers=n_workers,
    )
