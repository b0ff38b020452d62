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
    trace.csv           a row for each iteration
    settings.toml       inputs and parameters, from the start
    checkpoints/        the last two checkpoints, until the run is finished
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.model = self.path / "model.safetensors"
        self.trace = self.path / "trace.csv"
        self.settings = self.path / "settings.toml"
        self.report = self.path / "report.png"
        self.checkpoints = self.path / "checkpoints"

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
        for file in (self.model, self.trace, self.settings, self.report):
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
        why = f"{path} holds no {folder.model.name}"
        if folder.started:
            why += f"; its run is not finished: somf fit --output {path} --resume"
        raise FileNotFoundError(f"{why}.")
    return SOMF.load(folder.model)


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


def read_trace(path: Path) -> dict[str, list[float]]:
    """Read the columns of a trace."""
    with open(path, newline="") as file:
        rows = list(csv.reader(file))
    try:
        numbers = [[float(cell or "nan") for cell in row] for row in rows[1:]]
        columns = zip(rows[0], zip(*numbers, strict=True), strict=True)
        return {name: list(column) for name, column in columns}
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path} is not the trace of a run ({error}).") from error
