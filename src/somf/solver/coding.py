"""Where codes come from: estimators of G = DᵀD, β = Dᵀx and the energy |x|²."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.solver.observation import Observation
from somf.solver.products import correlate
from somf.solver.state import State

Array = NDArray[Any]
Estimate = tuple[Array, Array, Array]  # G (1 or n, k, k), beta (n, k), energy (n,)


def masked(state: State, seen: Observation, v: float) -> Estimate:
    """(a): Dᵀ M D and Dᵀ M x, unbiased but not consistent."""
    scale = state.D.dtype.type(seen.mask.scale)
    G = seen.grams()
    G *= scale
    return G, seen.beta * scale, seen.energy * scale


def averaged(state: State, seen: Observation, v: float) -> Estimate:
    """(b): the averages of (a) over the visits of each sample, with weights c^−v."""
    G, beta, energy = masked(state, seen, v)
    index = seen.batch.index
    if index is None or state.averages is None:  # a stream: every sample is new
        return G, beta, energy
    gamma = _sample_weights(state, seen, v)
    beta, energy, mean_G = state.averages.update(index, gamma, beta, energy, G)
    assert mean_G is not None
    return mean_G, beta, energy


def exact_gram(state: State, seen: Observation, v: float) -> Estimate:
    """(c): the exact G, which the dictionary step maintains, and the average of β."""
    assert state.G is not None
    scale = state.D.dtype.type(seen.mask.scale)
    beta, energy = seen.beta * scale, seen.energy * scale
    index = seen.batch.index
    if index is not None and state.averages is not None:
        gamma = _sample_weights(state, seen, v)
        beta, energy, _ = state.averages.update(index, gamma, beta, energy)
    return state.G[None], beta, energy


def exact(state: State, seen: Observation, v: float) -> Estimate:
    """The exact G and β: only the dictionary step is subsampled."""
    assert state.G is not None
    if seen.mask.observes_all:
        return state.G[None], seen.beta, seen.energy
    beta, energy = correlate(seen.whole, state.D, seen.team)
    return state.G[None], beta, energy


def _sample_weights(state: State, seen: Observation, v: float) -> NDArray[np.float64]:
    """γ_c = c^−v; 1 if nothing is hidden, since then the new estimate is exact."""
    assert state.averages is not None and seen.batch.index is not None
    visits = state.averages.visit(seen.batch.index)
    if seen.mask.observes_all:
        return np.ones(len(visits))
    return np.asarray(visits.astype(np.float64) ** -v)


ESTIMATORS: dict[str, Callable[[State, Observation, float], Estimate]] = {
    "masked": masked,
    "averaged": averaged,
    "gram": exact_gram,
    "exact": exact,
}

NEEDS_GRAM = ("gram", "exact")
REMEMBERS_SAMPLES = ("averaged", "gram")
