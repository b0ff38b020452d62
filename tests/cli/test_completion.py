"""Completion of words by the shell."""

import pytest
from click.shell_completion import ShellComplete
from commands import COMMANDS

from somf.cli import main


@pytest.mark.parametrize(
    ("arguments", "incomplete", "expected"),
    [
        ([], "", COMMANDS),
        ([], "in", ["inspect"]),
        (["fit"], "--code-e", ["--code-estimator"]),
        (["fit"], "--positive-c", ["--positive-code"]),
        (["plan"], "--n-comp", ["--n-components"]),
        (["fit", "--mask"], "", ["cycle", "bernoulli"]),
        (["fit", "--reduction"], "a", ["auto"]),
        (["fit", "--dict-init"], "r", ["random", "r"]),  # a word, or a file
        (["fit", "--preset"], "n", ["nmf"]),
        (["convert", "--dtype"], "", ["float32", "float64"]),
        (["inspect"], "da", ["da"]),  # a file: the shell looks for it
    ],
)
def test_completion(arguments, incomplete, expected):
    complete = ShellComplete(main, {}, "somf", "_SOMF_COMPLETE")
    found = complete.get_completions(arguments, incomplete)
    assert [item.value for item in found] == expected
    if arguments == ["inspect"]:
        assert found[0].type == "file"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_of_completion(shell, monkeypatch):
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)(main, {}, "somf", "_SOMF_COMPLETE").source()
    assert f"_SOMF_COMPLETE={shell}_complete" in script
