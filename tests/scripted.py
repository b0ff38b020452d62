"""The fast solver on given random draws, to compare it with the slow reference."""

import numpy as np

from somf.problem import AtomConstraint, CodePenalty, Problem
from somf.sampling import Mask, MaskSampler
from somf.solver.iteration import Factorization, Settings
from somf.solver.schedule import Schedule
from somf.solver.state import State
from somf.sources.base import Batch
from somf.threads import Team


class ScriptedOrders:
    """Hands out given orders of the atoms, in place of a random generator."""

    def __init__(self, draws):
        self.upcoming = [orders[0] for _, _, orders in draws]

    def permutation(self, n):
        return self.upcoming.pop(0)


def make_draws(n_samples, n_features, k, n_steps, batch_size, masks, reduction, rng):
    """Rows, features and orders of a run: what `reference.somf` takes."""
    draws = []
    for _ in range(n_steps):
        rows = np.sort(rng.choice(n_samples, batch_size, replace=False))
        features = masks.draw(reduction, rng).features
        draws.append((rows, features, [rng.permutation(k)]))
    return draws


def make_problem(alpha, code_l1_ratio, dict_l1_ratio, positive_code, positive_dict):
    return Problem(
        CodePenalty(alpha, code_l1_ratio, positive_code),
        AtomConstraint(dict_l1_ratio, positive_dict),
    )


def run_scripted(X, atoms, draws, problem, n_threads=2, code_tol=0, **settings):
    """Run the solver over the draws; returns the final state and all codes."""
    n_features = X.shape[1]
    rng, masks = np.random.default_rng(0), MaskSampler(n_features)
    state = State.start(atoms.copy(), problem.constraint, rng, masks)
    state.rng = ScriptedOrders(draws)
    schedule = settings.pop("schedule", Schedule("paper"))
    settings = Settings(
        schedule=schedule,
        code_tol=code_tol,
        code_max_iter=100_000,
        idle_limit=10**9,
        **settings,
    )
    codes = []
    with Team(n_threads) as team:
        solver = Factorization(problem, settings, state, team)
        for rows, features, _ in draws:
            mask = Mask(features, n_features, n_features / len(features))
            codes.append(solver.step(Batch(X, rows, rows), mask).codes.dense)
    return state, codes
