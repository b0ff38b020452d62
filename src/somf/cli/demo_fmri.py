"""`somf demo fmri`: maps of simulated brains, or of the user's own images."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from somf.fmri import BrainDictionary, simulate

METHODS = {"OMF (every voxel)": 1.0, "SOMF (1 voxel in 6)": 6.0}


def run_demo_fmri(images: Sequence[str], n_components: int, output: str) -> None:
    """Learn maps with and without subsampling, and write a report of the latter."""
    import somf.report  # noqa: F401  if it cannot be written, say so at once

    console = Console()
    records, mask = _records(images, console)
    train, test = (records[:-1], records[-1]) if len(records) > 1 else (records, None)
    with tempfile.TemporaryDirectory(prefix="somf-") as memory:
        for name, reduction in METHODS.items():
            model = BrainDictionary(
                n_components,
                reduction=reduction,
                mask=mask,
                smoothing_fwhm=None if mask is not None else 4,
                memory=memory,
                random_state=0,
                verbose=1,
            )
            console.print(f"[bold]{name}[/]")
            start = time.perf_counter()
            model.fit(train)
            _tell(console, model, time.perf_counter() - start, test)
    console.print("Drawing the maps of the last model ...")
    model.report(output)
    console.print(f"Report: {Path(output).resolve().as_uri()}", soft_wrap=True)


def _records(images: Sequence[str], console: Console) -> tuple[list[Any], Any]:
    """Return images and their mask; None if it has to be computed."""
    if images:
        return list(images), None
    console.print("Simulating 8 subjects on the grey matter of the MNI template ...")
    brains = simulate(n_subjects=8, n_volumes=150, n_maps=40, resolution=4)
    return brains.images, brains.mask_img


def _tell(console: Console, model: Any, seconds: float, test: Any) -> None:
    n_maps, n_voxels = model.components_.shape
    covered = (model.components_ != 0).any(axis=0).mean()
    text = f"{n_maps} maps of {n_voxels:,} voxels in {seconds:.0f} s, masking included"
    text += f"; together they cover {covered:.0%}"
    if test is not None:
        text += f" and explain {model.score(test):.1%} of a record that was held out"
    console.print(f"{text}.")
