"""The page of a run, from its facts."""

from __future__ import annotations

import html
import os
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from somf.report.advice import advise, fall_at_end
from somf.report.atoms import Atoms, HeatMaps, PatchGrid
from somf.report.charts import Curve, area_chart, bar_chart, line_chart, smooth
from somf.report.facts import Facts
from somf.report.words import duration, number, parameter

REFRESH = 5  # seconds between two looks at a run that is going


class Page:
    """An HTML page that needs no other file: write it, or let a notebook show it.

    Examples
    --------
    >>> from somf.report import Page
    >>> Page("<p>Hello</p>").html
    '<p>Hello</p>'
    """

    def __init__(self, text: str) -> None:
        self.html = text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file."""
        Path(path).write_text(self.html, encoding="utf-8")

    def _repr_html_(self) -> str:
        """Return the page in a frame, so that notebooks show it with its own style."""
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" title="somf report" '
            'style="width: 100%; height: 40rem; border: 1px solid #8884"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<somf report, {len(self.html) / 1e6:.1f} MB>"


def make_report(
    facts: Facts, atoms: Atoms | None = None, *, brief: bool = False
) -> Page:
    """Return the page of a run; one that is running refreshes itself.

    `atoms` shows the atoms, by default as heat maps; `brief` leaves them out.
    """
    drawer: Atoms = HeatMaps(facts.components) if atoms is None else atoms
    _check_atoms(drawer, facts)
    return render(
        "report.html",
        title=facts.name,
        facts=facts,
        refresh=REFRESH if facts.status == "running" else None,
        written=datetime.now().astimezone(),
        headline=headline(facts),
        advice=advise(facts),
        judged=fall_at_end(facts.trace) is not None,
        run=what_was_run(facts),
        changed=changed_parameters(facts),
        parameters={n: parameter(v) for n, v in facts.parameters.items()},
        charts=charts(facts),
        seconds=seconds_of_phases(facts.trace),
        usage=usage_chart(facts),
        atoms=None if brief else drawer.html(facts.order),
        caption=drawer.caption,
        sample_caption=drawer.sample_caption,
        examples=examples(facts, drawer),
    )


def _check_atoms(drawer: Atoms, facts: Facts) -> None:
    if not isinstance(drawer, HeatMaps | PatchGrid):
        return
    given, wanted = drawer.components.shape, facts.components.shape
    if given != wanted:
        raise ValueError(
            f"atoms={type(drawer).__name__} shows atoms of shape {given}, "
            f"(n_components, n_features), but those of the model have shape {wanted}; "
            "make it from the components_ of this model."
        )


def render(template: str, **values: Any) -> Page:
    """Fill a template of this package."""
    return Page(_environment().get_template(template).render(**values))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("somf.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    return environment


# -- numbers -------------------------------------------------------------------------


def headline(facts: Facts) -> dict[str, str]:
    """Return the numbers that one asks for first."""
    trace = facts.trace
    if len(trace["step"]) == 0:
        return {}
    tail = max(1, len(trace["step"]) // 10)
    found = {
        "objective": number(facts.objective),
        "codes not zero": f"{trace['density'][-tail:].mean():.1%}",
        "training time": duration(trace["time"][-1]),
        "iterations": number(int(trace["step"][-1])),
    }
    if np.isfinite(trace["epoch"][-1]):
        found["epochs"] = f"{trace['epoch'][-1]:.3g}"
    if facts.coded is not None and facts.coded.explained is not None:
        found["of the signal explained"] = f"{facts.coded.explained:.1%}"
    return found


def what_was_run(facts: Facts) -> dict[str, Any]:
    """Return what a reader has to know to repeat a run."""
    n_components, n_features = facts.components.shape
    found = {
        "samples": facts.n_samples,
        "features": n_features,
        "atoms": n_components,
        "type of numbers": str(facts.components.dtype),
        "reduction": facts.reduction,
        "features observed in an iteration": round(n_features / facts.reduction),
        "somf": _version(),
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


def _version() -> str:
    try:
        return version("somf")
    except PackageNotFoundError:  # run from its sources
        return ""


def changed_parameters(facts: Facts) -> dict[str, str]:
    """Return the parameters that are not at their defaults."""
    return {
        name: parameter(value)
        for name, value in facts.parameters.items()
        if isinstance(value, np.ndarray) or value != facts.defaults.get(name)
    }


# -- charts --------------------------------------------------------------------------


def charts(facts: Facts) -> dict[str, Markup]:
    """Return the charts of a trace by name; none if nothing has happened yet."""
    trace = facts.trace
    if len(trace["step"]) == 0:
        return {}
    width = max(1, len(trace["step"]) // 50)  # batches are noisy
    found = {
        "time": line_chart(
            objective_curves(trace, "time", width),
            "seconds after the first iteration",
            "objective",
            "Objective against time",
        )
    }
    counter = "epoch" if np.isfinite(trace["epoch"]).all() else "step"
    label = {"epoch": "epochs", "step": "iterations"}[counter]
    found["epochs"] = line_chart(
        objective_curves(trace, counter, width),
        label,
        "objective",
        f"Objective against {label}",
    )
    density = Curve("density", trace[counter], 100 * smooth(trace["density"], width))
    found["density"] = line_chart(
        [density], label, "codes not zero, %", "Density of the codes", zero=True
    )
    replaced = Curve("replaced", trace[counter], trace["replaced_atoms"])
    found["replaced"] = line_chart(
        [replaced],
        label,
        "atoms replaced so far",
        "Replaced atoms",
        zero=True,
        whole=True,
    )
    parts = {
        name: smooth(np.nan_to_num(seconds) * 1000, width)
        for name, seconds in phases(trace).items()
    }
    found["seconds"] = area_chart(
        trace[counter], parts, label, "milliseconds", "Time of an iteration by part"
    )
    return found


def objective_curves(
    trace: dict[str, NDArray[np.float64]], x: str, width: int
) -> list[Curve]:
    """Return the objective on batches, and on held-out samples if there were any."""
    at = since_start(trace) if x == "time" else trace[x]
    curves = [Curve("batches", at, smooth(trace["objective"], width))]
    held_out = trace["validation_objective"]
    if np.isfinite(held_out).any():
        curves.append(Curve("held-out samples", at, held_out, dots=True))
    return curves


def since_start(trace: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the seconds since the first iteration, which may have compiled."""
    return trace["time"] - trace["time"][:1]


