"""Everything that an iteration reads and changes, in one place that can be saved."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.problem import AtomConstraint
from somf.sampling import MaskSampler, SampleOrder, Sampler, as_generator
from somf.solver.averages import Averages
from somf.solver.schedule import Pace

Array = NDArray[Any]

_NUMBERS = ("n_steps", "n_seen", "n_replaced", "clock", "auto_reduction")


@dataclass
class State:
    """The dictionary, the surrogate, and what the run needs to go on from here.

    D, B           (k, p)   dictionary; mean of x aᵀ. Transposed: an atom is a row
    C              (k, k)   mean of a aᵀ
    norms          (k,)     ‖d_j‖ over all features, float64 so that it does not drift
    G              (k, k)   DᵀD, where the code estimator needs it
    feature_clock  (p,)     `clock` at the last visit, for masked aggregation
    clock                   Σ log(1 − w_s): how much has been forgotten so far
    constraint              the ball that D is in and that `norms` measures
    idle           (k,)     iterations since a sample last used the atom
    pace                    how fast the objective falls
    auto_reduction          the reduction that suits the data
    sampler                 samples and masks to come, with a generator of its own
    feature_order  (p,)     which original feature a column is, if they were shuffled
    """

    D: Array
    B: Array
    C: Array
    norms: NDArray[np.float64]
    rng: np.random.Generator
    sampler: Sampler
    constraint: AtomConstraint
    G: Array | None = None
    feature_clock: NDArray[np.float64] | None = None
    averages: Averages | None = None
    feature_order: NDArray[np.intp] | None = None
    idle: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    n_steps: int = 0
    n_seen: int = 0
    n_replaced: int = 0
    clock: float = 0.0
    auto_reduction: float = 1.0
    pace: Pace = field(default_factory=Pace)

    def copy(self) -> State:
        """Return a state of the same arrays, parts of which can be replaced."""
        return replace(self, sampler=self.sampler.copy())

    @classmethod
    def start(
        cls,
        atoms: Array,
        constraint: AtomConstraint,
        rng: np.random.Generator,
        masks: MaskSampler,
        feature_order: NDArray[np.intp] | None = None,
    ) -> State:
        """Start from feasible `atoms` (k, p), which are the state's from now on."""
        k = len(atoms)
        D = np.ascontiguousarray(atoms)
        return cls(
            D=D,
            B=np.zeros_like(D),
            C=np.zeros((k, k), D.dtype),
            norms=constraint.norms(D),
            rng=rng,
            sampler=Sampler(as_generator(rng), masks),
            constraint=constraint,
            feature_order=feature_order,
            idle=np.zeros(k, np.int64),
        )

    def tensors(self) -> dict[str, Array]:
        """Return every array of the state by name."""
        arrays: dict[str, Array | None] = {
            "D": self.D,
            "B": self.B,
            "C": self.C,
            "norms": self.norms,
            "G": self.G,
            "feature_clock": self.feature_clock,
            "idle": self.idle,
            "mask_cycle": self.sampler.masks.cycle,
            "feature_order": self.feature_order,
        }
        order = self.sampler.order
        if order is not None:
            arrays["sample_order"] = order.order
            arrays["sample_cuts"] = order.cuts
            arrays["sample_chunks"] = order.chunks
        if self.averages is not None:
            for name, array in self.averages.arrays.items():
                arrays[f"averages.{name}"] = array
        return {name: array for name, array in arrays.items() if array is not None}

    def metadata(self) -> dict[str, Any]:
        """Return everything else, as plain JSON."""
        masks, order = self.sampler.masks, self.sampler.order
        averages = self.averages
        return {
            "numbers": {name: getattr(self, name) for name in _NUMBERS},
            "pace": asdict(self.pace),
            "generator": self.rng.bit_generator.state,
            "sampler": self.sampler.rng.bit_generator.state,
            "masks": {
                "n_features": masks.n_features,
                "kind": masks.kind,
                "block": masks.block,
            },
            "order": order
            and {
                "n_samples": order.n_samples,
                "n_batches": order.n_batches,
                "shuffle": order.shuffle,
                "mix": order.mix,
                "next_batch": order.next_batch,
                "n_pieces": order.n_pieces,
                "next_piece": order.next_piece,
            },
            "averages": averages
            and {"folder": averages.folder and os.fspath(averages.folder)},
            "constraint": asdict(self.constraint),
        }

    @classmethod
    def restore(cls, tensors: dict[str, Array], metadata: dict[str, Any]) -> State:
        """Rebuild a state from its tensors and metadata."""
        averages = None
        if metadata["averages"]:
            prefix = "averages."
            averages = Averages.restore(
                {n[len(prefix) :]: a for n, a in tensors.items() if prefix in n},
                metadata["averages"]["folder"],
            )
        return cls(
            D=tensors["D"],
            B=tensors["B"],
            C=tensors["C"],
            norms=tensors["norms"],
            G=tensors.get("G"),
            feature_clock=tensors.get("feature_clock"),
            idle=tensors["idle"],
            rng=_generator(metadata["generator"]),
            sampler=_sampler(tensors, metadata),
            feature_order=tensors.get("feature_order"),
            constraint=AtomConstraint(**metadata["constraint"]),
            averages=averages,
            pace=Pace(**metadata["pace"]),
            **metadata["numbers"],
        )


def _generator(state: dict[str, Any]) -> np.random.Generator:
    bits = np.random.PCG64()
    bits.state = state  # type: ignore[assignment]
    return np.random.Generator(bits)


def _sampler(tensors: dict[str, Array], metadata: dict[str, Any]) -> Sampler:
    masks = MaskSampler(**metadata["masks"])
    masks.cycle = tensors["mask_cycle"]
    order = None
    if metadata["order"]:
        saved = metadata["order"]
        order = SampleOrder(
            saved["n_samples"],
            1,
            saved["shuffle"],
            tensors.get("sample_chunks"),
            saved["mix"],
        )
        order.n_batches = saved["n_batches"]
        order.next_batch = saved["next_batch"]
        order.n_pieces, order.next_piece = saved["n_pieces"], saved["next_piece"]
        order.order = tensors["sample_order"]
        order.cuts = tensors["sample_cuts"]
    return Sampler(_generator(metadata["sampler"]), masks, order)
