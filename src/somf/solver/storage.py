"""One file for arrays and plain metadata: safetensors, written atomically.

Reading such a file executes nothing.
"""

from __future__ import annotations

import hashlib
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

FORMAT = "somf 4"
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
                values[name] = plain(value)
    write_file(path, tensors, {**groups, "state": state.metadata()})


def read_model(path: str | os.PathLike[str]) -> Model:
    """Read what `write_model` wrote."""
    tensors, metadata = read_file(path)
    try:
        return _model(tensors, metadata)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is whole, but not a model that this version of somf knows "
            f"({error!r}). Read it with the version that wrote it."
        ) from error


def _model(tensors: dict[str, NDArray[Any]], metadata: dict[str, Any]) -> Model:
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


def plain(value: Any) -> Any:
    """What JSON can say of a value; a generator's state is kept elsewhere."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    plain = isinstance(value, bool | int | float | str | list | tuple | dict | None)
    return value if plain else None  # a generator


def write_file(
    path: str | os.PathLike[str],
    tensors: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, Any],
) -> None:
    """Write beside `path`, flush to disk, then rename: the file is old or new."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    path = Path(path)
    contiguous = {name: _stored(array) for name, array in tensors.items()}
    text = json.dumps(metadata)
    digest = _digest(contiguous, text)
    header = {"format": FORMAT, "somf": text, "sha256": digest}
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    beside.touch()
    mode = beside.stat().st_mode  # safetensors would make it the owner's alone
    try:
        save_file(contiguous, beside, header)
        beside.chmod(mode)
        with open(beside, "rb") as written:
            os.fsync(written.fileno())
        os.replace(beside, path)
    except SafetensorError as error:  # what its writer makes of a full disk
        beside.unlink(missing_ok=True)
        raise OSError(f"{path} could not be written: {error}") from error
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
    if header.get("sha256") != _digest(tensors, header.get("somf", "")):
        raise ValueError(
            f"{path} is damaged: its content does not have the checksum that was "
            "written with it. Use another copy or an earlier checkpoint."
        )
    return tensors, json.loads(header["somf"])


def _stored(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array as it is in the file: C order, little-endian."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


def _digest(tensors: Mapping[str, NDArray[Any]], text: str) -> str:
    """Return the checksum of arrays, with names, types and shapes, and of a text."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
