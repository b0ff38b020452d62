"""Checks of parameters: errors that give the value, the rule and the way out."""

from __future__ import annotations

import os
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from somf.sampling import KINDS
from somf.solver.aggregation import AGGREGATIONS
from somf.solver.coding import ESTIMATORS, REMEMBERS_SAMPLES
from somf.solver.schedule import REDUCTIONS, WEIGHTS, warn_outside_theory

_FLAGS = ("positive_code", "positive_dict", "shuffle")
_COUNTS = (
    "n_epochs",
    "patience",
    "n_dict_passes",
    "code_max_iter",
    "local_steps",
)
_RATIOS = (
    "code_l1_ratio",
    "dict_l1_ratio",
    "weight_exponent",
    "sample_weight_exponent",
)
_CHOICES: dict[str, Collection[str]] = {
    "reduction_schedule": REDUCTIONS,
    "code_estimator": ESTIMATORS,
    "aggregation": AGGREGATIONS,
    "dict_update": ("auto", "all", "observed"),
    "mask": KINDS,
    "weights": WEIGHTS,
    "missing": ("error", "mask"),
}


def check_parameters(parameters: dict[str, Any]) -> None:
    """Raise for a bad parameter of `SOMF`; warn outside of the theory."""
    for name in _FLAGS:
        check_flag(name, parameters[name])
    for name in _COUNTS:
        check_number(name, parameters[name], 1, integer=True)
    for name in _RATIOS:
        check_number(name, parameters[name], 0, 1)
    check_number("max_staleness", parameters["max_staleness"], 0, integer=True)
    for name in ("alpha", "tol", "code_tol", "checkpoint_minutes"):
        check_number(name, parameters[name], 0)
    for name, choices in _CHOICES.items():
        check_choice(name, parameters[name], choices)
    for name in ("n_components", "n_threads", "checkpoint_steps"):
        if parameters[name] is not None:
            check_number(name, parameters[name], 1, integer=True)
    if parameters["progress"] != "auto":
        check_flag("progress", parameters["progress"])
    for name in ("batch_size", "mask_block"):
        if parameters[name] != "auto":
            check_number(name, parameters[name], 1, integer=True)
    if parameters["reduction"] != "auto":
        hint = 'Use 1 to observe every feature, or "auto".'
        check_number("reduction", parameters["reduction"], 1, hint=hint)
    if parameters["dict_update"] == "all":
        _check_update_of_all(parameters)
    if parameters["local_steps"] > 1 and parameters["aggregation"] == "masked":
        raise ValueError(
            f"local_steps={parameters['local_steps']} needs statistics that workers "
            'keep between exchanges, which aggregation="masked" does not. Use '
            "local_steps=1 or another aggregation."
        )
    if parameters["missing"] == "mask" and parameters["code_estimator"] != "masked":
        raise ValueError(
            f"code_estimator={parameters['code_estimator']!r} cannot tell which "
            'entries of a sample are missing; missing="mask" needs "masked".'
        )
    folder = parameters["averages_folder"]
    if folder is not None and not os.path.isdir(folder):
        raise ValueError(
            f"averages_folder={os.fspath(folder)!r} must be a folder that exists."
        )
    if isinstance(parameters["dict_init"], str):
        check_choice("dict_init", parameters["dict_init"], ("samples", "random"))
    warn_outside_theory(
        parameters["weight_exponent"], parameters["sample_weight_exponent"]
    )


def _check_update_of_all(parameters: dict[str, Any]) -> None:
    if parameters["aggregation"] == "masked":
        raise ValueError(
            'dict_update="all" needs the statistics of all features, which '
            'aggregation="masked" does not keep up to date. Use dict_update="observed" '
            "or another aggregation."
        )
    if parameters["code_estimator"] in REMEMBERS_SAMPLES:
        raise ValueError(
            f"code_estimator={parameters['code_estimator']!r} averages over epochs, "
            'and cannot follow a dictionary of which dict_update="all" changes every '
            'feature at once: codes would explode. Use dict_update="observed", or '
            'code_estimator="masked".'
        )


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raise unless `value` is one of the words in `choices`."""
    if not isinstance(value, str) or value not in choices:
        words = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name}={value!r} must be one of {words}.")


def check_number(
    name: str,
    value: Any,
    low: float,
    high: float = float("inf"),
    *,
    integer: bool = False,
    hint: str = "",
) -> None:
    """Raise unless `value` is a number from `low` to `high`, both included."""
    kind = Integral if integer else Real
    number = isinstance(value, kind) and not isinstance(value, bool)
    if not number or not low <= value <= high or value == float("inf"):
        what = "an integer" if integer else "a number"
        limits = f">= {low}" if high == float("inf") else f"between {low} and {high}"
        error = ValueError if number else TypeError
        raise error(f"{name}={value!r} must be {what} {limits}.{hint and ' ' + hint}")


def check_flag(name: str, value: Any) -> None:
    """Raise unless `value` is True or False."""
    if not isinstance(value, bool | Integral) or value not in (0, 1):
        raise TypeError(f"{name}={value!r} must be True or False.")


def check_indices(index: ArrayLike | None, n_samples: int) -> NDArray[np.intp] | None:
    """Return sample indices as an array, or raise with what is wrong with them."""
    if index is None:
        return None
    numbers = np.asarray(index)
    if numbers.shape != (n_samples,) or numbers.dtype.kind not in "iu":
        raise ValueError(
            f"sample_indices has shape {numbers.shape} and type {numbers.dtype}; it "
            f"must hold one integer for each of the {n_samples} samples."
        )
    if numbers.min() < 0 or len(np.unique(numbers)) < n_samples:
        raise ValueError(
            "sample_indices must be non-negative and distinct: each is the number of a "
            "sample in the whole data set."
        )
    return numbers.astype(np.intp)
