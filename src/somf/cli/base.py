"""What all commands have in common: errors on one line, exit codes, JSON, inputs.

Modules of commands import only click when they are imported, so that `somf --help` and
completion do not wait for Numba; everything else is imported where it is used.
"""

from __future__ import annotations

import errno
import json
import math
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])

# What is expected to go wrong with data, files and packages. Anything else is shown
# with its type, and with a hint how to find out more.
EXPECTED = (OSError, ValueError, TypeError, ImportError, MemoryError)


class Failure(click.ClickException):
    """An error that is reported on one line, with an exit code of its own."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code  # type: ignore[misc]


class Terminated(KeyboardInterrupt):
    """SIGTERM came while nothing else took care of it."""

    signal = signal.SIGTERM


class Group(click.Group):
    """A group whose commands are listed as added, and whose errors are one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which one uses the commands."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what stands before the command."""
        with _usage_on_one_line():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Find the command, parse its arguments and run it."""
        with _usage_on_one_line():
            return super().invoke(ctx)


@contextmanager
def _usage_on_one_line() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # shows the help
            raise
        message = error.format_message()
        if error.ctx is not None:
            end = "" if message.endswith((".", "?")) else "."
            message += f"{end} See {error.ctx.command_path} --help."
        raise Failure(message, error.exit_code) from error


class Command(click.Command):
    """A command with `--debug`; whatever it raises becomes one line and a code."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        text = "Show where an error comes from."
        self.params.append(click.Option(["--debug"], is_flag=True, help=text))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        debug = ctx.params.pop("debug")
        try:
            with _catch_sigterm(), _warnings_on_one_line():
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort) as error:
            _show_traceback(debug and error.__cause__ is not None)
            raise
        except KeyboardInterrupt as error:
            _show_traceback(debug)
            number = int(getattr(error, "signal", signal.SIGINT))
            raise Failure(str(error) or "Stopped.", 128 + number) from error
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # click knows what to do: nobody reads on
            _show_traceback(debug)
            raise Failure(_describe(error)) from error


def _describe(error: Exception) -> str:
    message = str(error)
    if isinstance(error, EXPECTED) and message:
        return message
    hint = "Use --debug to see where it comes from."
    return f"{type(error).__name__}{message and ': ' + message}. {hint}"


def _show_traceback(wanted: bool) -> None:
    if wanted:
        click.echo(traceback.format_exc(), err=True, nl=False)


@contextmanager
def _catch_sigterm() -> Iterator[None]:
    """Leave in good order after SIGTERM, as after SIGINT: remove what is unfinished."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise Terminated("Stopped by SIGTERM.")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _warnings_on_one_line() -> Iterator[None]:
    def show(message: Any, *_: Any, **__: Any) -> None:
        click.echo(f"Warning: {' '.join(str(message).split())}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


# -- parts of commands ---------------------------------------------------------------


def json_option(function: Function) -> Function:
    """Add `--json`."""
    text = "Print one JSON object instead of lines for people."
    add = click.option("--json", "as_json", is_flag=True, help=text)
    return add(function)


def data_argument(required: bool = True) -> Callable[[Function], Function]:
    """Add the argument DATA..."""
    return click.argument(
        "data", metavar="DATA...", nargs=-1, required=required, type=click.Path()
    )


@contextmanager
def checked_parameters(ctx: click.Context) -> Iterator[None]:
    """Let what is wrong with parameters be wrong usage, which has its own code."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error), ctx) from error


def open_data(paths: Sequence[str], mask: Any = None) -> Any:
    """Open one input, or several that are stacked by rows.

    `mask` is that of brain images; without one it is computed from them.
    """
    from somf.sources.opening import NIFTI, open_source

    images = all(path.lower().endswith(NIFTI) for path in paths)
    options = {"mask_img": mask} if images and mask is not None else {}
    return open_source(paths[0] if len(paths) == 1 else list(paths), **options)


def show(as_json: bool, facts: dict[str, Any], lines: Sequence[str]) -> None:
    """Print the result of a command, for a machine or for people."""
    click.echo(json.dumps(plain(facts)) if as_json else "\n".join(lines))


def plain(value: Any) -> Any:
    """Return what JSON can say of a value; numbers that are none become null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if hasattr(value, "tolist"):  # NumPy
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)
