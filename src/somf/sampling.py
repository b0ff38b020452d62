"""What an iteration looks at: a random part of the features, the next samples."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Mask:
    """The features that an iteration observes.

    `scale` makes sums over them unbiased: the paper's M has `scale` on its diagonal
    where a feature is observed and 0 elsewhere, and is the identity on average.
    """

    features: Indices
    n_features: int
    scale: float

    @classmethod
    def everything(cls, n_features: int) -> Mask:
        """Hide nothing."""
        return cls(np.arange(n_features), n_features, 1.0)

    @property
    def observes_all(self) -> bool:
        """Whether nothing is hidden."""
        return len(self.features) == self.n_features


class MaskSampler:
    """Masks of about ``n_features / reduction`` features, in blocks of adjacent ones.

    `kind` is "cycle", each block once per cycle and the cycle reshuffled, or
    "bernoulli", each block by a coin of its own. A cycle of equal masks visits every
    feature equally often, and mixes the features anew every time: a fixed partition
    would let the first group of features take the whole ball (see docs/notation.md).
    """

    def __init__(self, n_features: int, kind: str = "cycle", block: int = 1) -> None:
        self.n_features = n_features
        self.kind = kind
        self.block = block
        self.n_blocks = -(-n_features // block)
        self.cycle: Indices = np.empty(0, np.intp)  # what is left of it
        self._everything = Mask.everything(n_features)

    def draw(self, reduction: float, rng: np.random.Generator) -> Mask:
        """Draw the mask of the next iteration."""
        if reduction <= 1:
            return self._everything
        blocks = np.sort(KINDS[self.kind](self, reduction, rng))
        # All blocks are equally likely, also one that the last feature cuts short.
        scale = self.n_blocks / len(blocks)
        if self.block == 1:
            return Mask(blocks, self.n_features, scale)
        features = (blocks[:, None] * self.block + np.arange(self.block)).ravel()
        return Mask(features[features < self.n_features], self.n_features, scale)

    def _draw_cycle(self, reduction: float, rng: np.random.Generator) -> Indices:
        wanted = max(1, round(self.n_blocks / reduction))
        blocks, self.cycle = self.cycle[:wanted], self.cycle[wanted:]
        if len(blocks) < wanted:
            renewed = rng.permutation(self.n_blocks)
            # No block twice in one mask: what was taken from the old cycle waits.
            used = np.zeros(self.n_blocks, np.bool_)
            used[blocks] = True
            taken = used[renewed]
            fresh = renewed[~taken]
            missing = wanted - len(blocks)
            blocks = np.concatenate([blocks, fresh[:missing]])
            self.cycle = np.concatenate([fresh[missing:], renewed[taken]])
        return blocks

    def _draw_bernoulli(self, reduction: float, rng: np.random.Generator) -> Indices:
        blocks = np.flatnonzero(rng.random(self.n_blocks) * reduction < 1)
        if len(blocks) == 0:  # an iteration that sees nothing would divide by zero
            blocks = rng.integers(self.n_blocks, size=1)
        return blocks


KINDS: dict[str, Callable[[MaskSampler, float, np.random.Generator], Indices]] = {
    "cycle": MaskSampler._draw_cycle,
    "bernoulli": MaskSampler._draw_bernoulli,
}


class SampleOrder:
    """Mini-batches of a shuffled epoch, one after the other, in equal sizes.

    Where rows are stored in chunks that are read as a whole, `chunks` gives their
    bounds, 0 to n_samples. Chunks are then shuffled, and the samples of neighbours
    in the new order are mixed, `mix` samples or more at a time; 0 keeps every chunk
    together, and batches made of whole chunks.
    """

    def __init__(
        self,
        n_samples: int,
        batch_size: int,
        shuffle: bool = True,
        chunks: Indices | None = None,
        mix: int = 0,
    ) -> None:
        self.n_samples = n_samples
        self.n_batches = -(-n_samples // batch_size)
        self.shuffle = shuffle
        self.chunks = chunks
        self.mix = mix
        self.order: Indices = np.empty(0, np.intp)
        self.cuts: Indices = np.empty(0, np.intp)
        self.cut_at_chunks = False  # whether batches are whole chunks
        self.next_batch = 0
        self.n_pieces = 1  # of the batch that is being drawn
        self.next_piece = 0

    def draw(self, rng: np.random.Generator, pieces: int = 1) -> Indices:
        """Return the samples of the next batch, sorted so that reads go forward.

        A batch may be drawn in pieces, one by one. `pieces` tells in how many, and
        counts where a batch begins.
        """
        if self.passed == 0:
            self._begin_epoch(rng)
        b = self.next_batch
        batch = self.order[self.cuts[b] : self.cuts[b + 1]]
        if self.next_piece == 0:
            self.n_pieces = max(1, min(pieces, len(batch)))
        rows = batch[self.next_piece :: self.n_pieces]
        self.next_piece = (self.next_piece + 1) % self.n_pieces
        if self.next_piece == 0:
            self.next_batch = (b + 1) % self.n_batches
        return np.sort(rows)

    @property
    def passed(self) -> float:
        """The part of the epoch that has been drawn, below 1."""
        return (self.next_batch + self.next_piece / self.n_pieces) / self.n_batches

    def _begin_epoch(self, rng: np.random.Generator) -> None:
        batches = np.arange(self.n_batches + 1)
        self.cuts = batches * self.n_samples // self.n_batches
        self.cut_at_chunks = False
        everyone = np.arange(self.n_samples)
        if not self.shuffle:
            self.order = everyone
        elif self.chunks is None:
            self.order = rng.permutation(everyone)
        else:
            sizes = np.diff(self.chunks)
            chosen = rng.permutation(len(sizes))
            ends = np.cumsum(sizes[chosen])
            parts = [everyone[self.chunks[c] : self.chunks[c + 1]] for c in chosen]
            self.order = np.concatenate(parts)
            if self.mix:
                self._mix(ends, rng)
            else:
                self._cut_at_chunks(np.concatenate([[0], ends]))

    def _cut_at_chunks(self, bounds: Indices) -> None:
        """Let batches be whole chunks, as long as none gets twice its share."""
        share = self.n_samples / self.n_batches
        n_chunks = len(bounds) - 1
        if self.n_batches <= n_chunks:
            numbers = np.arange(self.n_batches + 1) * n_chunks // self.n_batches
            if np.diff(bounds[numbers]).max() <= 2 * share:
                self.cuts, self.cut_at_chunks = bounds[numbers], True
            elif np.diff(bounds).max() <= share:  # the last bound before each cut
                last = np.searchsorted(bounds, self.cuts, "right") - 1
                self.cuts, self.cut_at_chunks = bounds[last], True

    def _mix(self, ends: Indices, rng: np.random.Generator) -> None:
        """Shuffle groups of chunks, each of `mix` samples or more."""
        start = 0
        for end in ends:
            if end - start >= self.mix or end == self.n_samples:
                rng.shuffle(self.order[start:end])
                start = end

    @property
    def at_epoch_end(self) -> bool:
        """Whether the batch drawn last was the last of an epoch."""
        return self.passed == 0


class StratifiedOrder(SampleOrder):
    """Mini-batches that take the same share of the samples of every part of the data.

    Each part has an order of its own, with as many batches as all others; the samples
    of a part follow those of the part before it. No batch is empty, also if a part has
    fewer samples than there are batches.
    """

    def __init__(self, parts: list[SampleOrder], batch_size: int) -> None:
        n_samples = sum(part.n_samples for part in parts)
        super().__init__(n_samples, batch_size, parts[0].shuffle)
        for part in parts:
            part.n_batches = self.n_batches
        self.parts = parts
        if any(part.chunks is not None for part in parts):  # for who goes on alone
            self.chunks = self._join_chunks()
            self.mix = max(part.mix for part in parts)

    def _join_chunks(self) -> Indices:
        bounds, start = [np.zeros(1, np.intp)], 0
        for part in self.parts:
            chunks = part.chunks
            if chunks is None:
                chunks = np.array([0, part.n_samples])
            bounds.append(start + chunks[1:])
            start += part.n_samples
        return np.concatenate(bounds)

    def continue_from(self, other: SampleOrder) -> None:
        """Go on in the epoch that `other` is in; parts count from the next one."""
        self.order, self.cuts = other.order, other.cuts
        self.n_batches, self.next_batch = other.n_batches, other.next_batch
        self.n_pieces, self.next_piece = other.n_pieces, other.next_piece
        for part in self.parts:
            part.n_batches = self.n_batches

    def _begin_epoch(self, rng: np.random.Generator) -> None:
        starts = np.cumsum([0, *(part.n_samples for part in self.parts)])
        for part in self.parts:
            part._begin_epoch(rng)
        if not any(part.cut_at_chunks for part in self.parts):
            self._cut_together()
        batches = [
            [
                start + part.order[part.cuts[b] : part.cuts[b + 1]]
                for start, part in zip(starts[:-1], self.parts, strict=True)
            ]
            for b in range(self.n_batches)
        ]
        self.order = np.concatenate([x for batch in batches for x in batch])
        sizes = [sum(len(x) for x in batch) for batch in batches]
        self.cuts = np.cumsum([0, *sizes])

    def _cut_together(self) -> None:
        """Cut the parts so that batches have equal sizes; each does it well alone."""
        sizes = [part.n_samples for part in self.parts]
        times = np.concatenate([(np.arange(n) + 0.5) / n for n in sizes])
        owners = np.repeat(np.arange(len(sizes)), sizes)
        owners = owners[np.argsort(times, kind="stable")]
        cuts = np.arange(self.n_batches + 1) * self.n_samples // self.n_batches
        for i, part in enumerate(self.parts):
            part.cuts = np.searchsorted(np.flatnonzero(owners == i), cuts)


@dataclass(frozen=True)
class Draw:
    """What one iteration looks at; `after` is the sampler as it then stands."""

    rows: Indices
    mask: Mask
    ends_epoch: bool
    after: Sampler


@dataclass
class Sampler:
    """All that is random about the data of a run: which samples, which features.

    It has a generator of its own, so that draws can be made ahead of the iterations,
    for a reader, while what is saved stands where the last finished iteration left it.
    """

    rng: np.random.Generator
    masks: MaskSampler
    order: SampleOrder | None = None

    def copy(self) -> Sampler:
        """Return a sampler that goes on from here on its own."""
        bits = type(self.rng.bit_generator)()
        bits.state = self.rng.bit_generator.state
        # Samplers replace their arrays and never write to them.
        return Sampler(
            np.random.Generator(bits), copy.copy(self.masks), copy.copy(self.order)
        )

    def draw(self, reduction: float, pieces: int = 1) -> Draw:
        """Draw the samples and the mask of the next iteration."""
        assert self.order is not None, "partial_fit has no order, only masks"
        rows = self.order.draw(self.rng, pieces)
        mask = self.masks.draw(reduction, self.rng)
        return Draw(rows, mask, self.order.at_epoch_end, self.copy())


def as_generator(random_state: Any) -> np.random.Generator:
    """Return a Generator of our own from None, an int, a RandomState or a Generator.

    It is always of one kind, whose state is a few numbers that a model file can hold.
    """
    if isinstance(random_state, np.random.Generator):
        random_state = random_state.integers(2**31, size=4).tolist()
    elif isinstance(random_state, np.random.RandomState):
        random_state = random_state.randint(2**31, size=4).tolist()
    return np.random.Generator(np.random.PCG64(random_state))
