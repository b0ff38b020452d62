"""Draws images/exchange.svg: what client and workers hold, and what travels.

Run it from any folder: python docs/figures/exchange.py. Colours and matrices are those
of three_steps.py.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle
from three_steps import CELL, HIDDEN, INK, N_FEATURES, NEW, SEEN, arrow, block, matrix

TARGET = Path(__file__).parents[1] / "images" / "exchange.svg"
WIDTH = N_FEATURES * CELL
WORKER_X, WORKER_YS = 7.6, (3.55, 0.35)


def box(ax: Axes, x: float, y: float, width: float, height: float, name: str) -> None:
    """Draw a process."""
    style = "round,pad=0.02,rounding_size=0.12"
    ax.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle=style, fill=False, ec=INK, lw=1)
    )
    ax.text(x + 0.12, y + height - 0.12, name, fontsize=12, fontweight="bold", va="top")


def draw_client(ax: Axes) -> None:
    """Draw the client: it adds up, and moves the atoms."""
    box(ax, 0, 0.9, WIDTH + 0.75, 4.75, "Client")
    ax.text(0.12, 5.1, "draws samples and a mask", va="top")
    matrix(ax, 0.55, 3.75, 4, "B", seen=NEW, hidden=HIDDEN)
    ax.text(0.5, 3.6, "2. adds what workers tell of them", va="top")
    block(ax, 0.55, 2.5, 4, 4, "C")
    matrix(ax, 0.55, 1.45, 4, "D", seen=NEW, hidden=HIDDEN)
    ax.text(0.5, 1.3, "3. moves the atoms, within the ball", va="top")


def draw_worker(ax: Axes, y: float, number: str) -> None:
    """Draw a worker: it codes its samples with its replica."""
    left = WORKER_X + 0.75
    box(ax, WORKER_X, y, WIDTH + 0.95, 2.85, f"Worker {number}")
    matrix(ax, left, y + 1.85, 3, "X", seen=SEEN, hidden=HIDDEN)
    ax.text(left + WIDTH, y + 2.4, "its samples of the batch", ha="right", va="bottom")
    matrix(ax, left, y + 1.05, 4, "D", seen=SEEN, hidden=HIDDEN)
    matrix(ax, left, y + 0.25, 4, "B$_m$", seen=SEEN, hidden=NEW)


def draw_traffic(ax: Axes, y: float) -> None:
    """Draw what goes to a worker and back."""
    start, stop = WIDTH + 0.9, WORKER_X - 0.1
    middle = (start + stop) / 2
    arrow(ax, (start, y + 1.5), (stop, y + 1.5))
    ax.text(middle, y + 1.56, "rows, mask, new D: q × k", ha="center", va="bottom")
    arrow(ax, (stop, y + 0.75), (start, y + 0.75))
    ax.text(middle, y + 0.81, "1. B$_m$: q × k, C$_m$: k × k", ha="center", va="bottom")


def draw() -> None:
    """Draw a client and two workers."""
    figure, ax = plt.subplots(figsize=(11.5, 6.2))
    draw_client(ax)
    for y, number in zip(WORKER_YS, ("1", "W"), strict=True):
        draw_worker(ax, y, number)
        draw_traffic(ax, y)
    ax.text(WORKER_X + 2, 3.37, "⋮", ha="center", va="center", fontsize=14)

    legend = (
        (SEEN, "observed"),
        (NEW, "computed"),
        (HIDDEN, "at rest"),
    )
    for (colour, label), x in zip(legend, (0, 1.4, 2.8), strict=True):
        ax.add_patch(Rectangle((x, 0.38), CELL, CELL, color=colour, lw=0))
        ax.text(x + 0.25, 0.46, label, va="center")
    ax.set_xlim(-0.05, WORKER_X + WIDTH + 1.05)
    ax.set_ylim(0.25, 6.5)
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
