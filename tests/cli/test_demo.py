"""The demo, and the examples of the documentation."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import somf

from somf.cli import main

DOCUMENT = Path(__file__).parents[2] / "docs" / "command-line.md"


@pytest.mark.slow
@pytest.mark.skipif(not DOCUMENT.exists(), reason="the documentation is not at hand")
def test_examples_of_the_documentation(tmp_path, monkeypatch):
    pytest.importorskip("zarr")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(python|sh)\n(.*?)```", DOCUMENT.read_text(), re.S)
    n_commands = 0
    for language, text in blocks:
        if language == "python":
            exec(text, {})
            continue
        for line in text.splitlines():
            result = somf(*shlex.split(line)[1:])
            assert result.exit_code == 0, line + result.output
            n_commands += 1
    assert n_commands >= 12
    table = DOCUMENT.read_text().split("## Exit codes")[1]
    for code, meaning in re.findall(r"\| (\d+) \| (\w+)", table):
        assert re.search(rf"{code} +{meaning}", somf("--help").stdout)


@pytest.mark.slow
def test_demo_writes_a_picture(tmp_path):
    pytest.importorskip("tensorly", reason="the image of the demo comes with it")
    pytest.importorskip("matplotlib", reason="it draws the picture")
    target = tmp_path / "demo.png"
    arguments = ["demo", "--seconds", "1", "--output", str(target)]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert target.read_bytes().startswith(b"\x89PNG")
    assert str(target) in result.output.replace("\n", "")
    objectives = re.findall(r"objective (\d\.\d+) on held-out", result.output)
    assert len(objectives) == 2
    assert all(0 < float(value) < 0.5 for value in objectives)  # 0.5: all codes zero


def test_demo_names_the_extra_when_the_image_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorly.datasets", None)
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1
    assert "somf[demo]" in result.output


def test_demo_refuses_a_bad_time():
    result = CliRunner().invoke(main, ["demo", "--seconds", "0"])
    assert result.exit_code == 2
    assert "0" in result.output
