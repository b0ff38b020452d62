"""Draws images/three_steps.svg: an iteration in three steps.

Run it from any folder: python docs/figures/three_steps.py. Its colours read on white
and on black, so that one file serves both.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

TARGET = Path(__file__).parents[1] / "images" / "three_steps.svg"
INK, SEEN, HIDDEN, NEW = "#7b838c", "#d9822b", "#75808a55", "#2f8fb5"
N_FEATURES, OBSERVED = 24, (1, 4, 5, 9, 13, 14, 18, 22)
CELL = 0.16


def matrix(
    ax: Axes, x: float, y: float, n_rows: int, label: str, *, seen: str, hidden: str
) -> None:
    """Draw rows of features, the observed ones in a colour of their own."""
    for j in range(N_FEATURES):
        colour = seen if j in OBSERVED else hidden
        strip = Rectangle(
            (x + j * CELL, y), CELL * 0.86, n_rows * CELL, color=colour, lw=0
        )
        ax.add_patch(strip)
    frame = (x - 0.04, y - 0.04)
    size = (N_FEATURES * CELL + 0.06, n_rows * CELL + 0.08)
    ax.add_patch(Rectangle(frame, *size, fill=False, ec=INK, lw=1))
    ax.text(x - 0.14, y + n_rows * CELL / 2, label, ha="right", va="center")


def block(ax: Axes, x: float, y: float, width: int, height: int, label: str) -> None:
    """Draw a small matrix that has no features."""
    size = (width * CELL, height * CELL)
    ax.add_patch(Rectangle((x, y), *size, fc=NEW, ec=INK, lw=1))
    ax.text(x + size[0] / 2, y - 0.09, label, ha="center", va="top")


def arrow(ax: Axes, start: tuple[float, float], stop: tuple[float, float]) -> None:
    """Draw an arrow."""
    style = {"arrowstyle": "-|>", "mutation_scale": 12, "lw": 1.4, "color": INK}
    ax.add_patch(FancyArrowPatch(start, stop, **style))


def title(ax: Axes, y: float, name: str, *lines: str) -> None:
    """Write what a step does."""
    ax.text(0, y, name, fontsize=12, fontweight="bold", va="top")
    ax.text(0, y - 0.34, "\n".join(lines), va="top", linespacing=1.4)


def draw() -> None:
    """Draw the three steps under one another."""
    figure, ax = plt.subplots(figsize=(8.4, 6.3))
    left = 3.3
    right = left + N_FEATURES * CELL
    middle = (left + right) / 2

    title(ax, 6.3, "1. Codes", "from the features that", "the mask shows: 1 in r")
    matrix(ax, left, 5.65, 3, "batch X", seen=SEEN, hidden=HIDDEN)
    matrix(ax, left, 4.72, 4, "atoms D", seen=SEEN, hidden=HIDDEN)
    arrow(ax, (right + 0.12, 5.5), (right + 0.65, 5.5))
    block(ax, right + 0.75, 5.26, 4, 3, "codes")

    title(
        ax,
        4.05,
        "2. Aggregation",
        "forget a part of the past,",
        "take in the batch instead,",
        "with these codes",
    )
    matrix(ax, left, 3.2, 4, "B", seen=NEW, hidden=NEW)
    block(ax, right + 0.75, 3.2, 4, 4, "C")
    arrow(ax, (right + 1.07, 4.92), (right + 1.07, 3.94))
    arrow(ax, (right + 0.68, 5.1), (right + 0.08, 3.9))

    title(
        ax,
        2.3,
        "3. Dictionary",
        "move each atom to where",
        "B and C want it, and back",
        "into the ball",
    )
    matrix(ax, left, 1.6, 4, "D", seen=NEW, hidden=NEW)
    ax.text(right + 0.2, 1.92, "all features:\nthe default", va="center")
    matrix(ax, left, 0.62, 4, "or D", seen=NEW, hidden=HIDDEN)
    ax.text(right + 0.2, 0.94, "the observed:\nas in the paper", va="center")
    arrow(ax, (middle, 3.1), (middle, 2.34))
    arrow(ax, (right + 0.68, 3.1), (right + 0.08, 2.34))

    legend = ((SEEN, "observed"), (HIDDEN, "hidden"), (NEW, "computed"))
    for (colour, label), x in zip(legend, (0, 1.3, 2.4), strict=True):
        ax.add_patch(Rectangle((left + x, 0.08), CELL, CELL, color=colour, lw=0))
        ax.text(left + x + 0.25, 0.16, label, va="center")

    ax.set_xlim(-0.05, right + 1.7)
    ax.set_ylim(0, 6.35)
    ax.set_aspect("equal")
    ax.axis("off")
    no_date = {"Date": None}
    figure.savefig(TARGET, transparent=True, bbox_inches="tight", metadata=no_date)


if __name__ == "__main__":
    plt.rcParams |= {
        "text.color": INK,
        "font.size": 10,
        "font.family": "sans-serif",
        "svg.fonttype": "path",  # the same in every browser
        "svg.hashsalt": "somf",  # the same file every time
    }
    draw()
