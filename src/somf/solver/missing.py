"""Entries that are not known: codes from the others, and what stands for them in B.

A missing entry of a sample is never observed: the code minimises the loss over the
others, with a Gram matrix of its own. For the dictionary the entry is then replaced by
what dictionary and code say, (D a)_f. The surrogate so defined is above the loss and
touches it at the present dictionary, so that the frame of majorization holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.kernels.gather import gather_features
from somf.solver.products import TILE
from somf.threads import Team

Array = NDArray[Any]
Missing = NDArray[np.bool_]


def known_grams(D: Array, G: Array, missing: Missing, team: Team) -> Array:
    """Dᵀ D over the known features of every sample, (n, k, k), from D as (k, q).

    `G` is the product over all of them; where little is missing, that is subtracted.
    """
    n, k = len(missing), len(D)
    grams = np.empty((n, k, k), D.dtype)
    atoms = np.arange(k)

    def part(start: int, stop: int) -> None:
        for i in range(start, stop):
            unknown = np.flatnonzero(missing[i])
            subtract = 2 * len(unknown) < missing.shape[1]
            chosen = unknown if subtract else np.flatnonzero(~missing[i])
            piece = np.empty((k, len(chosen)), D.dtype)
            gather_features(D, atoms, chosen, piece)
            product = piece @ piece.T
            grams[i] = G - product if subtract else product

    team.share(part, n)
    return grams


def impute(X: Array, missing: Missing, codes: Array, D: Array, team: Team) -> None:
    """Overwrite the missing entries of X (n, q) with those of codes · D."""

    def part(start: int, stop: int) -> None:
        for low in range(start, stop, TILE):
            here = slice(low, min(low + TILE, stop))
            np.copyto(X[:, here], codes @ D[:, here], where=missing[:, here])

    team.share(part, X.shape[1], smallest=TILE)
