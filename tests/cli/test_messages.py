"""Errors, warnings and progress."""

import re
import sys
import warnings

import click
import pytest
from commands import OPTIONS, check_error, somf

from somf.cli.base import Command, Group
from somf.progress import CountProgress


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("alpha is\nwrong."), "Error: alpha is wrong."),
        (FileNotFoundError("no X.npy"), "Error: no X.npy"),
        (KeyError("lost"), "Error: KeyError: 'lost'. Use --debug"),
        (ValueError(), "Error: ValueError. Use --debug"),
    ],
)
def test_errors_are_one_line_and_debug_shows_more(error, message):
    @click.command(cls=Command)
    def fail():
        raise error

    group = Group(commands={"fail": fail})
    result = somf("fail", group=group)
    check_error(result, 1)
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1
    result = somf("fail", "--debug", group=group)
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "raise error" in result.stderr
    assert message in result.stderr


def test_debug_shows_what_is_behind_an_error_of_a_command(data, tmp_path):
    bad = ["fit", data, "--output", tmp_path / "run", "--alpha", -1]
    assert "Traceback" not in somf(*bad).stderr
    assert "check_number" in somf(*bad, "--debug").stderr


@pytest.mark.parametrize("arguments", [["--colour"], ["paint"], ["score"]])
def test_wrong_usage_is_one_line(arguments):
    result = somf(*arguments)
    check_error(result, 2, "--help")
    assert result.stderr.count("\n") == 1


def test_warnings_are_one_line():
    @click.command(cls=Command)
    def warn():
        warnings.warn("the disk\nis full", RuntimeWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = somf("warn", group=Group(commands={"warn": warn}))
    assert result.exit_code == 0
    assert result.stderr == "Warning: the disk is full\n"


def test_plain_progress_without_a_terminal(data, tmp_path, monkeypatch):
    monkeypatch.setattr("somf.progress.ProgressBar.DELAY", 0)
    result = somf("fit", data, "--output", tmp_path / "a", *OPTIONS)
    lines = result.stderr.splitlines()
    assert re.fullmatch(
        r"fit: iteration 1 of 9 \(11 %\), objective [\d.e-]+, 0 s", lines[0]
    )
    assert lines[-1].startswith("fit: iteration 9 of 9 (100 %)")
    assert len(lines) == 2  # no more than one in a few seconds, and the last
    monkeypatch.setattr("somf.progress.Lines.EVERY", 0.0)
    result = somf("fit", data, "--output", tmp_path / "b", *OPTIONS)
    assert len(result.stderr.splitlines()) == 9
    result = somf("fit", data, "--output", tmp_path / "c", *OPTIONS, "--progress", "no")
    assert result.exit_code == 0
    assert result.stderr == ""


def test_progress_of_other_commands(data, run, tmp_path):
    result = somf("transform", run, data, "--output", tmp_path / "codes.npy")
    assert "transform: 60 of 60 samples (100 %)" in result.stderr
    pytest.importorskip("zarr")
    result = somf("convert", data, tmp_path / "X.zarr")
    assert "convert: 60 of 60 samples (100 %)" in result.stderr


def test_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with CountProgress("convert") as progress:
        progress(30, 60)
    written = capsys.readouterr().err
    assert "30/60" in written
    assert "of 60 samples" not in written  # no plain line
