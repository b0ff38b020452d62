"""Stochastic majorization-minimization, exact (SMM, Alg. 2) and approximate (SAMM).

To minimise E_x[f(θ, x)], draw a sample x_t and

1. majorize   build a surrogate g_t ≥ f(·, x_t) that touches it at θ_{t−1},
2. aggregate  ḡ_t = (1 − w_t) ḡ_{t−1} + w_t g_t,
3. minimize   θ_t = argmin ḡ_t.

SAMM allows g_t to be off by an error that vanishes, and θ_t only to decrease ḡ_t by a
constant part of what is possible, in expectation; the limit points are stationary all
the same (Proposition 3 of the paper). Online matrix factorization is SMM with θ = D and
one pass of block coordinate descent; SOMF is SAMM with subsampled steps 1 and 3. The
tests hold another instance, l1-penalised logistic regression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

Sample = TypeVar("Sample", contravariant=True)
Surrogate = TypeVar("Surrogate")


class Majorization(Protocol[Sample, Surrogate]):
    """A problem with its aggregated surrogate ḡ and its iterate θ.

    `Surrogate` is whatever represents g_t: its parameters, not the function.
    """

    def majorize(self, sample: Sample) -> Surrogate:
        """Return a surrogate of the loss of `sample`, (nearly) tight at θ."""
        ...

    def aggregate(self, surrogate: Surrogate, weight: float) -> None:
        """Mix the surrogate into ḡ with this weight."""
        ...

    def minimize(self) -> None:
        """Move θ to a minimum of ḡ, or at least towards one."""
        ...


def step(
    instance: Majorization[Sample, Surrogate], sample: Sample, weight: float
) -> Surrogate:
    """One iteration; returns the surrogate of the sample."""
    surrogate = instance.majorize(sample)
    instance.aggregate(surrogate, weight)
    instance.minimize()
    return surrogate


def samm(
    instance: Majorization[Sample, Surrogate],
    samples: Iterable[Sample],
    weight: Callable[[int], float],
) -> Iterator[Surrogate]:
    """Iterate over `samples` with the weights w_1 = 1, w_2, …, yielding surrogates.

    The convergence result asks for w_t = t^−u with u in (3/4, 1) for exact steps, and
    u in (11/12, 1) for the approximations of SOMF.
    """
    for t, sample in enumerate(samples, start=1):
        yield step(instance, sample, weight(t))
