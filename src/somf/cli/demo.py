"""`somf demo`: a first real factorization, with and without subsampling."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from somf.estimator import SOMF
from somf.sampling import SampleOrder
from somf.sources import PatchSource

Array = NDArray[Any]

PATCH = (16, 16)
N_COMPONENTS = 100
ALPHA = 0.1  # about one code in ten is not zero
BATCH = 400
# Patches that start below row 113 share no pixel with those that start above row 98.
TRAIN_ROWS, TEST_ROWS = (0, 98), (113, 130)
N_TEST = 300
BANDS = (50, 27, 17)  # a false-colour view: near infrared, red, green
METHODS = {"OMF (every feature)": 1.0, "SOMF (1 feature in 12)": 12.0}


@dataclass
class Curve:
    """A model and how it did: seconds of training against held-out objective."""

    model: SOMF
    seconds: list[float] = field(default_factory=list)
    objective: list[float] = field(default_factory=list)
    n_steps: int = 0


def run_demo(seconds: float, output: str) -> None:
    """Train both methods for `seconds` each and draw the comparison."""
    console = Console()
    image = load_image()
    train = PatchSource(image, PATCH, center=True, scale=True, rows=TRAIN_ROWS)
    test = PatchSource(image, PATCH, center=True, scale=True, rows=TEST_ROWS)
    n_patches, n_features = train.shape
    console.print(
        f"Indian Pines, {image.shape[0]} x {image.shape[1]} pixels, {image.shape[2]} "
        f"bands: {n_patches:,} training patches of {n_features:,} features, streamed "
        f"(all at once they would take {n_patches * n_features * 4 / 1e9:.1f} GB)."
    )
    rows = np.linspace(0, test.shape[0] - 1, N_TEST).astype(np.intp)
    X_test = test.read(rows)
    console.print("Compiling (once; later runs find it on disk) ...")
    warm_up(train, X_test)
    curves = {}
    with Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(),
        TextColumn("objective {task.fields[objective]:.4f}"),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        for name, reduction in METHODS.items():
            task = progress.add_task(name, total=seconds, objective=np.nan)

            def show(elapsed: float, objective: float, task: Any = task) -> None:
                progress.update(task, completed=elapsed, objective=objective)

            curves[name] = train_for(seconds, reduction, train, X_test, show)
    for name, curve in curves.items():
        console.print(
            f"{name}: objective {curve.objective[-1]:.4f} on held-out patches after "
            f"{curve.n_steps} batches in {curve.seconds[-1]:.0f} s."
        )
    draw(curves, seconds, output)
    report = Path(output).with_suffix(".html")
    write_report(curves[name].model, X_test, report)
    console.print(f"Picture: {Path(output).resolve()}", soft_wrap=True)
    console.print(f"Report: {report.resolve().as_uri()}", soft_wrap=True)


def load_image() -> Array:
    """Return the Indian Pines cube that tensorly carries."""
    try:
        from tensorly.datasets import load_indian_pines
    except ImportError as error:
        raise click.ClickException(
            "The demo's image comes with the package tensorly, which is not installed. "
            "Install the extra: pip install 'somf[demo]'"
        ) from error
    return np.asarray(load_indian_pines().tensor, dtype=np.float32)


def make_model(reduction: float) -> SOMF:
    """Return the dictionary-learning model of the demo."""
    return SOMF.dictionary_learning(
        N_COMPONENTS, alpha=ALPHA, reduction=reduction, random_state=0
    )


def warm_up(train: PatchSource, X_test: Array) -> None:
    """Compile every kernel that the runs need, off the clock."""
    for reduction in METHODS.values():
        model = make_model(reduction)
        model.partial_fit(train.read(np.arange(N_COMPONENTS)))
        model.score(X_test[:5])


def train_for(
    seconds: float, reduction: float, train: PatchSource, X_test: Array, show: Any
) -> Curve:
    """Stream batches until the time is up; evaluation is off the clock."""
    curve = Curve(make_model(reduction))
    rng = np.random.default_rng(0)
    order = SampleOrder(train.shape[0], BATCH)
    elapsed = 0.0
    next_score = 0.0
    while elapsed < seconds:
        start = time.perf_counter()
        curve.model.partial_fit(train.read(order.draw(rng)))
        elapsed += time.perf_counter() - start
        curve.n_steps += 1
        if elapsed >= next_score or elapsed >= seconds:
            curve.seconds.append(elapsed)
            curve.objective.append(-curve.model.score(X_test))
            next_score = elapsed * 1.25  # even steps on a logarithmic axis
            show(elapsed, curve.objective[-1])
    return curve


def write_report(model: SOMF, X_test: Array, path: Path) -> None:
    """Write the report of a model, with its atoms as patches."""
    from somf.report import PatchGrid

    atoms = model.components_.reshape(model.n_components_, *PATCH, -1)
    model.report(path, X=X_test, atoms=PatchGrid(atoms, bands=BANDS))


def draw(curves: dict[str, Curve], seconds: float, output: str) -> None:
    """Write the picture: curves above, atoms of each method below."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError as error:
        raise click.ClickException(
            "The demo's picture needs matplotlib, which is not installed. Install the "
            "extra: pip install 'somf[demo]'"
        ) from error
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(11, 9.5), layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subfigures(2, 1, height_ratios=(0.8, 1))
    axes = top.subplots()
    for name, curve in curves.items():
        axes.plot(curve.seconds, curve.objective, "o-", ms=4, label=name)
    axes.set(
        xscale="log",
        xlabel="training time (s, reading included)",
        ylabel="objective on held-out patches",
        title=f"Dictionary learning on AVIRIS patches, p = 51 200, k = {N_COMPONENTS}",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    for part, (name, curve) in zip(
        bottom.subfigures(1, len(curves)), curves.items(), strict=True
    ):
        draw_atoms(part, curve.model, f"{name}, atoms after {seconds:.0f} s")
    figure.savefig(output, dpi=110)


def draw_atoms(part: Any, model: SOMF, title: str, n_side: int = 6) -> None:
    """Draw the most used atoms as false-colour patches."""
    used = np.argsort(-np.diag(model.state_.C))[: n_side * n_side]
    axes = part.subplots(n_side, n_side)
    for axis, atom in zip(axes.ravel(), model.components_[used], strict=True):
        patch = atom.reshape(*PATCH, -1)[:, :, list(BANDS)]
        low, high = np.percentile(patch, (1, 99))
        axis.imshow(np.clip((patch - low) / max(high - low, 1e-12), 0, 1))
        axis.axis("off")
    part.suptitle(title)
