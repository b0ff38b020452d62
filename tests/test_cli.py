"""The command line."""

import re
import sys

import pytest
from click.testing import CliRunner

from somf.cli import main


def test_help_and_version():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert "demo" in result.output
    assert re.search(r"\d+\.\d+", CliRunner().invoke(main, ["--version"]).output)


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
