"""What "auto" stands for: settings that follow from the problem and the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from somf.solver.schedule import auto_batch_size, auto_reduction, most_pieces
from somf.sources.base import Source


@dataclass(frozen=True)
class Choices:
    """The settings of a run, with nothing left open."""

    n_components: int
    reduction: float
    batch_size: int
    most_pieces: int  # in which a batch may be taken
    dict_update: str
    head_start: bool  # of workers: all features, until the dictionary has settled
    mask_block: int
    reads_observed: bool  # whether only the observed features of a batch are read


def choose(
    parameters: Mapping[str, Any],
    source: Source,
    n_components: int | None = None,
    *,
    reduction: float | None = None,
    n_workers: int = 1,
) -> Choices:
    """Resolve the parameters of `SOMF` for a source.

    `reduction` is what "auto" was found to be for the data, if that is known.
    """
    n_samples, n_features = source.shape
    k = n_components or parameters["n_components"] or min(50, n_samples, n_features)
    given = parameters["reduction"] != "auto"
    if given:
        reduction = parameters["reduction"]
    elif reduction is None:
        reduction = auto_reduction(n_features, k)
    dict_update = updated_features(parameters, n_features, k, reduction)
    head_start = False
    if n_workers > 1 and parameters["dict_update"] == "auto":
        head_start = not given and dict_update == "all" and reduction > 1
        dict_update = "observed"  # so that traffic falls with the reduction
    reads_observed = (
        _suits_masks(source, parameters["mask_block"], reduction)
        and parameters["aggregation"] == "masked"
        and parameters["code_estimator"] != "exact"
        and dict_update == "observed"
    )
    block = parameters["mask_block"]
    if block == "auto":
        block = source.feature_chunk if reads_observed else 1
    batch_size = _batch_size(parameters, n_samples, n_features, k)
    if reads_observed and parameters["batch_size"] == "auto":
        batch_size = _whole_chunks(batch_size, source)
    fast = parameters["weights"] == "fast"
    cut = parameters["batch_size"] == "auto" and fast and not reads_observed
    cut = cut and not head_start  # exchanges of all features are dear
    return Choices(
        n_components=k,
        reduction=float(reduction),
        batch_size=batch_size,
        most_pieces=most_pieces(batch_size, k) if cut else 1,
        dict_update=dict_update,
        head_start=head_start,
        mask_block=min(int(block or 1), n_features),
        reads_observed=reads_observed,
    )


def _suits_masks(source: Source, block: int | str, reduction: float) -> bool:
    """Whether masks can be made of whole chunks of features."""
    chunk = source.feature_chunk
    if chunk is None or reduction <= 1:
        return False
    aligned = block == "auto" or int(block) % chunk == 0
    return aligned and source.shape[1] >= reduction * chunk


def _whole_chunks(batch_size: int, source: Source) -> int:
    """Round a batch up to whole chunks of rows, which are read whole anyway."""
    longest = source.longest_chunk
    return min(-(-batch_size // longest) * longest, source.shape[0])


def updated_features(
    parameters: Mapping[str, Any], n_features: int, n_components: int, reduction: float
) -> str:
    """Return which features of the dictionary an iteration updates."""
    if parameters["dict_update"] != "auto":
        return str(parameters["dict_update"])
    enough = n_features >= reduction * n_components  # for codes to be stable
    fresh = parameters["code_estimator"] == "masked"  # averages cannot follow all of D
    complete = parameters["aggregation"] != "masked"
    return "all" if enough and fresh and complete else "observed"


def _batch_size(
    parameters: Mapping[str, Any], n_samples: int, n_features: int, n_components: int
) -> int:
    if not isinstance(parameters["batch_size"], str):
        return min(int(parameters["batch_size"]), n_samples)
    # Codes of non-negative factors are denser, and take more iterations. Of samples
    # with gaps each has a Gram matrix of its own, which takes time and memory.
    nonnegative = parameters["positive_code"] and parameters["positive_dict"]
    cheap = not nonnegative and parameters["missing"] != "mask"
    return auto_batch_size(
        n_samples,
        n_features,
        n_components,
        parameters["n_epochs"],
        sparse_codes=parameters["code_l1_ratio"] > 0 and cheap,
    )
