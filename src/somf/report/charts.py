"""Charts as SVG that takes its colours from the page, so that both modes read well."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]

N_POINTS = 300  # more than a chart has pixels for
# Stand-ins, which the page's own colours replace in the SVG.
INK, QUIET, LINE = "#0a0b01", "#0a0b02", "#0a0b03"
SERIES = tuple(f"#0a0c0{i}" for i in range(1, 7))
COLOURS = {INK: "ink", QUIET: "quiet", LINE: "line"} | {
    colour: f"series-{i}" for i, colour in enumerate(SERIES, 1)
}
SETTINGS: dict[Any, Any] = {
    "axes.edgecolor": LINE,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": QUIET,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.spines.left": False,
    "font.size": 9.5,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": QUIET,
    "ytick.labelcolor": QUIET,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
}


@dataclass(frozen=True)
class Curve:
    """A line of a chart; `dots` marks every point."""

    name: str
    x: ArrayLike
    y: ArrayLike
    dots: bool = False


def line_chart(
    curves: Sequence[Curve],
    xlabel: str,
    ylabel: str,
    alt: str,
    *,
    zero: bool = False,
    whole: bool = False,
) -> Markup:
    """Draw curves; the vertical axis begins at `zero` and has `whole` numbers."""
    with _settings(alt):
        figure, axes = _figure()
        for i, curve in enumerate(curves):
            x, y = thin(curve.x, curve.y)
            colour = SERIES[i % len(SERIES)]
            dots = {"marker": "o", "ms": 3.5} if curve.dots or len(x) == 1 else {}
            dash = "-" if i < len(SERIES) else "--"
            axes.plot(x, y, dash, color=colour, **dots)
        low, high = visible_range([curve.y for curve in curves])
        if low < high:
            margin = 0.06 * (high - low)
            axes.set_ylim(0 if zero else low - margin, high + margin)
        elif zero:
            axes.set_ylim(0, 1.06 * high or 1)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.margins(x=0.01)
        axes.yaxis.get_major_locator().set_params(integer=whole)
        if len(curves) > 1:
            _legend(axes, [curve.name for curve in curves])
        return _svg(figure, alt)


def _legend(axes: Any, names: Sequence[str]) -> None:
    """Name the lines, by texts in which no sign has a meaning of its own."""
    numbers = [str(i) for i in range(len(names))]
    legend = axes.legend(axes.get_lines(), numbers)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)


def area_chart(
    x: ArrayLike, parts: Mapping[str, ArrayLike], xlabel: str, ylabel: str, alt: str
) -> Markup:
    """Draw what adds up, one part on top of the other."""
    with _settings(alt):
        figure, axes = _figure()
        thinned = [thin(x, y) for y in parts.values()]
        axes.stackplot(
            thinned[0][0],
            [y for _, y in thinned],
            labels=list(parts),
            colors=SERIES[: len(parts)],
            linewidth=0,
        )
        total = np.sum([y for _, y in thinned], axis=0)
        high = min(total.max(), 3 * np.median(total))  # some steps compile, or wait
        axes.set_ylim(0, 1.35 * high or 1)  # with room for the legend
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.margins(x=0)
        axes.legend(ncols=3, loc="upper right", columnspacing=1, handlelength=1)
        return _svg(figure, alt)


def bar_chart(heights: ArrayLike, xlabel: str, ylabel: str, alt: str) -> Markup:
    """Draw a bar for each value."""
    with _settings(alt):
        figure, axes = _figure()
        heights = np.asarray(heights)
        width = 0.8 if len(heights) <= 100 else 1.0
        axes.bar(np.arange(1, len(heights) + 1), heights, width, color=SERIES[0])
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.set_xlim(0.4, len(heights) + 0.6)
        axes.xaxis.get_major_locator().set_params(integer=True)
        return _svg(figure, alt)


def _settings(alt: str) -> Any:
    """Return the style of a chart; ids in its SVG come from `alt`, one for a chart."""
    return matplotlib.rc_context(SETTINGS | {"svg.hashsalt": alt})


def _figure() -> tuple[Any, Any]:
    figure = Figure(figsize=(5.2, 2.9))
    figure.subplots_adjust(left=0.14, right=0.97, bottom=0.17, top=0.965)
    figure.patch.set_visible(False)
    axes = figure.add_subplot()
    axes.patch.set_visible(False)
    axes.set_axisbelow(True)
    axes.locator_params(nbins=5)
    return figure, axes


def _svg(figure: Any, alt: str) -> Markup:
    """Return the figure as an element of a page."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=nothing)
    svg = file.getvalue()[file.getvalue().index("<svg") :]
    for stand_in, name in COLOURS.items():
        svg = svg.replace(stand_in, f"var(--{name})")
    svg = re.sub(r' id="[a-zA-Z0-9.]+_\d+"', "", svg)  # would repeat on a page
    size = re.compile(r'width="[\d.]+pt" height="[\d.]+pt"')
    label = Markup('role="img" aria-label="{}"').format(alt)
    return Markup(size.sub(lambda _: label, svg, count=1))


