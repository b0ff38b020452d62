"""Numbers and parameters as people write them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np


def number(value: Any) -> str:
    """Return a value as people write it.

    >>> number(512), number(0.123456), number(None)
    ('512', '0.1235', 'None')
    """
    if isinstance(value, bool | np.bool_) or value is None:
        return str(value)
    if isinstance(value, int | np.integer):
        return f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return str(value)


def duration(seconds: float) -> str:
    """Return seconds in words.

    >>> duration(7.25), duration(75), duration(7300)
    ('7.2 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def parameter(value: Any) -> str:
    """Return the value of a parameter as one would write it.

    >>> parameter(51200), parameter("auto")
    ('51200', "'auto'")
    """
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}"
    return str(value) if isinstance(value, os.PathLike) else repr(value)
