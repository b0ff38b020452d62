"""The parameters of `SOMF` as options: names, types and help from its docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import click

from somf.cli.base import Command

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Function = TypeVar("Function", bound=Callable[..., Any])

PRESETS = ("dictionary-learning", "sparse-components", "nmf")
WORDS = ("samples", "random")  # of dict_init, which else is a file
NONE = "none"  # how None is written where a file or a shell has no word for it

# By the first word of the type in the docstring; "array" is a path of a file with it.
TYPES: dict[str, click.ParamType[Any]] = {
    "bool": click.BOOL,
    "int": click.INT,
    "float": click.FLOAT,
    "str": click.Path(),
    "array": click.Path(dir_okay=False),
}
METAVARS = {
    "bool": "yes|no",
    "int": "INTEGER",
    "float": "FLOAT",
    "str": "PATH",
    "array": "FILE.npy",
}


class EstimatorCommand(Command):
    """A command that also takes every parameter of `SOMF`."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options of the command, then those of the estimator."""
        own = super().get_params(ctx)
        last = 2  # --debug and --help
        return [*own[:-last], *estimator_options(), *own[-last:]]


def estimator_parameters(function: Function) -> Function:
    """Add `--preset` and `--config`, which choose parameters together."""
    preset = click.option(
        "--preset",
        type=click.Choice(PRESETS),
        help="Which factors: sparse codes, sparse atoms, or both non-negative.",
    )
    config = click.option(
        "--config",
        type=click.Path(dir_okay=False),
        help="Take parameters and data from the settings.toml of a run; options win.",
    )
    return preset(config(function))


def dask_option(function: Function) -> Function:
    """Add `--dask`."""
    text = 'Address of a Dask scheduler, or "local".'
    return click.option("--dask", metavar="ADDRESS", help=text)(function)


@cache
def estimator_options() -> tuple[click.Option, ...]:
    """Return an option for each parameter of `SOMF`."""
    from somf.estimator import SOMF

    documented = documented_parameters(SOMF)
    defaults = inspect.signature(SOMF).parameters
    return tuple(
        _option(name, defaults[name].default, *documented[name]) for name in defaults
    )


def documented_parameters(documented: Any) -> dict[str, tuple[str, str]]:
    """Return the type and the text of each parameter in a numpydoc docstring."""
    doc = re.sub(r"\\\n\s*", "", inspect.getdoc(documented) or "")
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w+\n-+$|\Z)", doc, re.M | re.S)
    assert section is not None, "the parameters of an estimator are documented"
    found = {}
    entry = r"^(\S.*?) : (.*)\n((?:(?:[ ]+.*)?\n)*)"
    for names, kind, text in re.findall(entry, section[1], re.M):
        for name in names.split(", "):
            found[name] = (kind, _plain_text(text))
    return found


def _plain_text(text: str) -> str:
    """Return the text without line breaks and without markup."""
    text = re.sub(r":\w+:(?=`)", "", " ".join(text.split()))
    return text.replace("`", "")


def _option(name: str, default: Any, kind: str, text: str) -> click.Option:
    """Return the option of a parameter, by the type that its docstring gives it."""
    flag = "--" + name.replace("_", "-")
    kind = kind.split(", default=")[0]
    words = re.findall(r'"(\w+)"', kind)
    first = re.match(r"\w+", kind.replace(" or ", " ").split("} ")[-1])
    settings: dict[str, Any] = {"default": default, "show_default": True, "help": text}
    if first is None:  # {"these", "words"} and nothing else
        return click.Option([flag], type=click.Choice(words), **settings)
    if first[0] == "bool" and not words:
        return click.Option([f"{flag}/--no-{flag[2:]}"], **settings)
    optional = default is None or "None" in kind
    shown = [*words, METAVARS[first[0]]]
    return click.Option(
        [flag],
        type=ValueOrWord(TYPES[first[0]], words, optional),
        metavar="[" + "|".join(shown) + "]" if words else shown[0],
        **settings,
    )


class ValueOrWord(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A value of some type, or one of some words; "none" for None, if it may be."""

    name = "value"

    def __init__(
        self, value: click.ParamType[Any], words: Sequence[str], optional: bool
    ) -> None:
        self.value = value
        self.words = list(words)
        self.optional = optional

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Return the value that a text stands for."""
        if value in self.words:
            return value
        if self.optional and value == NONE:
            return None
        return self.value.convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete words, then paths if it can be one."""
        from click.shell_completion import CompletionItem

        words = [word for word in self.words if word.startswith(incomplete)]
        completions = [CompletionItem(word) for word in words]
        return completions + self.value.shell_complete(ctx, param, incomplete)


# -- what was chosen -----------------------------------------------------------------


def explicit_parameters(ctx: click.Context) -> dict[str, Any]:
    """Return the parameters of the estimator that were given as options."""
    given = click.core.ParameterSource.COMMANDLINE
    return {
        name: ctx.params[name]
        for name in parameter_defaults()
        if ctx.get_parameter_source(name) is given
    }


def parameter_defaults() -> dict[str, Any]:
    """Return the defaults of the estimator, in the order of its docstring."""
    return {str(option.name): option.default for option in estimator_options()}


def preset_parameters(preset: str | None) -> dict[str, Any]:
    """Return what a preset sets."""
    if preset is None:
        return {}
    from somf.estimator import SOMF

    model = getattr(SOMF, preset.replace("-", "_"))()
    defaults = parameter_defaults()
    return {n: v for n, v in model.get_params().items() if v != defaults[n]}
