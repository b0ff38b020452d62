"""The first dictionary: always inside the constraint, never NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.problem import AtomConstraint
from somf.sources.base import COMPLETE, Requirements, SampleSource

Array = NDArray[Any]

CHUNK = 16  # samples that are read at a time


def initial_atoms(
    dict_init: str | Array,
    source: SampleSource,
    n_components: int,
    constraint: AtomConstraint,
    rng: np.random.Generator,
    wanted: Requirements = COMPLETE,
) -> Array:
    """Return (n_components, n_features) atoms in the ball, in the dtype of the data.

    "samples" takes random samples scaled to the boundary, "random" Gaussian vectors;
    an array is projected. Zero samples, and atoms beyond n_samples, become random.
    """
    n_samples, n_features = source.shape
    if not isinstance(dict_init, str):
        return constraint.project(np.array(dict_init, dtype=source.dtype))
    atoms = np.zeros((n_components, n_features), source.dtype)
    if dict_init == "samples":
        n_chosen = min(n_components, n_samples)
        chosen = np.sort(rng.choice(n_samples, n_chosen, replace=False))
        for start in range(0, n_chosen, CHUNK):
            some = slice(start, min(start + CHUNK, n_chosen))
            samples = source.read(chosen[some])
            wanted.check(samples, chosen[some])
            samples[np.isnan(samples)] = 0
            atoms[some] = constraint.rescale(samples)
    for atom in atoms:
        if not atom.any():
            noise = rng.standard_normal((1, n_features)).astype(source.dtype)
            if constraint.positive:
                noise = np.abs(noise)
            atom[:] = constraint.rescale(noise)[0]
    return atoms


def spread(atoms: Array) -> float:
    """Return over how many features atoms are spread: (Σd²)²/Σd⁴, in the median.

    It is n for n entries of one size, whatever the number of zeros beside them, and
    p/3 for Gaussian ones. What a mask misses of a sample depends on it.
    """
    squares = (np.square(d, dtype=np.float64) for d in atoms)
    spreads = [s.sum() ** 2 / np.square(s).sum() for s in squares if s.any()]
    return float(np.median(spreads)) if spreads else 0.0


def check_atoms(dict_init: Any, n_components: int | None, n_features: int) -> Array:
    """Return a given dictionary as an array, or raise with what is wrong with it."""
    atoms = np.asarray(dict_init)
    wanted = (n_components or "n_components", n_features)
    if atoms.ndim != 2 or atoms.shape[1] != n_features or len(atoms) == 0:
        raise ValueError(
            f"dict_init has shape {atoms.shape}; it must be {wanted}: one atom a row."
        )
    if n_components is not None and len(atoms) != n_components:
        raise ValueError(
            f"dict_init has {len(atoms)} atoms but n_components={n_components}; give "
            "as many atoms as components, or leave n_components out."
        )
    if atoms.dtype.kind not in "fiub" or not np.isfinite(atoms).all():
        raise ValueError("dict_init must hold finite numbers; it has NaN or infinity.")
    return atoms
