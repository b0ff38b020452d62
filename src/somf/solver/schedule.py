"""What changes over the iterations: weights w_t and γ_c, and the reduction."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

# The paper's exponents, inside the ranges of its assumption (B).
PAPER_U = 0.917
PAPER_V = 0.751

# The fast start: w_t = t^−e until t = FAST_STEPS, where e follows the objective and is
# between these. See "What was tried" in docs/performance.md.
SETTLED_U = 0.6
MOVING_U = 0.3
FAST_STEPS = 1024  # a power of two: e changes at these
# Parts by which the objective falls while t doubles: with the first, or less, the
# dictionary has settled; with the second, or more, it moves far.
SETTLED_FALL = 0.01
MOVING_FALL = 0.04

# A dictionary that still moves far at this iteration has a long way to go. What is
# short is iterations, not samples: batches are taken in pieces, and forgotten sooner.
LONG_WAY = 16
LONG_WAY_U = 0.15
MOST_PIECES = 4
SMALLEST_PIECE = 128  # samples, and 2 for each atom
NOTICE = 4  # iterations before batches change: more than are read ahead

MOST_AUTO = 12.0  # beyond, the codes are no longer what an iteration spends time on

LEAST_STEPS = 32  # iterations that a run should have

# Non-negative codes may have this many times the gap for LOOSE_STEPS iterations: with
# the default code_tol, 1.5 times their loss.
LOOSE = 1500.0
LOOSE_STEPS = 5


@dataclass
class Pace:
    """How fast the objective falls, and the exponent of early weights that follows.

    While the dictionary moves far, codes are soon out of date, and are best forgotten
    soon; once it has settled, averages over many samples are what is missing. Means of
    the objective over iterations t/2 + 1 to t tell one from the other: single batches
    are too noisy.
    """

    exponent: float = SETTLED_U
    total: float = 0.0  # of the objectives since the last power of two
    count: int = 0
    lowest: float | None = None  # mean between two powers of two before it
    pieces: int = 1  # in which batches are taken, from iteration `since` on
    since: int = 0
    pieces_before: int = 1

    def note(self, t: int, objective: float, most_pieces: int = 1) -> None:
        """Take note of the objective of iteration t, which counts from 1."""
        if t > FAST_STEPS:
            return
        self.total += objective
        self.count += 1
        if t & (t - 1):  # not a power of two
            return
        mean = self.total / self.count
        if self.lowest is not None:  # a rise that is made good again is no progress
            fall = 1 - mean / self.lowest if self.lowest > 0 else 0.0
            moving = (fall - SETTLED_FALL) / (MOVING_FALL - SETTLED_FALL)
            self._follow(t, min(1.0, max(0.0, moving)), most_pieces)
        self.total, self.count = 0.0, 0
        self.lowest = mean if self.lowest is None else min(mean, self.lowest)

    def _follow(self, t: int, moving: float, most_pieces: int) -> None:
        """Choose weights and pieces for a dictionary that moves, 1, or not, 0."""
        long_way = most_pieces > 1 and LONG_WAY <= t < FAST_STEPS
        least = LONG_WAY_U if long_way else MOVING_U
        # Rounded: workers add up objectives in another order, to the same weights.
        self.exponent = round(SETTLED_U - moving * (SETTLED_U - least), 3)
        self.pieces_before, self.since = self.pieces, t + NOTICE
        self.pieces = round(most_pieces ** round(moving, 3)) if long_way else 1

    def has_settled(self, t: int) -> bool:
        """Whether the objective no longer falls fast, or nobody follows it any more."""
        return self.exponent == SETTLED_U or t >= FAST_STEPS

    def pieces_at(self, t: int) -> int:
        """In how many pieces the batch of iteration t is taken."""
        return self.pieces if t >= self.since else self.pieces_before


def paper_weight(t: int, u: float, early: float) -> float:
    """w_t = t^−u."""
    return float(t**-u)


def fast_weight(t: int, u: float, early: float) -> float:
    """w_t = t^−early at first, then a constant times t^−u, without a jump.

    Early codes come from a poor dictionary and are best forgotten. The convergence
    result needs t^−u only in the limit; constants do not matter there.
    """
    if t <= FAST_STEPS:
        return float(t**-early)
    return float(FAST_STEPS ** (u - early) * t**-u)


# w_t from t, u and the exponent that the pace of the run suggests while it is young.
WEIGHTS: dict[str, Callable[[int, float, float], float]] = {
    "fast": fast_weight,
    "paper": paper_weight,
}


def constant(reduction: float, progress: float) -> float:
    """The same reduction all along."""
    return reduction


def decreasing(reduction: float, progress: float) -> float:
    """Constant for the first half of the run, then geometrically down to 1.

    The last tenth observes every feature: that is what high precision takes.
    """
    left = min(1.0, max(0.0, (0.9 - progress) / 0.4))
    return float(reduction**left)


def auto_reduction(
    n_features: int, n_components: int, spread: float = math.inf
) -> float:
    """Reduction that keeps enough features in view: 1000, and 8 for each atom.

    `spread` is over how many features samples are spread, see `initialization.spread`:
    2 of those for each atom stay in view, too.
    """
    most = min(
        n_features / max(1000, 8 * n_components), 0.5 * spread / n_components, MOST_AUTO
    )
    return max(1.0, most)


def looseness(t: int) -> float:
    """Factor on the duality gap of non-negative codes: large at first, then like 1/t².

    Non-negative samples are all alike at first, and so are atoms: exact codes take
    long, and they mislead the dictionary, which needs longer with them.
    """
    return max(1.0, LOOSE * min(1.0, LOOSE_STEPS / t) ** 2)


def auto_batch_size(
    n_samples: int,
    n_features: int,
    n_components: int,
    n_epochs: int,
    sparse_codes: bool,
) -> int:
    """Samples of a batch such that a pass over the atoms is a small part of its time.

    The pass takes as long as 200 dense codes, whatever the number of atoms. Sparse
    codes cost less, the less the more atoms there are, but for what they cost when
    features are few; there 4 samples for each atom are enough, since it is samples that
    are short, not iterations. A run has LEAST_STEPS, unless batches would then be
    smaller than the dictionary.
    """
    usual = 200
    if sparse_codes:
        many = int(12 * n_components / (1 + 12 * n_components / n_features))
        usual = max(400, 4 * n_components, many)
    most = n_samples * min(n_epochs, LEAST_STEPS // 2) // LEAST_STEPS
    return max(1, min(usual, n_samples, max(n_components, most)))


def most_pieces(batch_size: int, n_components: int) -> int:
    """Into how many pieces a batch may be cut."""
    smallest = max(SMALLEST_PIECE, 2 * n_components)
    return max(1, min(MOST_PIECES, batch_size // smallest))


REDUCTIONS: dict[str, Callable[[float, float], float]] = {
    "constant": constant,
    "decreasing": decreasing,
}


@dataclass(frozen=True)
class Schedule:
    """Weights and reduction of a run, as functions of its counters."""

    weights: str = "fast"
    u: float = PAPER_U
    v: float = PAPER_V
    reduction: float = 1.0
    reduction_schedule: str = "constant"

    def weight(self, t: int, pace: Pace) -> float:
        """w_t of iteration t, which counts from 1."""
        return WEIGHTS[self.weights](t, self.u, pace.exponent)

    def reduction_at(self, progress: float) -> float:
        """Reduction when a part `progress`, 0 to 1, of the run is done."""
        return REDUCTIONS[self.reduction_schedule](self.reduction, progress)


def warn_outside_theory(u: float, v: float) -> None:
    """Warn if the exponents are outside assumption (B) of the paper."""
    slack = 1e-9  # the paper's own v lies on the end of its range
    if not (11 / 12 < u < 1 and 3 / 4 < v <= 3 * u - 2 + slack):
        warnings.warn(
            f"weight_exponent={u} and sample_weight_exponent={v} are outside the "
            f"ranges for which convergence is proven: (11/12, 1) and (3/4, 3u - 2 = "
            f"{3 * u - 2:.3f}). The run may still do well; the paper's values are "
            f"{PAPER_U} and {PAPER_V}.",
            UserWarning,
            stacklevel=3,
        )
