"""The problem: a penalty on codes, a constraint on atoms, and how strong a penalty is.

    min over D in C, A   Σ_i  ½‖x_i − D a_i‖² + alpha·Ω(a_i)

Both are frozen sets of numbers that call plain kernels. `l1_ratio` is 1 − ν for the
codes and 1 − μ for the atoms in the paper's letters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from somf.kernels.coding import ridge_codes, solve_codes
from somf.kernels.projection import enet_norm, project_rows
from somf.threads import Team

Array = NDArray[Any]


@dataclass(frozen=True)
class CodePenalty:
    """alpha·Ω(a), with Ω(a) = l1_ratio·|a|₁ + (1 − l1_ratio)/2·|a|₂²."""

    alpha: float
    l1_ratio: float
    positive: bool = False

    @property
    def l1(self) -> float:
        """Weight of |a|₁."""
        return float(self.alpha * self.l1_ratio)

    @property
    def l2(self) -> float:
        """Weight of ½|a|₂²."""
        return float(self.alpha * (1 - self.l1_ratio))

    @property
    def is_ridge(self) -> bool:
        """Whether codes are the solution of a linear system."""
        return self.l1_ratio == 0 and not self.positive

    def __call__(self, codes: Array) -> NDArray[np.float64]:
        """Return alpha·Ω of every row."""
        size = np.abs(codes).sum(axis=1, dtype=np.float64)
        square = np.einsum("ij,ij->i", codes, codes, dtype=np.float64)
        return np.asarray(self.l1 * size + 0.5 * self.l2 * square)

    def solve(
        self,
        G: Array,
        beta: Array,
        energy: Array,
        codes: Array,
        team: Team,
        *,
        tol: float,
        max_sweeps: int,
    ) -> NDArray[np.float64]:
        """Overwrite `codes` with argmin_a ½aᵀGa − βᵀa + alpha·Ω(a) for every row of β.

        G is (1, k, k), shared, or (n, k, k). What `codes` holds is the starting point.
        Returns ½(energy − 2βᵀa + aᵀGa) + alpha·Ω(a) of every row.
        """
        if self.is_ridge:
            return self._solve_ridge(G, beta, energy, codes, team)
        losses = np.empty(len(beta))

        def descend(start: int, stop: int) -> None:
            solve_codes(
                G,
                beta,
                energy,
                codes,
                losses,
                self.l1,
                self.l2,
                self.positive,
                tol,
                max_sweeps,
                start,
                stop,
            )

        team.share(descend, len(beta))
        return losses

    def _solve_ridge(
        self, G: Array, beta: Array, energy: Array, codes: Array, team: Team
    ) -> NDArray[np.float64]:
        # Without a penalty, or with atoms that coincide, the system may be singular to
        # rounding: a ridge of the size of the rounding picks a solution near the least
        # norm. It is far below any penalty that a user would notice.
        top = float(np.max(np.diagonal(G, axis1=1, axis2=2), initial=0.0))
        floor = 10 * G.shape[-1] * float(np.finfo(G.dtype).eps) * top
        l2 = max(self.l2, floor) or 1.0
        if len(G) == 1:
            H = G[0] + l2 * np.eye(G.shape[-1], dtype=G.dtype)
            factor = scipy.linalg.cho_factor(H, overwrite_a=True, check_finite=False)
            codes[:] = scipy.linalg.cho_solve(factor, beta.T, check_finite=False).T
        else:
            l2 = G.dtype.type(l2)

            def solve(start: int, stop: int) -> None:
                ridge_codes(G, beta, codes, l2, start, stop)

            team.share(solve, len(beta))
        fit = np.einsum("ij,ij->i", beta, codes, dtype=np.float64)
        square = np.einsum("ij,ij->i", codes, codes, dtype=np.float64)
        residual = energy - fit - l2 * square  # aᵀGa = βᵀa − l2·|a|²
        return np.asarray(0.5 * np.maximum(residual, 0) + 0.5 * self.l2 * square)


@dataclass(frozen=True)
class AtomConstraint:
    """The ball ‖d‖ = l1_ratio·|d|₁ + (1 − l1_ratio)/2·|d|₂² ≤ 1 for every atom."""

    l1_ratio: float
    positive: bool = False

    @property
    def l2_ratio(self) -> float:
        """Weight of ½|d|₂²."""
        return 1 - self.l1_ratio

    def norms(self, atoms: Array) -> NDArray[np.float64]:
        """‖d‖ of every row of `atoms`, in float64."""
        l1, l2 = float(self.l1_ratio), float(self.l2_ratio)
        return np.array([enet_norm(d, l1, l2) for d in atoms])

    def project(self, atoms: Array, radius: float = 1.0) -> Array:
        """Return the rows of `atoms`, each projected on the ball of that radius."""
        projected = np.array(atoms, order="C")
        self._project_in_place(projected, radius)
        return projected

    def _project_in_place(self, atoms: Array, radius: float = 1.0) -> None:
        l1, l2 = float(self.l1_ratio), float(self.l2_ratio)
        project_rows(atoms, l1, l2, float(radius), self.positive)

    def rescale(self, atoms: Array) -> Array:
        """Return the rows of `atoms` (n, p) scaled to norm 1; zero rows stay zero."""
        atoms = np.maximum(atoms, 0) if self.positive else np.array(atoms, order="C")
        for d in atoms:  # one by one: temporary copies of all would be noticed
            top = np.abs(d).max(initial=0)
            if top > 0:
                d /= top
                size = self.l1_ratio * np.abs(d).sum(dtype=np.float64)
                square = np.einsum("i,i->", d, d, dtype=np.float64)
                d *= 2 / (size + np.sqrt(size**2 + 2 * self.l2_ratio * square))
        self._project_in_place(atoms)
        return atoms


@dataclass(frozen=True)
class Problem:
    """What is minimised: the penalty on the codes and the constraint on the atoms."""

    penalty: CodePenalty
    constraint: AtomConstraint


def alpha_max(
    X: ArrayLike,
    *,
    code_l1_ratio: float = 1.0,
    dict_l1_ratio: float = 0.0,
    positive_code: bool = False,
    positive_dict: bool = False,
) -> float:
    """Return the smallest alpha for which all codes are zero, whatever the dictionary.

    A good start for sparse codes is a tenth of it; halve it for more non-zero codes.
    Codes vanish when no atom of the ball correlates with a sample by more than
    ``alpha * code_l1_ratio``, so this is the largest support function of the ball over
    the samples, divided by `code_l1_ratio`.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (n_samples, n_features)
        Samples, without NaN; a few hundred are enough to set a scale.
    code_l1_ratio, dict_l1_ratio, positive_code, positive_dict
        As in :class:`somf.SOMF`.

    Returns
    -------
    alpha : float

    Examples
    --------
    >>> import numpy as np
    >>> from somf import alpha_max
    >>> round(alpha_max(np.array([[3.0, 4.0]])), 4)  # the ball's radius is sqrt(2)
    7.0711
    """
    X = _complete_samples(X)
    if not 0 < code_l1_ratio <= 1:
        raise ValueError(
            f"code_l1_ratio={code_l1_ratio!r} must be in (0, 1]: with a pure ridge "
            "penalty (code_l1_ratio=0) codes are never all zero, so there is no "
            "largest alpha. docs/how-it-works.md has a rule for ridge codes."
        )
    top = 0.0
    for x in X:
        x = np.asarray(x, np.float64)
        # Atoms of one sign meet x, or −x with a negative code; others meet |x|.
        faces = [np.maximum(x, 0), np.maximum(-x, 0)] if positive_dict else [np.abs(x)]
        if positive_code:
            faces = faces[:1]
        top = max(top, *(_support(face, dict_l1_ratio) for face in faces))
    return top / code_l1_ratio


def _complete_samples(X: Any) -> Array:
    """Return samples as an array of numbers, all of which are known."""
    samples = X.toarray() if scipy.sparse.issparse(X) else np.asarray(X)
    if samples.dtype.kind not in "fiub":
        raise TypeError(
            f"X holds {samples.dtype}; alpha_max takes an array of numbers. Of a file, "
            "read a few samples: somf.sources.open_source(path).read(np.arange(200))."
        )
    if not np.isfinite(samples).all():
        raise ValueError(
            "X holds NaN or infinity; alpha_max needs complete samples. Give those "
            "without gaps, or fill them: np.nan_to_num(X)."
        )
    return np.atleast_2d(samples)


def _support(x: NDArray[np.float64], l1_ratio: float) -> float:
    """Return max of xᵀd over the ball, for x ≥ 0.

    The maximiser is d = (x − τ·l1)₊/(τ·l2) with ‖d‖ = 1; ‖d‖ falls with τ.
    """
    l1, l2 = l1_ratio, 1 - l1_ratio
    top = float(x.max(initial=0))
    if top == 0:
        return 0.0
    if l2 == 0:
        return top
    length = float(np.linalg.norm(x))
    if l1 == 0:
        return float(np.sqrt(2) * length)

    def atom(tau: float) -> NDArray[np.float64]:
        return np.asarray(np.maximum(x - tau * l1, 0) / (tau * l2))

    def norm(tau: float) -> float:
        d = atom(tau)
        return float(l1 * d.sum() + 0.5 * l2 * (d @ d))

    low, high = 0.0, top / l1
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if norm(middle) > 1 else (low, middle)
    return float(x @ atom(high))
