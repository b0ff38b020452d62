"""How settings are written down."""

import json
import tomllib
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from somf.cli.base import plain
from somf.cli.settings import toml

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
)


@given(scalars | st.lists(st.text()))
def test_toml_reads_what_was_written(value):
    read = tomllib.loads(f"value = {toml(value)}\n")["value"]
    assert read == ("none" if value is None else value)
    assert type(read) is type("none" if value is None else value)


def test_json_has_no_infinity():
    facts = {"a": np.float64("nan"), "b": [np.inf, np.int64(3)], 4: Path("x")}
    assert json.dumps(plain(facts)) == '{"a": null, "b": [null, 3], "4": "x"}'
