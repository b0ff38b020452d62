"""`somf report`: pictures of how a run went."""

from __future__ import annotations

from typing import Any

import click

from somf.cli.base import Command, json_option, show
from somf.cli.runs import RunFolder, read_trace, written_beside

SMOOTH = 50  # batches are noisy: the line is a mean over this part of the run


@click.command(cls=Command)
@click.argument("run", type=click.Path(file_okay=False))
@json_option
def report(run: str, as_json: bool) -> None:
    """Draw how a run went: objective, density, seconds.

    Writes report.png into the folder of the run.
    """
    folder = RunFolder(run)
    if not folder.trace.exists():
        raise FileNotFoundError(f"{run} holds no {folder.trace.name}: no finished run.")
    trace = read_trace(folder.trace)
    target = folder.report
    figure = draw(trace)
    with written_beside(target) as beside:
        figure.savefig(beside, dpi=110, format="png")
    show(as_json, {"report": str(target)}, [f"Report: {target}"])


def draw(trace: dict[str, list[float]]) -> Any:
    """Return a figure of the columns of a trace."""
    from somf.sources.checks import need

    need("matplotlib", "demo", "Drawing a report")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(11, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    draw_objective(axes[0, 0], trace, trace["time"], "seconds")
    draw_objective(axes[0, 1], trace, trace["epoch"], "epochs")
    axes[1, 0].plot(trace["step"], smooth(trace["density"]))
    axes[1, 0].set(xlabel="iterations", ylabel="part of the codes that is not zero")
    axes[1, 0].set_ylim(bottom=0)
    draw_seconds(axes[1, 1], trace)
    for axis in axes.ravel():
        axis.grid(alpha=0.3)
    return figure


def draw_objective(axis: Any, trace: Any, x: Any, label: str) -> None:
    """Draw the objective of batches, and of held-out samples if there were any."""
    axis.plot(x, trace["objective"], ".", ms=2, alpha=0.3, color="gray")
    axis.plot(x, smooth(trace["objective"]), label="batches, before they are learned")
    held_out = [(a, b) for a, b in zip(x, trace["validation_objective"], strict=True)]
    held_out = [(a, b) for a, b in held_out if b == b]
    if held_out:
        axis.plot(*zip(*held_out, strict=True), "o-", label="held-out samples")
    axis.set(xlabel=label, ylabel="objective")
    axis.legend()


def draw_seconds(axis: Any, trace: Any) -> None:
    """Draw what the parts of an iteration take, one on top of the other."""
    names = [name for name in trace if name.startswith("seconds_")]
    heights = [smooth([0.0 if s != s else s for s in trace[name]]) for name in names]
    labels = [name.removeprefix("seconds_") for name in names]
    axis.stackplot(trace["step"], heights, labels=labels)
    axis.set(xlabel="iterations", ylabel="seconds per iteration")
    axis.legend()


def smooth(values: Any) -> Any:
    """Return the running mean over a part of the run."""
    import numpy as np

    width = max(1, len(values) // SMOOTH)
    window = np.ones(width)
    return np.convolve(values, window, "same") / np.convolve(
        np.ones(len(values)), window, "same"
    )
