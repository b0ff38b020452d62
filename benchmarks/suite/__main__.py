"""Command line of the benchmarks: run experiments, report them, list them."""

from __future__ import annotations

import click
from rich.markdown import Markdown

from benchmarks.suite.datasets import DATASETS
from benchmarks.suite.experiments import EXPERIMENTS
from benchmarks.suite.races import console, in_own_process, run_one


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