def phases(trace: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    """Return the seconds of the parts of an iteration."""
    prefix = "seconds_"
    return {
        name.removeprefix(prefix): column
        for name, column in trace.items()
        if name.startswith(prefix)
    }


def seconds_of_phases(
    trace: dict[str, NDArray[np.float64]],
) -> dict[str, tuple[float, float]]:
    """Return for each part of an iteration its milliseconds, and its share."""
    if len(trace["step"]) == 0:
        return {}
    seconds = {
        name: float(np.nan_to_num(column).mean())
        for name, column in phases(trace).items()
    }
    total = sum(seconds.values()) or 1.0
    return {name: (1000 * value, value / total) for name, value in seconds.items()}


def usage_chart(facts: Facts) -> dict[str, Any]:
    """Return how much each atom is used, the most used first."""
    strength = bar_chart(
        facts.strength[facts.order],
        "atoms, the most used first",
        "size of codes",
        "Root mean square of the codes of each atom",
    )
    found: dict[str, Any] = {"strength": strength, "share": None}
    if facts.coded is not None and facts.coded.share.min() < 1:
        found["share"] = bar_chart(
            100 * np.sort(facts.coded.share)[::-1],
            "atoms, the most widely used first",
            "samples that use it, %",
            "Part of the samples that uses each atom",
        )
    return found


def examples(facts: Facts, drawer: Atoms) -> list[dict[str, Any]]:
    """Return samples with their reconstructions, the best first."""
    if facts.coded is None:
        return []
    return [
        {
            "row": example.row,
            "explained": f"{1 - example.error:.1%}",
            "n_atoms": example.n_atoms,
            "picture": drawer.sample(example.sample, example.reconstruction),
        }
        for example in facts.coded.examples
    ]
