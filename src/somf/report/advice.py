"""Warnings in plain words, and what to do: read from the trace and the codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.report.facts import Facts

FALLING = 0.01  # of itself in an epoch: the objective is not yet where it will be
DENSE = 0.5  # more codes than this that are not zero are no sparse codes
GAP = 1.25  # objective on all features, over that on the observed ones
RENEWED = 0.2  # of the atoms, replaced in the second half of a run


@dataclass(frozen=True)
class Advice:
    """What is wrong, and what to do about it."""

    problem: str
    remedy: str


def advise(facts: Facts) -> list[Advice]:
    """Return what a reader should know about a run; an empty list if all is well.

    >>> import numpy as np
    >>> from somf import SOMF
    >>> from somf.report import advise, facts_of
    >>> model = SOMF(2, alpha=100.0, random_state=0).fit(np.eye(10))
    >>> print(advise(facts_of(model))[0].problem)
    All codes are zero at the end: alpha=100 is too large for these data.
    """
    if len(facts.trace["step"]) == 0:
        return []
    if not np.isfinite(facts.trace["objective"]).all():
        return [NOT_FINITE]
    return [advice for check in CHECKS for advice in check(facts)]


NOT_FINITE = Advice(
    "The objective is not a finite number.",
    "Look for huge values in the data, and divide them by their standard deviation.",
)


ZEROS = Advice(
    "All samples are zero: there is nothing to learn from.",
    "Look at the data, and at how they were read.",
)


def _zero_codes(facts: Facts) -> Iterator[Advice]:
    if _at_end(facts, "density") > 0:
        return
    if _at_end(facts, "objective") == 0:
        yield ZEROS
        return
    yield Advice(
        f"All codes are zero at the end: alpha={facts.parameters['alpha']:g} is too "
        "large for these data.",
        "somf.alpha_max(X) gives the value from which on all codes are zero; take a "
        "tenth of it.",
    )


def _dense_codes(facts: Facts) -> Iterator[Advice]:
    density = _at_end(facts, "density")
    sparse = facts.parameters["alpha"] > 0 and facts.parameters["code_l1_ratio"] >= 0.5
    if not sparse or density <= DENSE:
        return
    yield Advice(
        f"{density:.0%} of the codes are not zero, which is not sparse.",
        f"If you want sparse codes, take a larger alpha than "
        f"{facts.parameters['alpha']:g}; somf.alpha_max(X) gives the scale.",
    )


def _not_converged(facts: Facts) -> Iterator[Advice]:
    if facts.status == "running" or _at_end(facts, "density") == 0:
        return
    fall = fall_at_end(facts.trace)
    if fall is None or fall <= FALLING:
        return
    yield Advice(
        f"The run is not converged: the objective still fell by {fall:.1%} in its "
        "last stretch.",
        f"Raise n_epochs, which is {facts.parameters['n_epochs']}, or go on with "
        "partial_fit.",
    )


def fall_at_end(trace: dict[str, NDArray[np.float64]]) -> float | None:
    """Return by what part of itself the objective fell at the end of a run.

    From the last epoch but one to the last; of a run with fewer epochs, from its third
    quarter to its fourth, if that is more than the noise of the batches. None if there
    are too few iterations to judge.
    """
    held_out = trace["validation_objective"]
    held_out = held_out[np.isfinite(held_out)]
    if len(held_out) >= 2:
        return _fall(held_out[-2], held_out[-1])
    objective, epoch = trace["objective"], np.ceil(trace["epoch"])
    last = np.nanmax(epoch, initial=0)
    if last >= 2:
        before, after = objective[epoch == last - 1], objective[epoch == last]
        whole = len(before) == len(after) and trace["reduction"].max() <= 1
    else:
        quarter = len(objective) // 4
        before, after = objective[-2 * quarter : -quarter], objective[-quarter:]
        whole = False
    if len(after) < 4 and not whole:
        return None
    fall = _fall(before.mean(), after.mean())
    # An epoch over all samples and features has no noise; other stretches have.
    noise = np.hypot(before.std(), after.std()) / np.sqrt(len(after))
    return fall if whole or fall * before.mean() > 2 * noise else 0.0


def _fall(before: float, after: float) -> float:
    return float((before - after) / abs(before)) if before else 0.0


def _dead_atoms(facts: Facts) -> Iterator[Advice]:
    k = len(facts.strength)
    replaced = facts.trace["replaced_atoms"]
    lately = replaced[-1] - replaced[len(replaced) // 2]
    unused = int((facts.strength == 0).sum())
    if _at_end(facts, "density") == 0:
        return
    remedy = (
        f"There may be more atoms than the data need: take fewer than n_components="
        f"{k}, or a smaller alpha."
    )
    if lately > RENEWED * k:
        yield Advice(
            f"Atoms that no sample uses were replaced {lately:.0f} times in the second "
            "half of the run, again and again.",
            remedy,
        )
    elif unused:
        yield Advice(f"{unused} of {k} atoms are used by no sample.", remedy)


def _reduction(facts: Facts) -> Iterator[Advice]:
    n_components, n_features = facts.components.shape
    observed = n_features / facts.reduction
    if facts.reduction <= 1:
        return
    if observed < n_components:
        yield Advice(
            f"The reduction is too high: an iteration observes {observed:.0f} "
            f"features, fewer than there are atoms ({n_components}), which cannot "
            "tell the atoms apart.",
            f"Take reduction={max(1, n_features // (8 * n_components))} or "
            'reduction="auto".',
        )
    elif _gap(facts) > GAP:
        yield Advice(
            f"On all features the objective is {_gap(facts):.1f} times what it is on "
            f"the observed ones: with reduction={facts.reduction:g} codes may follow "
            "the few features that they see.",
            f"Try reduction={max(1, facts.reduction / 3):.0f}. If it stays, these "
            "samples differ from those of training.",
        )


def _gap(facts: Facts) -> float:
    """Return the objective on all features over that which training saw."""
    whole = facts.trace["validation_objective"]
    whole = whole[np.isfinite(whole)]
    if facts.coded is not None:
        value = facts.coded.objective
    elif len(whole):
        value = float(whole[-1])
    else:
        return 1.0
    return value / (_at_end(facts, "objective") or np.inf)


def _at_end(facts: Facts, column: str) -> float:
    """Return the mean of a column over the last tenth of a run."""
    values: Any = facts.trace[column]
    return float(values[-max(1, len(values) // 10) :].mean())


CHECKS: tuple[Callable[[Facts], Iterator[Advice]], ...] = (
    _zero_codes,
    _not_converged,
    _dead_atoms,
    _reduction,
    _dense_codes,
)
