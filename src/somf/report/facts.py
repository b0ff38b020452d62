"""What a report tells: plain values, taken from a model once."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.inputs import check_samples, requirements
from somf.sources.base import ArraySource

Array = NDArray[Any]

N_CODED = 200  # samples that are enough to tell which atoms are used, and how well
N_EXAMPLES = 6
N_RECENT = 20  # iterations that tell the objective before the first epoch is over


@dataclass(frozen=True)
class Example:
    """A sample, and what the model makes of it."""

    row: int
    sample: Array
    reconstruction: Array
    error: float  # |x - reconstruction|² / |x|²
    n_atoms: int  # that it uses


@dataclass(frozen=True)
class CodedSamples:
    """Exact codes of some samples, in numbers."""

    n_samples: int
    objective: float
    errors: Array  # (n_samples,), each like `Example.error`; 0 for one of zeros
    explained: float | None  # part of the sum of squares; None if that is zero
    share: Array  # (n_components,), part of the samples that uses each atom
    examples: tuple[Example, ...]  # the best first, none of zeros


@dataclass(frozen=True)
class Facts:
    """Everything that the page of a run tells.

    Attributes
    ----------
    name : str
    parameters, defaults : dict
        Of the estimator.
    trace : dict of arrays
        As `SOMF.trace_`.
    components : array of shape (n_components, n_features)
    strength : array of shape (n_components,)
        Root mean square of the codes of each atom, as training saw them lately.
    n_samples : int or None
        Of a `fit`; None for `partial_fit`.
    reduction, objective : float
    status : {"finished", "running", "stopped"}
    stop_reason : str
    coded : CodedSamples or None
        If samples were given.
    """

    name: str
    parameters: dict[str, Any]
    defaults: dict[str, Any]
    trace: dict[str, NDArray[np.float64]]
    components: Array
    strength: Array
    n_samples: int | None
    reduction: float
    objective: float
    status: str = "finished"
    stop_reason: str = ""
    coded: CodedSamples | None = None

    @property
    def order(self) -> NDArray[np.intp]:
        """Numbers of the atoms, the most used first."""
        return np.argsort(-self.strength, kind="stable")


def facts_of(
    model: Any,
    *,
    name: str | None = None,
    status: str = "finished",
    stop_reason: str | None = None,
    coded: CodedSamples | None = None,
) -> Facts:
    """Return the facts of a fitted `SOMF`; without a name, its shape names it."""
    signature = inspect.signature(type(model)).parameters
    order = model.state_.sampler.order
    trace, objective = model.trace_, float(model.objective_)
    if not np.isfinite(objective):  # no epoch is over
        objective = float(trace["objective"][-N_RECENT:].mean())
    if stop_reason is None:
        stop_reason = getattr(model, "stop_reason_", "")
    return Facts(
        name=name or "{} atoms of {} features".format(*model.state_.D.shape),
        parameters=model.get_params(deep=False),
        defaults={name: entry.default for name, entry in signature.items()},
        trace=trace,
        components=model.components_,
        strength=np.sqrt(np.maximum(np.diag(model.state_.C), 0)),
        n_samples=None if order is None else int(order.n_samples),
        reduction=model.reduction_,
        objective=objective,
        status=status,
        stop_reason=stop_reason,
        coded=coded,
    )


def code_samples(model: Any, X: Any) -> CodedSamples:
    """Return what a fitted `SOMF` makes of some of the samples of X.

    At most 200 are read, evenly over X.
    """
    source = check_samples(model, X)  # features are in the order of `components_`
    n_samples = source.shape[0]
    rows = np.unique(np.linspace(0, n_samples - 1, N_CODED).astype(np.intp))
    samples = source.read(rows)
    requirements(model).check(samples, rows)
    samples = samples.astype(model.components_.dtype, copy=False)
    known = ArraySource(samples)
    codes = model.transform(known)
    reconstructions = model.inverse_transform(codes)
    residual = np.nan_to_num(samples - reconstructions, copy=False)
    energy = np.nansum(np.square(samples, dtype=np.float64), axis=1)
    errors = np.square(residual, dtype=np.float64).sum(axis=1)
    explained = 1 - errors.sum() / energy.sum() if energy.any() else None
    errors /= np.where(energy > 0, energy, 1)
    best_first = np.argsort(errors, kind="stable")
    best_first = best_first[energy[best_first] > 0]
    n_examples = min(N_EXAMPLES, len(best_first))
    chosen = np.linspace(0, len(best_first) - 1, n_examples).astype(np.intp)
    return CodedSamples(
        n_samples=len(rows),
        objective=-float(model.score(known)),
        errors=errors,
        explained=explained,
        share=(codes != 0).mean(axis=0),
        examples=tuple(
            Example(
                row=int(rows[i]),
                sample=samples[i],
                reconstruction=reconstructions[i],
                error=float(errors[i]),
                n_atoms=int(np.count_nonzero(codes[i])),
            )
            for i in best_first[chosen]
        ),
    )
