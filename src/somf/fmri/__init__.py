"""Brain maps from fMRI: from files to maps in a few lines."""

from somf.sources.checks import need

need("nilearn", "fmri", "somf.fmri")

from somf.fmri.dictionary import BrainDictionary  # noqa: E402
from somf.fmri.records import load_bids  # noqa: E402
from somf.fmri.simulation import Simulation, simulate  # noqa: E402

__all__ = ["BrainDictionary", "Simulation", "load_bids", "simulate"]
