"""What `import somf` gives."""

import subprocess
import sys

import pytest

import somf


@pytest.mark.parametrize("name", somf.__all__)
def test_names_are_found_when_they_are_asked_for(name):
    assert getattr(somf, name).__name__ == name
    assert name in dir(somf)
    assert name in vars(somf)  # the next time it is there


def test_a_name_that_it_has_not():
    with pytest.raises(AttributeError, match="'somf' has no attribute 'SMOF'"):
        somf.SMOF  # noqa: B018


def test_star_and_submodules():
    code = """
from somf import *
import somf.sources
assert SOMF.__name__ == "SOMF" and callable(plan) and callable(convert)
assert somf.plan is plan and somf.convert is convert
"""
    subprocess.run([sys.executable, "-c", code], check=True)
