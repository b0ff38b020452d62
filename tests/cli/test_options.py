"""Help, and the options of `fit`."""

import re
import subprocess
import sys

import pytest
from commands import COMMANDS, check_error, somf

from somf import SOMF
from somf.cli.fit import fit
from somf.cli.options import (
    documented_parameters,
    estimator_options,
    explicit_parameters,
)


def test_help_and_version():
    result = somf("--help")
    assert result.exit_code == 0
    listed = re.findall(r"^  (\w+) +[A-Z]", result.stdout, re.M)
    assert listed == COMMANDS
    assert "143  stopped by SIGTERM" in result.stdout
    listing = result.stdout.split("Commands:")[1]
    assert "..." not in listing  # what a command does fits on its line
    assert re.search(r"\d+\.\d+", somf("--version").stdout)


@pytest.mark.parametrize(
    "command",
    [*COMMANDS[:-3], "fmri learn", "image learn", "image denoise", "demo", "demo fmri"],
)
def test_every_command_has_help(command):
    result = somf(*command.split(), "--help")
    assert result.exit_code == 0
    assert "--debug" in result.stdout
    assert ("--json" in result.stdout) == ("demo" not in command)


def test_help_does_not_wait_for_large_packages():
    code = """
import sys
from somf.cli import main
main(["--help"], standalone_mode=False)
large = {"numpy", "scipy", "sklearn", "numba", "rich", "zarr", "matplotlib"}
sys.exit(", ".join(large & set(sys.modules)))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
    assert "demo" in done.stdout


def test_every_parameter_is_an_option_with_its_default():
    options = {option.name: option for option in estimator_options()}
    parameters = SOMF().get_params()
    assert options.keys() == parameters.keys()
    for name, value in parameters.items():
        assert f"--{name.replace('_', '-')}" in options[name].opts
        assert options[name].default == value


def test_help_of_options_is_that_of_the_estimator():
    squeezed = re.sub(r"\W", "", SOMF.__doc__)
    for option in estimator_options():
        assert len(option.help) > 5
        assert "`" not in option.help
        text = re.sub(r"\W", "", option.help)
        # Only the role of a reference is left out.
        assert text in squeezed or text in re.sub("func|meth", "", squeezed)


def test_documented_parameters_of_any_class():
    class Documented:
        r"""Short.

        Parameters
        ----------
        a, b : int, \
                default=1
            First line of :func:`f`,
            and ``second``.

        c : {"x", "y"}
            Third.

        Returns
        -------
        d : int
        """

    text = "First line of f, and second."
    assert documented_parameters(Documented) == {
        "a": ("int, default=1", text),
        "b": ("int, default=1", text),
        "c": ('{"x", "y"}', "Third."),
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--reduction auto", {"reduction": "auto"}),
        ("--reduction 3", {"reduction": 3.0}),
        ("--batch-size 7", {"batch_size": 7}),
        ("--n-components none", {"n_components": None}),
        ("--positive-code", {"positive_code": True}),
        ("--no-shuffle", {"shuffle": False}),
        ("--progress no", {"progress": False}),
        ("--progress auto", {"progress": "auto"}),
        ("--mask bernoulli", {"mask": "bernoulli"}),
        ("--dict-init random", {"dict_init": "random"}),
        ("--dict-init D.npy", {"dict_init": "D.npy"}),
        ("--random-state 4 --tol 1e-5", {"random_state": 4, "tol": 1e-5}),
        ("", {}),
    ],
)
def test_options_become_parameters(words, expected):
    arguments = ["X.npy", "--output", "run", *words.split()]
    context = fit.make_context("fit", arguments)
    assert explicit_parameters(context) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--batch-size many", "many"),
        ("--batch-size 2.5", "2.5"),
        ("--alpha none", "none"),
        ("--mask square", "square"),
        ("--alpha -1", "alpha=-1.0 must be a number >= 0"),
        ("--reduction 0.5", "reduction=0.5"),
        ("--dict-init noise", "noise"),
        ("--colour red", "--colour"),
        ("--resume --overwrite", "--overwrite"),
        ("--config missing.toml", "missing.toml"),
    ],
)
def test_wrong_usage_of_fit(data, tmp_path, words, message):
    result = somf("fit", data, "--output", tmp_path / "run", *words.split())
    check_error(result, 2, message)
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
