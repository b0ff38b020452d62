"""One race on the terminal, in a process of its own."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.suite.datasets import DATASETS
from benchmarks.suite.experiments import EXPERIMENTS
from somf.threads import resolve_n_threads

console = Console()


def in_own_process(function, *arguments):
    """Call a function in a new process: SPAMS loses some 30 MB in every call.

    It ends with this one: a race that nobody sees would go on, and slow the next.
    """
    process = multiprocessing.get_context("spawn").Process(
        target=function, args=arguments
    )
    process.start()
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        process.join()
    finally:
        process.terminate()  # nothing, if it has ended
        process.join()
        signal.signal(signal.SIGTERM, before)
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
