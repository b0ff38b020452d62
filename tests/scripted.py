"""The fast solver on given random draws, to compare it with the slow reference."""

import numpy as np

from somf.problem import AtomConstraint, CodePenalty, Problem
from somf.sampling import Mask, MaskSampler
from somf.solver.iteration import Factorization, Settings
from somf.solver.schedule import Schedule
from somf.solver.state import State
from somf.sources.base import Batch
from somf.threads import Team


class ScriptedMasks(MaskSampler):
    """Hands out given masks."""

    def script(self, draws):
        self.upcoming = [features for _, features, _ in draws]
        return self

    def draw(self, reduction, rng):
        features = self.upcoming.pop(0)
        return Mask(features, self.n_features, self.n_features / len(features))


class ScriptedOrders:
    """Hands out given orders of the atoms, in place of a random generator."""

    bit_generator = np.random.default_rng(0).bit_generator  # its state may be read

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
    masks = ScriptedMasks(X.shape[1]).script(draws)
    state = State.start(atoms.copy(), problem.constraint, ScriptedOrders(draws), masks)
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
        for rows, _, _ in draws:
            codes.append(solver.step(Batch(X, rows, rows)).codes)
    return state, codes
