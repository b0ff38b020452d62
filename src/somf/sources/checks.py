"""What sources ask of a file and of a matrix, in the same words everywhere."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from somf.sources.base import Indices, float_dtype


def need(module: str, extra: str, purpose: str) -> Any:
    """Import an optional module; if it is missing, say which extra installs it."""
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:  # installed, but something that it needs is not
            raise
        raise ImportError(
            f"{purpose} needs the package {package}, which is not installed. "
            f"Install the extra: pip install 'somf[{extra}]'"
        ) from error
    return importlib.import_module(module)


def existing_file(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a file that exists and is not empty."""
    absolute = Path(path).absolute()
    if not absolute.exists():
        raise FileNotFoundError(
            f"There is no file {os.fspath(path)}; a relative name is looked up in "
            f"{Path.cwd()}."
        )
    if absolute.is_file() and absolute.stat().st_size == 0:
        raise ValueError(
            f"{os.fspath(path)} is empty (0 bytes); write it again, or remove it."
        )
    return absolute


def matrix_shape(shape: tuple[int, ...], what: str) -> tuple[int, int]:
    """Return a shape that has two axes."""
    if len(shape) != 2:
        raise ValueError(
            f"{what} has {len(shape)} dimensions, shape {tuple(shape)}; it must have "
            "2, (n_samples, n_features): reshape it, one sample a row."
        )
    return int(shape[0]), int(shape[1])


def matrix_dtype(dtype: Any, what: str) -> np.dtype[Any]:
    """Return the float type in which real numbers of `dtype` are read."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "fiub":
        raise TypeError(
            f"{what} holds {dtype}; samples must be real numbers (floats, integers or "
            "booleans): convert it first."
        )
    return float_dtype(dtype)


def check_rows(rows: Indices, n_samples: int) -> None:
    """Raise for sorted `rows` that go beyond the last sample."""
    if len(rows) and not 0 <= rows[0] <= rows[-1] < n_samples:
        raise IndexError(
            f"rows from {rows[0]} to {rows[-1]} were asked for; there are {n_samples}, "
            f"0 to {n_samples - 1}."
        )
