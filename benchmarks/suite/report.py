"""Tables and figures from the records of races."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np

from benchmarks.suite.runner import RESULTS

LEGEND = """Seconds until the held-out objective is within x % of the best that anyone
reached on that split: median (least to most) over seeds. Ratios are between times of
the same race, where the first solver arrived. "Its own 0.1 %": from when on a solver is
within 0.1 % of its own best, over the time in which the first solver is as good."""
LEVELS = (5, 2, 1, 0.1, 0.01)  # per cent above the best objective


def read(experiment=None):
    """Return the records of an experiment, or of all."""
    paths = sorted(RESULTS.glob(f"{experiment or '*'}.jsonl"))
    lines = (line for path in paths for line in path.read_text().splitlines())
    return [json.loads(line) for line in lines]


def key(record):
    """What two races must share to be compared: data, size and split."""
    return record["dataset"], record["small"], record["seed"]


def best_objectives(records):
    """Return the lowest objective that anyone reached, for each split."""
    best = defaultdict(lambda: np.inf)
    for record in records:
        for curve in record.get("curves", ()):
            best[key(record)] = min(best[key(record)], *curve["objectives"])
    return best


def time_to(curve, target):
    """Return when a curve first reaches `target`, interpolated; inf if never."""
    times, values = np.array(curve["times"]), np.array(curve["objectives"])
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    reached = np.flatnonzero(values <= target)
    if len(reached) == 0:
        return np.inf
    i = reached[0]
    if i == 0 or times[i - 1] == 0 or not np.isfinite(values[i - 1]):
        return float(times[i])
    part = np.log(values[i - 1] / target) / np.log(values[i - 1] / values[i])
    return float(times[i - 1] ** (1 - part) * times[i] ** part)


class Summary:
    """Times of all solvers on one data set, over the seeds."""

    def __init__(self, records, best):
        self.records = list({r["seed"]: r for r in records}.values())  # the last ones
        self.best = best
        names = [c["solver"] for r in self.records for c in r["curves"]]
        self.solvers = list(dict.fromkeys(names))

    def curves(self, solver):
        """Yield (record, curve) of a solver, race by race."""
        for record in self.records:
            for curve in record["curves"]:
                if curve["solver"] == solver:
                    yield record, curve

    def times(self, solver, level):
        """Return {seed: seconds until within `level` per cent of the best}."""
        return {
            record["seed"]: time_to(curve, self.best[key(record)] * (1 + level / 100))
            for record, curve in self.curves(solver)
        }

    def ratios(self, solver, level, ours):
        """Return times over ours in the same race, where ours arrived."""
        mine = self.times(ours, level)
        return [
            seconds / mine[seed]
            for seed, seconds in self.times(solver, level).items()
            if np.isfinite(mine.get(seed, np.inf))
        ]

    def own_ratios(self, solver, level, ours):
        """Return times until within `level` per cent of its own best, over ours."""
        mine = {record["seed"]: curve for record, curve in self.curves(ours)}
        ratios = []
        for record, curve in self.curves(solver):
            target = min(curve["objectives"]) * (1 + level / 100)
            if record["seed"] in mine:
                seconds = time_to(mine[record["seed"]], target)
                ratios.append(time_to(curve, target) / seconds)
        return ratios

    def row(self, solver, ours):
        """Return the cells of the table for one solver."""
        cells = [solver]
        cells += [spread(list(self.times(solver, x).values())) for x in LEVELS]
        cells.append(spread(self.ratios(solver, 1, ours)))
        cells.append(spread(self.ratios(solver, 0.1, ours)))
        cells.append(spread(self.own_ratios(solver, 0.1, ours)))
        last = [
            100 * (min(c["objectives"]) / self.best[key(r)] - 1)
            for r, c in self.curves(solver)
        ]
        cells.append(f"{np.median(last):.2f}")
        cells.append(f"{np.median([c['warm_up'] for _, c in self.curves(solver)]):.1f}")
        return cells


def spread(values):
    """Return 'median (least to most)' in few digits."""
    if not values:
        return "-"
    low, middle, high = (show(f(values)) for f in (min, np.median, max))
    return middle if len(values) == 1 else f"{middle} ({low} to {high})"


def show(value):
    if not np.isfinite(value):
        return "∞"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def table(summary):
    """Return the Markdown table of a data set."""
    ours = summary.solvers[0]
    head = ["solver", *(f"to {x:g} %" for x in LEVELS)]
    head += [f"to 1 % / {ours}", f"to 0.1 % / {ours}", f"its own 0.1 % / {ours}"]
    head += ["end, % above", "warm-up s"]
    lines = [head, ["---"] * len(head)]
    lines += [summary.row(solver, ours) for solver in summary.solvers]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def footer(records):
    """Return what the numbers depend on, in words."""
    record = records[-1]
    m = record["machine"]
    foreign = sum(r.get("foreign_seconds", 0) for r in records)
    versions = ", ".join(f"{k} {v}" for k, v in m["versions"].items() if v)
    return (
        f"{m['cpu']}, {m['n_cores']} cores, {record['n_threads']} threads; Python "
        f"{m['python']}, {versions}; {record['date']}; `{record['command']}`. "
        f"Other processes used {foreign:.0f} s of processor time during the races."
    )


def figure(summaries, path, title):
    """Write the curves: how far above the best, against time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(2, len(summaries))
    rows = -(-len(summaries) // columns)
    page = Figure(figsize=(6.4 * columns, 4.4 * rows), layout="constrained")
    FigureCanvasAgg(page)
    axes = page.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[len(summaries) :]:
        axis.axis("off")
    # A solver has the same colour on all data.
    everyone = list(dict.fromkeys(s for x in summaries.values() for s in x.solvers))
    for axis, (name, summary) in zip(axes, summaries.items(), strict=False):
        for solver in summary.solvers:
            i = everyone.index(solver)
            draw_curve(axis, summary, solver, f"C{i % 10}", "-" if i < 10 else "--")
        axis.set(
            xscale="log",
            yscale="log",
            title=name,
            xlabel="seconds of the solver",
            ylabel="held-out objective, % above the best",
        )
        axis.axhline(1, color="grey", lw=0.8, ls=":")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    page.suptitle(title)
    page.savefig(path, dpi=110)


def draw_curve(axis, summary, solver, colour, style):
    """Draw the median over the seeds, and a band from the least to the most."""
    curves = [
        (np.array(c["times"])[1:], np.array(c["objectives"])[1:] / summary.best[key(r)])
        for r, c in summary.curves(solver)
        if len(c["times"]) > 1
    ]
    if not curves:
        return
    start = max(t[0] for t, _ in curves)
    end = min(t[-1] for t, _ in curves)
    grid = np.geomspace(start, max(end, start * 1.001), 80)
    gaps = [
        np.interp(np.log(grid), np.log(t), np.log(np.maximum(v - 1, 1e-5) * 100))
        for t, v in curves
    ]
    low, middle, high = np.exp([np.min(gaps, 0), np.median(gaps, 0), np.max(gaps, 0)])
    axis.plot(grid, middle, color=colour, ls=style, label=solver)
    axis.fill_between(grid, low, high, color=colour, alpha=0.15, lw=0)


def summarise(experiment):
    """Return a Summary for each data set of an experiment."""
    best = best_objectives(read())
    groups = defaultdict(list)
    for record in read(experiment):
        if record.get("curves"):
            name = record["dataset"] + (" (small)" if record["small"] else "")
            groups[name].append(record)
    return {name: Summary(records, best) for name, records in groups.items()}


def write_report(experiment, title):
    """Write the table and the figure of an experiment; returns the Markdown."""
    summaries = summarise(experiment)
    if not summaries:
        return None
    figure(summaries, RESULTS / f"{experiment}.png", title)
    parts = [f"# {title}", LEGEND]
    for name, summary in summaries.items():
        parts += [f"## {name}, k = {summary.records[0]['k']}", table(summary)]
        parts.append(footer(summary.records))
    parts.append(f"![{title}]({experiment}.png)")
    text = "\n\n".join(parts) + "\n"
    (RESULTS / f"{experiment}.md").write_text(text)
    return text
