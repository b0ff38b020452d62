"""The experiments: which solvers meet on which data, and what is drawn from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.suite import report
from benchmarks.suite.datasets import DATASETS
from benchmarks.suite.runner import RESULTS, race, record
from benchmarks.suite.solvers import (
    SGD,
    DictionaryLearning,
    MatrixVectorOMF,
    MiniBatchNMFSolver,
    NilearnDictLearning,
    Ours,
    Spams,
    SpamsWhole,
    SparsePCA,
)
from benchmarks.suite.solvers.sgd import STEPS

REDUCTIONS = (1, 4, 6, 8, 12, 24)
ALL = tuple(DATASETS)
USUAL = ("hyperspectral", "hyperspectral-nmf", "fmri-simulated", "photos")


@dataclass(frozen=True)
class Experiment:
    """A race; the first solver is the one that others are compared with."""

    name: str
    title: str
    solvers: tuple
    datasets: tuple = USUAL

    def run(self, dataset, seed, budget, n_threads, wanted, watch):
        """Run one race and keep its record; returns what was left out and why."""
        solvers, left_out = [], {}
        for solver in self.solvers:
            reason = solver.supports(dataset)
            if reason:
                left_out[solver.name] = reason
            elif not wanted or solver.name in wanted:
                solvers.append(solver)
        if solvers:
            runners, foreign = race(dataset, solvers, seed, budget, n_threads, watch)
            self.keep(runners, dataset, seed, n_threads, foreign_seconds=foreign)
        return left_out

    def keep(self, runners, dataset, seed, n_threads, **more):
        curves = [runner.curve for runner in runners]
        record(self.name, dataset, seed, n_threads, curves, **more)

    def report(self):
        return report.write_report(self.name, self.title)


class Profile(Experiment):
    """Seconds of each phase of a step, against the reduction."""

    def keep(self, runners, dataset, seed, n_threads, **more):
        phases = {}
        for runner in runners:
            trace = runner.solver.model.trace_
            phases[runner.curve.solver] = {
                name.removeprefix("seconds_"): float(np.median(column))
                for name, column in trace.items()
                if name.startswith("seconds_")
            }
        super().keep(runners, dataset, seed, n_threads, phases=phases, **more)

    def report(self):
        text = super().report()
        if text is None:
            return None
        parts = [text, "# Milliseconds of a step, by phase"]
        for name, summary in report.summarise(self.name).items():
            phases = [r["phases"] for r in summary.records]
            parts += [f"## {name}", phase_table(phases)]
        text = "\n\n".join(parts) + "\n"
        (RESULTS / f"{self.name}.md").write_text(text)
        return text


def phase_table(phases):
    """Return the medians over races of the medians over steps, as Markdown."""
    names = list(next(iter(phases[0].values())))
    lines = [["solver", *names, "sum"], ["---"] * (len(names) + 2)]
    for solver in phases[0]:
        cells = [
            1e3 * np.median([p[solver][name] for p in phases if solver in p])
            for name in names
        ]
        lines.append([solver, *(f"{x:.2f}" for x in cells), f"{sum(cells):.2f}"])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


class Atoms(Experiment):
    """Pictures of the atoms that equal budgets give."""

    def keep(self, runners, dataset, seed, n_threads, **more):
        super().keep(runners, dataset, seed, n_threads, **more)
        dictionaries = {r.curve.solver: r.solver.dictionary() for r in runners}
        RESULTS.mkdir(exist_ok=True)
        draw_atoms(dictionaries, dataset, RESULTS / f"atoms-{dataset.name}.png")


def draw_atoms(dictionaries, dataset, path, n_side=6):
    """Write a picture with some atoms of each dictionary."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    page = Figure(figsize=(4 * len(dictionaries), 4.4), layout="constrained")
    FigureCanvasAgg(page)
    parts = np.atleast_1d(page.subfigures(1, len(dictionaries)))
    for part, (name, D) in zip(parts, dictionaries.items(), strict=True):
        axes = part.subplots(n_side, n_side)
        part.suptitle(name)
        for axis, atom in zip(axes.ravel(), D, strict=False):
            picture = dataset.picture(atom)
            if picture is not None:
                axis.imshow(picture)
        for axis in axes.ravel():
            axis.axis("off")
    page.savefig(path, dpi=110)


def ours(**parameters):
    """Our solver with a name that says what is not default."""
    names = {"reduction": "r", "code_estimator": "", "aggregation": "", "weights": ""}
    words = [f"{names.get(k, k)}={v}".lstrip("=") for k, v in parameters.items()]
    return Ours("somf " + " ".join(words), **parameters)


