"""Command line of the benchmarks: run experiments, report them, list them."""

from __future__ import annotations

import multiprocessing
import time

import click
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.suite.datasets import DATASETS
from benchmarks.suite.experiments import EXPERIMENTS
from somf.threads import resolve_n_threads

console = Console()


@click.group(help=__doc__)
def main():
    pass


@main.command("list")
def list_all():
    """List experiments with their solvers, and data sets."""
    for experiment in EXPERIMENTS.values():
        console.print(f"[bold]{experiment.name}[/]: {experiment.title}")
        console.print(f"    on {', '.join(experiment.datasets)}")
        console.print(f"    {', '.join(solver.name for solver in experiment.solvers)}")
    for dataset in (kind() for kind in DATASETS.values()):
        missing = dataset.why_not()
        state = f"missing: {missing}" if missing else f"k = {dataset.k}"
        console.print(f"[bold]{dataset.name}[/]: {state}")


@main.command()
@click.argument("experiments", nargs=-1, type=click.Choice(list(EXPERIMENTS)))
@click.option("--dataset", "datasets", multiple=True, type=click.Choice(list(DATASETS)))
@click.option("--solver", "solvers", multiple=True, help="By name; default all.")
@click.option("--seeds", default=5, show_default=True)
@click.option("--first-seed", default=0, help="Splits to tune on: 1000 and above.")
@click.option("--budget", type=float, help="Seconds of a solver; default the data's.")
@click.option("--threads", type=int, help="Threads of every solver; default all.")
@click.option("--small", is_flag=True, help="Small variants of the data.")
def run(experiments, datasets, solvers, seeds, first_seed, budget, threads, small):
    """Run experiments; seeds are the outer loop, so that each is soon seen once."""
    for seed in range(first_seed, first_seed + seeds):
        for name in experiments:
            for kind in datasets or EXPERIMENTS[name].datasets:
                in_own_process(
                    run_one, name, kind, small, seed, budget, threads, solvers
                )
    for name in experiments:
        show(name)


def in_own_process(function, *arguments):
    """Call a function in a new process: SPAMS loses some 30 MB in every call."""
    process = multiprocessing.get_context("spawn").Process(
        target=function, args=arguments
    )
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"A race ended with exit code {process.exitcode}.")


def run_one(name, kind, small, seed, budget, threads, wanted):
    """Run one race with a bar for each solver."""
    experiment, dataset = EXPERIMENTS[name], DATASETS[kind](small)
    missing = dataset.why_not()
    if missing:
        console.print(f"{dataset.name} left out: {missing}")
        return
    start = time.perf_counter()
    console.print(f"[bold]{experiment.name}[/], {dataset.name}, seed {seed}")
    with Progress(
        TextColumn("{task.description:<28}"),
        BarColumn(),
        TextColumn("{task.fields[objective]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as progress:
        left_out = experiment.run(
            dataset,
            seed,
            budget or dataset.budget,
            resolve_n_threads(threads),
            wanted,
            Bars(progress),
        )
    for name, reason in left_out.items():
        console.print(f"    {name} left out: {reason}")
    console.print(f"    {time.perf_counter() - start:.0f} s in all")


class Bars:
    """A bar for each solver: how much of its budget is used, and its objective."""

    def __init__(self, progress):
        self.progress = progress
        self.tasks = {}

    def __call__(self, runners):
        for runner in runners:
            name = runner.curve.solver
            if name not in self.tasks:
                self.tasks[name] = self.progress.add_task(
                    name, total=runner.budget, objective=""
                )
            value = runner.curve.objectives[-1]
            self.progress.update(
                self.tasks[name],
                completed=runner.budget if runner.finished else runner.clock,
                objective=f"{value:.5g}",
            )


@main.command()
@click.argument("experiments", nargs=-1, type=click.Choice(list(EXPERIMENTS)))
def report(experiments):
    """Write and print the tables and figures of what has been run."""
    for name in experiments or EXPERIMENTS:
        show(name)


def show(name):
    text = EXPERIMENTS[name].report()
    if text:
        console.print(Markdown(text))


if __name__ == "__main__":
    main()
