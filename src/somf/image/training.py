"""How alpha is found when nobody gives it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from somf.estimator import SOMF
from somf.image.coding import Coder
from somf.image.patches import fill_gaps
from somf.problem import AtomConstraint
from somf.progress import PATIENCE, CountProgress
from somf.sources.base import SampleSource
from somf.threads import Team, resolve_n_threads

Array = NDArray[Any]

N_JUDGED = 300  # patches on which non-zero codes are counted
N_ROUNDS = 4  # batches of the warm-up, each followed by a new alpha


class AlphaRule:
    """The alpha for which a share `nonzero` of the codes is not zero.

    Codes become sparser or denser while atoms are learned, so alpha is set by bisection
    on a few hundred patches three times over: for patches as atoms, after each batch of
    a short warm-up, whose last alpha is that of the training, and for the dictionary
    that was learned. The last one differs little, and makes the share true.
    """

    def __init__(
        self,
        source: SampleSource,
        n_bands: int,
        nonzero: float,
        rng: np.random.Generator,
    ) -> None:
        self.source = source
        self.n_bands = n_bands
        self.nonzero = nonzero
        self.rng = rng
        self.judged = fill_gaps(self._draw(N_JUDGED), n_bands)

    def before(self, model: SOMF) -> float:
        """Return the alpha to train a new model with."""
        trial = clone(model).set_params(progress=False)
        n_atoms = min(trial.n_components, self.source.shape[0])
        atoms = fill_gaps(self._draw(n_atoms), self.n_bands)
        constraint = AtomConstraint(trial.dict_l1_ratio, bool(trial.positive_dict))
        trial.alpha = self._alpha(trial, constraint.rescale(atoms))
        with CountProgress(
            "warm-up", "batches", wanted=model.progress, delay=PATIENCE
        ) as progress:
            for i in range(N_ROUNDS):
                trial.partial_fit(self._draw(2 * n_atoms))
                trial.alpha = self.after(trial)
                progress(i + 1, N_ROUNDS)
        return float(trial.alpha)

    def after(self, model: SOMF) -> float:
        """Return the alpha for the dictionary of a model."""
        return self._alpha(model, model.components_)

    def _alpha(self, model: SOMF, atoms: Array) -> float:
        with Team(resolve_n_threads(model.n_threads)) as team:
            coder = Coder(atoms, model.code_l1_ratio, bool(model.positive_code), team)
            return coder.alpha_for(self.judged, self.nonzero)

    def _draw(self, n: int) -> Array:
        n_patches = self.source.shape[0]
        rows = self.rng.choice(n_patches, min(n, n_patches), replace=False)
        return self.source.read(np.sort(rows))