# The paper's algorithm and batches; the defaults are ours.
PAPER = {"dict_update": "observed", "weights": "paper", "batch_size": 200}


def papers(name="", **parameters):
    """The paper's SOMF, with a name that says how it is set."""
    words = [f"{k.replace('reduction', 'r')}={v}" for k, v in parameters.items()]
    return Ours(name or "paper " + " ".join(words), **(PAPER | parameters))


OMF = Ours("omf", reduction=1)
OMF_PAPER = papers("omf paper weights", reduction=1, budget_factor=3)

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "peers",
            "Our defaults against other packages",
            (
                Ours(),
                OMF_PAPER,
                Spams(),
                DictionaryLearning(),
                MiniBatchNMFSolver(budget_factor=4.0),
                SGD(),
            ),
            ALL,
        ),
        Experiment(
            "brain",
            "Sparse maps: packages that fit whole images",
            (Ours(), NilearnDictLearning(), SparsePCA()),
            ("fmri-simulated", "fmri-real"),
        ),
        Experiment(
            "reductions",
            "Reduction factors (the paper's speed-up figure)",
            (
                papers(reduction=12),
                *(papers(reduction=r) for r in REDUCTIONS if r != 12),
                MatrixVectorOMF("gemv"),
                MatrixVectorOMF("rank-one"),
            ),
        ),
        Experiment(
            "defaults",
            "Our defaults against fixed reductions",
            (Ours(), *(ours(reduction=r) for r in REDUCTIONS), OMF_PAPER),
            ALL,
        ),
        Experiment(
            "estimators",
            "Code estimators at r = 12 and 24",
            tuple(
                papers(reduction=r, code_estimator=e)
                for r in (12, 24)
                for e in ("masked", "averaged", "gram", "exact")
            ),
            ("hyperspectral", "fmri-simulated"),
        ),
        Experiment(
            "aggregations",
            "Ways to aggregate, r = 12",
            tuple(
                papers(reduction=12, aggregation=a) for a in ("async", "full", "masked")
            ),
        ),
        Experiment(
            "updates",
            "All features of the dictionary in an iteration, or the observed ones",
            (
                Ours(),
                *(
                    ours(dict_update=u, batch_size=b)
                    for u in ("all", "observed")
                    for b in (200, 400, 800)
                    if (u, b) != ("all", 400)  # the default
                ),
            ),
        ),
        Experiment(
            "weights",
            "Weights of the statistics",
            (
                ours(weights="fast"),
                ours(weights="paper"),
                ours(reduction=1, weights="fast"),
                ours(reduction=1, weights="paper"),
            ),
        ),
        Profile(
            "profile",
            "Where the time of a step goes",
            tuple(papers(reduction=r) for r in REDUCTIONS),
            ("hyperspectral", "fmri-simulated"),
        ),
        Atoms(
            "atoms",
            "Atoms at equal time budget",
            (
                Ours(),
                OMF,
                papers("omf paper weights", reduction=1),
                Spams(budget_factor=1),
            ),
            ("hyperspectral", "hyperspectral-nmf", "photos"),
        ),
        Experiment(
            "precision",
            "The last digits, with and without a falling reduction",
            (
                Ours(budget_factor=3),
                Ours("omf", reduction=1, budget_factor=3),
                *(
                    Ours(
                        f"somf falling r, {n} epochs",
                        reduction_schedule="decreasing",
                        n_epochs=n,
                        budget_factor=3,
                    )
                    for n in (5, 10, 20)
                ),
                Spams(budget_factor=6),
            ),
        ),
        Experiment(
            "grid",
            "Our defaults against every fixed choice",
            (
                Ours(),
                *(
                    ours(reduction=r, weights=w, batch_size=b)
                    for r in (1, 4, 12)
                    for w in ("fast", "paper")
                    for b in (200, 400, 800, 1600)
                ),
            ),
        ),
        Experiment(
            "sgd",
            "Steps of projected SGD",
            (Ours(), OMF_PAPER, *(SGD(c) for c in STEPS)),
        ),
        Experiment(
            "quality",
            "20 epochs of SPAMS, and us in --budget seconds, no more than they take",
            (Ours(), Spams(budget_factor=50, most_epochs=20)),
            ALL,
        ),
        Experiment(
            "spams",
            "SPAMS in pieces against SPAMS in whole runs",
            (Spams(), SpamsWhole(budget_factor=4.0), Spams(400), Spams(512)),
        ),
    )
}
