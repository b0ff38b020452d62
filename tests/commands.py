"""The command line in tests."""

import subprocess
import sys

from click.testing import CliRunner

from somf import SOMF
from somf.cli import main

COMMANDS = [
    *("fit", "transform", "score", "plan", "convert", "inspect", "report", "compare"),
    *("fmri", "image", "demo"),
]
PARAMETERS = {
    "n_components": 3,
    "alpha": 0.1,
    "reduction": 2.0,
    "batch_size": 20,
    "n_epochs": 3,
    "n_threads": 1,
    "random_state": 0,
}
OPTIONS = [
    word
    for name, value in PARAMETERS.items()
    for word in ("--" + name.replace("_", "-"), str(value))
]


def somf(*arguments, group=main):
    """Run a command as from a shell; stdout and stderr are kept apart."""
    try:
        runner = CliRunner(mix_stderr=False)
    except TypeError:  # click 8.2 and later always keep them apart
        runner = CliRunner()
    return runner.invoke(group, [str(argument) for argument in arguments])


def start(*arguments):
    """Start a command in a process of its own, which tells of progress at once."""
    code = (
        "import somf.progress; somf.progress.ProgressBar.DELAY = 0;"
        "from somf.cli import main; main(prog_name='somf')"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def check_error(result, code, *words):
    """An error is one line, without a traceback, and has its code."""
    assert result.exit_code == code
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    assert "Traceback" not in result.stderr
    for word in words:
        assert str(word) in last


def components(run):
    return SOMF.load(run / "model.safetensors").components_


def read_trace(path):
    """Return the columns of a trace; what is empty is NaN."""
    rows = [line.split(",") for line in path.read_text().splitlines()]
    numbers = [[float(cell or "nan") for cell in row] for row in rows[1:]]
    return dict(zip(rows[0], zip(*numbers, strict=True), strict=True))
