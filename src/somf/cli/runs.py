"""The folder that a run leaves: model, trace, settings, and checkpoints meanwhile."""

from __future__ import annotations

import csv
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from somf.estimator import SOMF


class RunFolder:
    """Where the files of a run are.

    model.safetensors   the model; written last, so its presence means "finished"
    trace.csv           a row for each iteration, up to date within seconds
    settings.toml       inputs and parameters, from the start
    mask.nii.gz         of brain images: where the features are
    maps.nii.gz         of `somf fmri learn`: the atoms with the signs of an atlas
    report.html         a page to look at, while it is going and after
    checkpoints/        the last two checkpoints, until the run is finished
    """

    def __init__(self, path: str | os.PathLike[str], dask: str | None = None) -> None:
        self.path = Path(path)
        self.dask = dask  # the scheduler that runs it, if one does
        self.model = self.path / "model.safetensors"
        self.trace = self.path / "trace.csv"
        self.settings = self.path / "settings.toml"
        self.mask = self.path / "mask.nii.gz"
        self.maps = self.path / "maps.nii.gz"
        self.report = self.path / "report.html"
        self.checkpoints = self.path / "checkpoints"

    @property
    def name(self) -> str:
        """Name of the folder, for people."""
        return self.path.resolve().name

    @property
    def resume_command(self) -> str:
        """What continues the run; `somf fit` alone writes its settings."""
        if not self.settings.exists():
            return f"somf fmri learn ... --output {self.path} --resume"
        dask = f" --dask {self.dask}" if self.dask else ""
        return f"somf fit --output {self.path} --resume{dask}"

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.model.exists()

    @property
    def started(self) -> bool:
        """Whether a run is or was here."""
        return self.finished or self.settings.exists() or self.checkpoints.exists()

    def clear(self) -> None:
        """Remove what a run wrote, and nothing else; the folder too if it is empty."""
        files = (self.model, self.trace, self.settings, self.mask, self.report)
        for file in (*files, self.maps, self.path / "maps.tsv"):
            file.unlink(missing_ok=True)
        self.remove_checkpoints()
        if self.path.exists() and not any(self.path.iterdir()):
            self.path.rmdir()

    def remove_checkpoints(self) -> None:
        """Remove the checkpoints."""
        if self.checkpoints.exists():
            shutil.rmtree(self.checkpoints)


def load_model(path: str) -> SOMF:
    """Read a model file, or the model of the folder of a run."""
    from somf.estimator import SOMF

    if not Path(path).is_dir():
        return SOMF.load(path)
    folder = RunFolder(path)
    if not folder.finished:
        raise FileNotFoundError(_missing(folder))
    return SOMF.load(folder.model)


def mask_of(path: str) -> str | None:
    """Return where the features of a run of `somf fit` on brain images are."""
    place = Path(path)
    folder = RunFolder(place if place.is_dir() else place.parent)
    known = folder.settings.exists() and folder.mask.exists()
    return str(folder.mask) if known else None


def newest_model(folder: RunFolder) -> SOMF:
    """Read the model of a run, or its newest checkpoint if it is not finished."""
    from somf.checkpoints import read_newest
    from somf.estimator import SOMF

    if folder.finished:
        return SOMF.load(folder.model)
    if not folder.checkpoints.is_dir():
        raise FileNotFoundError(_missing(folder))
    model: SOMF = read_newest(folder.checkpoints, SOMF.load)
    return model


def _missing(folder: RunFolder) -> str:
    why = f"{folder.path} holds no {folder.model.name}"
    if folder.started:
        why += f"; its run is not finished: {folder.resume_command}"
    return f"{why}."


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """Give a place to write to, and put it at `path` when all went well."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield beside
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        os.replace(beside, path)
    finally:
        if beside.is_dir():
            shutil.rmtree(beside)
        else:
            beside.unlink(missing_ok=True)


def write_trace(path: Path, trace: Mapping[str, Any]) -> None:
    """Write the columns of a trace; what is not a number stays empty."""
    with written_beside(path) as beside, open(beside, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(trace)
        for row in zip(*(column.tolist() for column in trace.values()), strict=True):
            writer.writerow("" if value != value else value for value in row)
