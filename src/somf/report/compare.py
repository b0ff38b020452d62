"""Several runs on one page: curves overlaid, atoms matched."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from somf.report.advice import advise
from somf.report.atoms import Atoms, HeatMaps
from somf.report.charts import Curve, line_chart, smooth
from somf.report.facts import Facts
from somf.report.page import Page, headline, render, since_start
from somf.report.words import parameter

Array = NDArray[Any]

N_PAIRS = 30  # atoms that are shown side by side
# Parameters that tell what is minimized: only with the same are objectives comparable.
PROBLEM = {"alpha", "code_l1_ratio", "dict_l1_ratio", "positive_code", "positive_dict"}


def compare(runs: Sequence[Facts], atoms: Sequence[Atoms | None] = ()) -> Page:
    """Return a page that compares runs with the first of them.

    Parameters
    ----------
    runs : list of Facts
        Two or more.
    atoms : list of objects that show atoms, default=()
        One for each run; None, or an empty list, shows heat maps.

    Returns
    -------
    page : Page

    Examples
    --------
    >>> import numpy as np
    >>> from somf import SOMF
    >>> from somf.report import compare, facts_of
    >>> models = [SOMF(2, alpha=alpha).fit(np.eye(10)) for alpha in (0.1, 0.2)]
    >>> compare([facts_of(model, name=f"{model.alpha}") for model in models])
    <somf report, ... MB>
    """
    if len(runs) < 2:
        raise ValueError(f"{len(runs)} run was given; compare takes two or more.")
    shown = list(atoms) or [None] * len(runs)
    drawers: list[Atoms] = [
        drawer or HeatMaps(run.components)
        for run, drawer in zip(runs, shown, strict=True)
    ]
    first = runs[0]
    known = [run.components.shape[1] == first.components.shape[1] for run in runs]
    matches = [
        match_atoms(first.components, run.components) if same else None
        for run, same in zip(runs, known, strict=True)
    ]
    return render(
        "compare.html",
        title="Comparison of runs",
        refresh=None,
        written=datetime.now().astimezone(),
        names=[run.name for run in runs],
        headlines=_table([headline(run) for run in runs]),
        advice=[(run.name, advise(run)) for run in runs],
        differences=different_parameters(runs),
        charts=_charts(runs),
        comparable=all(known) and PROBLEM.isdisjoint(different_parameters(runs)),
        agreement=[
            (run.name, None if match is None else np.abs(match[1][match[0] >= 0]))
            for run, match in zip(runs[1:], matches[1:], strict=True)
        ],
        pairs=_pairs(first, drawers, matches),
        caption=drawers[0].atom_caption,
    )


def match_atoms(first: ArrayLike, second: ArrayLike) -> tuple[Array, Array]:
    """Return which atom of the second dictionary is which of the first.

    Atoms are matched one to one so that the sum of the absolute correlations is
    greatest (the Hungarian method).

    Parameters
    ----------
    first, second : arrays of shapes (k, n_features) and (l, n_features)

    Returns
    -------
    match : array of shape (k,)
        Numbers of atoms of the second; -1 where there are too few of them.
    correlation : array of shape (k,)
        Cosine of the angle between both atoms, NaN where there is no match.

    Examples
    --------
    >>> import numpy as np
    >>> from somf.report import match_atoms
    >>> match_atoms(np.eye(3), -np.eye(3)[[2, 0, 1]])
    (array([1, 2, 0]), array([-1., -1., -1.]))
    """
    A, B = _unit_rows(np.asarray(first)), _unit_rows(np.asarray(second))
    correlations = A @ B.T
    rows, columns = linear_sum_assignment(-np.abs(correlations))
    match = np.full(len(A), -1)
    match[rows] = columns
    correlation = np.full(len(A), np.nan)
    correlation[rows] = correlations[rows, columns]
    return match, correlation


def _unit_rows(A: Array) -> Array:
    norms = np.linalg.norm(A, axis=1, keepdims=True)
    return np.asarray(A / np.where(norms > 0, norms, 1))


def different_parameters(runs: Sequence[Facts]) -> dict[str, list[str]]:
    """Return the parameters in which runs differ, with the values of each."""
    names = [name for run in runs for name in run.parameters]
    table: dict[str, list[Any]] = {
        name: [run.parameters.get(name) for run in runs]
        for name in dict.fromkeys(names)
    }
    return {
        name: [parameter(value) for value in values]
        for name, values in table.items()
        if any(not _same(value, values[0]) for value in values[1:])
    }


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return bool(a == b)


def _table(columns: Sequence[dict[str, str]]) -> dict[str, list[str]]:
    names = dict.fromkeys(name for column in columns for name in column)
    return {name: [column.get(name, "") for column in columns] for name in names}


def _charts(runs: Sequence[Facts]) -> dict[str, Markup]:
    """Return curves of all runs in one chart each."""

    def chart(x: str, y: str, xlabel: str, ylabel: str, **more: Any) -> Markup:
        curves = [
            Curve(
                run.name,
                since_start(run.trace) if x == "time" else run.trace[x],
                _smooth(run, y),
            )
            for run in runs
            if len(run.trace["step"])
        ]
        alt = f"{ylabel} against {xlabel} for each run"
        return line_chart(curves, xlabel, ylabel, alt, **more)

    held_out = all(np.isfinite(r.trace["validation_objective"]).any() for r in runs)
    objective = "validation_objective" if held_out else "objective"
    on = "objective, held-out" if held_out else "objective, batches"
    whole = all(np.isfinite(run.trace["epoch"]).all() for run in runs)
    counter, label = ("epoch", "epochs") if whole else ("step", "iterations")
    return {
        "time": chart("time", objective, "seconds after the first iteration", on),
        "epochs": chart(counter, objective, label, on),
        "density": chart(counter, "density", label, "part not zero", zero=True),
    }


def _smooth(run: Facts, column: str) -> Array:
    values = run.trace[column]
    if column == "validation_objective":
        return values
    return smooth(values, max(1, len(values) // 50))


def _pairs(
    first: Facts, drawers: Sequence[Atoms], matches: Sequence[Any]
) -> list[list[dict[str, Any]]]:
    """Return the most used atoms of the first run, each with those of the others."""
    rows = []
    for i in first.order[:N_PAIRS]:
        row = [{"number": int(i), "picture": drawers[0].atom(int(i)), "cosine": None}]
        for drawer, match in zip(drawers[1:], matches[1:], strict=True):
            j = -1 if match is None else int(match[0][i])
            if j < 0:
                row.append({"number": None, "picture": None, "cosine": None})
                continue
            cosine = float(match[1][i])
            row.append({"number": j, "picture": drawer.atom(j), "cosine": cosine})
        rows.append(row)
    return rows
