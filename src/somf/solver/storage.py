"""One file for arrays and plain metadata: safetensors, written atomically.

Reading such a file executes nothing.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.solver.state import State
from somf.solver.trace import Trace

FORMAT = "somf 1"
Model = tuple[dict[str, Any], dict[str, Any], State, Trace]


def write_model(
    path: str | os.PathLike[str],
    parameters: Mapping[str, Any],
    attributes: Mapping[str, Any],
    state: State,
    trace: Trace,
) -> None:
    """Write an estimator: parameters, plain fitted attributes, state and trace."""
    tensors = {f"state.{name}": array for name, array in state.tensors().items()}
    tensors |= {f"trace.{name}": array for name, array in trace.as_dict().items()}
    groups = {"parameters": dict(parameters), "attributes": dict(attributes)}
    for group, values in groups.items():
        for name, value in values.items():
            if isinstance(value, list | np.ndarray) and name != "feature_names_in_":
                tensors[f"{group}.{name}"] = np.asarray(value)
                values[name] = None
            else:
                values[name] = _plain(value)
    write_file(path, tensors, {**groups, "state": state.metadata()})


def read_model(path: str | os.PathLike[str]) -> Model:
    """Read what `write_model` wrote."""
    tensors, metadata = read_file(path)
    groups: dict[str, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition(".")
        groups.setdefault(group, {})[rest] = tensor
    parameters = metadata["parameters"] | groups.get("parameters", {})
    attributes = metadata["attributes"] | groups.get("attributes", {})
    if "feature_names_in_" in attributes:
        names = attributes["feature_names_in_"]
        attributes["feature_names_in_"] = np.array(names, dtype=object)
    trace = Trace()
    trace.restore(groups["trace"])
    return (
        parameters,
        attributes,
        State.restore(groups["state"], metadata["state"]),
        trace,
    )


def _plain(value: Any) -> Any:
    """What JSON can say of a value; a generator's state is kept elsewhere."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None
    return value


def write_file(
    path: str | os.PathLike[str],
    tensors: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, Any],
) -> None:
    """Write beside `path`, flush to disk, then rename: the file is old or new."""
    from safetensors.numpy import save_file

    path = Path(path)
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    header = {"format": FORMAT, "somf": json.dumps(metadata)}
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    beside.touch()
    mode = beside.stat().st_mode  # safetensors would make it the owner's alone
    try:
        save_file(contiguous, beside, header)
        beside.chmod(mode)
        with open(beside, "rb") as written:
            os.fsync(written.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where folders can be opened."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_file(
    path: str | os.PathLike[str],
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the tensors and the metadata of a file made by `write_file`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a readable model file ({error}). It may be cut off or "
            "damaged; use another copy or an earlier checkpoint."
        ) from error
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{path} is a safetensors file of format {header.get('format')!r}; a somf "
            f"model has {FORMAT!r}. Was it written by another program or version?"
        )
    try:
        metadata = json.loads(header["somf"])
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} has damaged metadata ({error}).") from error
    return tensors, metadata