# -- points --------------------------------------------------------------------------


def thin(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    """Return at most 300 points: means over stretches, without what is not finite.

    >>> x, y = thin(range(1000), range(1000))
    >>> len(x), float(x[0])
    (250, 1.5)
    """
    points = np.stack([np.asarray(x, float), np.asarray(y, float)])
    points = points[:, np.isfinite(points).all(axis=0)]
    width = -(-points.shape[1] // N_POINTS)
    if width > 1:
        starts = np.arange(0, points.shape[1], width)
        counts = np.diff(np.append(starts, points.shape[1]))
        points = np.add.reduceat(points, starts, axis=1) / counts
    return points[0], points[1]


def smooth(values: ArrayLike, width: int) -> Array:
    """Return the running mean over the last `width` values.

    >>> smooth([4.0, 2.0, 0.0], 2)
    array([4., 3., 1.])
    """
    values = np.asarray(values, float)
    sums = np.cumsum(np.insert(values, 0, 0.0))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - width, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))


def visible_range(curves: Sequence[ArrayLike]) -> tuple[float, float]:
    """Return the range to show: all but the first steps, which may be far above.

    >>> visible_range([[100.0] + [2.0] * 50 + [1.0] * 50])
    (1.0, 2.0)
    """
    parts = []
    for curve in curves:
        y = np.asarray(curve, float)
        y = y[np.isfinite(y)]
        skipped = len(y) // 50
        parts.append(y[skipped:])
    y = np.concatenate([*parts, np.empty(0)])
    return (float(y.min()), float(y.max())) if len(y) else (0.0, 0.0)


# -- small pictures ------------------------------------------------------------------


def sparkline(lines: Sequence[ArrayLike], alt: str) -> Markup:
    """Draw lines without axes; each is the band between the extremes of stretches.

    Lines break where nothing is known.
    """
    width, height = 240, 60
    bands = [_band(line) for line in lines]
    everything = np.concatenate([band.ravel() for band in bands])
    everything = everything[np.isfinite(everything)]
    low, high = (everything.min(), everything.max()) if len(everything) else (0, 0)
    low, high = min(low, 0), max(high, 0)
    scale = (height - 4) / ((high - low) or 1)
    parts = [f'<path class="zero" d="M0 {high * scale + 2:.1f}H{width}"/>']
    for i, band in enumerate(bands, 1):
        x = np.linspace(0, width, band.shape[1])
        y = (high - band) * scale + 2
        known = np.flatnonzero(np.isfinite(y[0]))
        runs = np.split(known, np.flatnonzero(np.diff(known) > 1) + 1)
        outlines = [_outline(x[run], y[:, run]) for run in runs if len(run)]
        parts.append(f'<path class="s{i}" d="{"".join(outlines)}"/>')
    head = Markup(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="{}">'
    ).format(width, height, alt)
    return head + Markup("".join(parts)) + Markup("</svg>")


def _outline(x: Array, y: Array) -> str:
    """Return the path around a band: along its upper edge, and back along the lower."""
    points = [f"{a:.1f} {b:.1f}" for a, b in zip(x, y[1], strict=True)]
    points += [f"{a:.1f} {b:.1f}" for a, b in zip(x[::-1], y[0, ::-1], strict=True)]
    return f"M{'L'.join(points)}Z"


def _band(line: ArrayLike) -> Array:
    """Return the least and the greatest value of up to 240 stretches, (2, n).

    NaN where a stretch has no finite value.
    """
    y = np.asarray(line, float).ravel()
    y = np.where(np.isfinite(y), y, np.nan)
    starts = np.unique(np.linspace(0, len(y), 240, endpoint=False).astype(int))
    return np.stack([np.fmin.reduceat(y, starts), np.fmax.reduceat(y, starts)])
