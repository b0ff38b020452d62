"""The settings of a run: from options, from a TOML file, and to one."""

from __future__ import annotations

import json
import os
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from somf import __version__
from somf.cli.base import checked_parameters
from somf.cli.options import (
    NONE,
    WORDS,
    explicit_parameters,
    parameter_defaults,
    preset_parameters,
)
from somf.cli.runs import written_beside

PATHS = ("averages_folder", "checkpoint", "dict_init")  # parameters that name files

HEADING = """\
# Settings of a run of somf. To repeat it:
#     somf fit --config settings.toml --output NEW_FOLDER
# "none" stands for None.
"""


@dataclass
class Settings:
    """What a run is made of: its inputs, and the parameters of the estimator."""

    data: list[str] = field(default_factory=list)
    val: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Settings:
        """Read settings from a file that `write` or a person wrote.

        Paths are relative to the folder of the file.
        """
        folder = os.path.dirname(os.path.abspath(path))
        try:
            tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:  # not UTF-8, or not TOML
            raise ValueError(f"{path} is not readable TOML ({error}).") from error
        inputs = _known(tables.pop("inputs", {}), ("data", "val"), path)
        parameters = tables.pop("parameters", {})
        _known(tables, ("somf",), path)
        _known(parameters, list(parameter_defaults()), path)
        parameters = {n: None if v == NONE else v for n, v in parameters.items()}
        for name in PATHS:
            if parameters.get(name) not in (None, *WORDS):
                parameters[name] = os.path.normpath(
                    os.path.join(folder, parameters[name])
                )
        return cls(
            data=_paths(inputs, "data", path, folder),
            val=_paths(inputs, "val", path, folder),
            parameters=parameters,
        )

    def write(self, path: Path) -> None:
        """Write all settings, and the version that they were used with."""
        tables = {
            "inputs": {"data": self.data, "val": self.val},
            "parameters": self.parameters,
        }
        text = f"{HEADING}{_entry('somf', __version__)}\n"
        for name, table in tables.items():
            text += f"\n[{name}]\n"
            text += "".join(f"{_entry(key, value)}\n" for key, value in table.items())
        with written_beside(path) as beside:
            beside.write_text(text, encoding="utf-8")


def _known(
    table: Mapping[str, Any], names: Sequence[str], path: str | os.PathLike[str]
) -> Mapping[str, Any]:
    unknown = [name for name in table if name not in names]
    if unknown:
        words = ", ".join(names)
        raise ValueError(f"{path} sets {unknown[0]!r}, which is not one of {words}.")
    return table


def _paths(
    table: Mapping[str, Any], name: str, path: str | os.PathLike[str], folder: str
) -> list[str]:
    value = table.get(name, [])
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise ValueError(f"{path} has {name} = {value!r}; it must be a list of paths.")
    return [os.path.normpath(os.path.join(folder, value)) for value in values]


def _entry(key: str, value: Any) -> str:
    return f"{key} = {toml(value)}"


def toml(value: Any) -> str:
    """Return a plain value in the notation of TOML.

    >>> toml([1, 1e-05, True, None])
    '[1, 1e-05, true, "none"]'
    """
    if value is None:
        return toml(NONE)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):  # also inf and nan are written as Python does
        return repr(float(value))
    if isinstance(value, str | os.PathLike):
        # JSON has the same escapes; of the control characters it leaves DEL alone.
        quoted = json.dumps(os.fspath(value), ensure_ascii=False)
        return quoted.replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml(item) for item in value)}]"
    raise TypeError(f"{value!r} cannot be written as TOML.")


# -- from the command line -----------------------------------------------------------


def asked_settings(
    ctx: click.Context,
    data: Sequence[str],
    val: Sequence[str],
    preset: str | None,
    config: str | None,
) -> Settings:
    """Return what the command line and the configuration file say, and no more."""
    if preset and config:
        text = "--preset and --config both choose parameters; use one of them."
        raise click.UsageError(text, ctx)
    asked = Settings()
    if config:
        try:
            asked = Settings.read(config)
        except (OSError, ValueError) as error:
            raise click.UsageError(str(error), ctx) from error
    parameters = explicit_parameters(ctx)
    for name in PATHS:
        if parameters.get(name) not in (None, *WORDS):
            parameters[name] = os.path.abspath(parameters[name])
    return Settings(
        data=[os.path.abspath(path) for path in data] or asked.data,
        val=[os.path.abspath(path) for path in val] or asked.val,
        parameters=preset_parameters(preset) | asked.parameters | parameters,
    )


def complete(ctx: click.Context, asked: Settings) -> Settings:
    """Add defaults, and a seed if there is none: a run can always be repeated."""
    if not asked.data:
        raise click.UsageError("Missing argument 'DATA...'.", ctx)
    parameters = parameter_defaults() | asked.parameters
    if parameters["random_state"] is None:
        parameters["random_state"] = secrets.randbits(32)
    return replace(asked, parameters=parameters)


def check_settings(ctx: click.Context, settings: Settings) -> None:
    """Raise a usage error for parameters that no data could make right."""
    from somf.parameters import check_parameters

    parameters = settings.parameters
    init = parameters["dict_init"]
    with checked_parameters(ctx):
        if init not in WORDS:
            if not os.path.isfile(init):
                words = "'samples', 'random' or the path of a .npy file"
                raise ValueError(f"dict_init={init!r} must be {words}.")
            parameters = parameters | {"dict_init": None}  # checked when it is read
        check_parameters(parameters)


def make_parameters(settings: Settings) -> dict[str, Any]:
    """Return the parameters for `SOMF`, with a first dictionary read from its file."""
    import numpy as np

    parameters = dict(settings.parameters)
    if parameters["dict_init"] not in WORDS:
        try:
            atoms = np.load(parameters["dict_init"], allow_pickle=False)
        except ValueError as error:
            raise ValueError(
                f"{parameters['dict_init']} is not a readable .npy file ({error})."
            ) from error
        parameters["dict_init"] = atoms
    return parameters
