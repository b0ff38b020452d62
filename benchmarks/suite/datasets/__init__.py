"""Data sets: hyperspectral and brain images, photographs, and simulated ones."""

from benchmarks.suite.datasets.fmri import RealFMRI, SimulatedFMRI
from benchmarks.suite.datasets.hyperspectral import (
    Hyperspectral,
    Hyperspectral256,
    HyperspectralNMF,
    HyperspectralNMF256,
    SpectraNMF,
)
from benchmarks.suite.datasets.photos import GreyPatches, Photos, SmallGreyPatches
from benchmarks.suite.datasets.simulated import Counts, SmoothMixtures, SparseMixtures

DATASETS = {
    kind.name: kind
    for kind in (
        Hyperspectral,
        Hyperspectral256,
        HyperspectralNMF,
        HyperspectralNMF256,
        SpectraNMF,
        SimulatedFMRI,
        RealFMRI,
        Photos,
        GreyPatches,
        SmallGreyPatches,
        SparseMixtures,
        SmoothMixtures,
        Counts,
    )
}
